"""The control of wake-ups: a bare BLPOP that an LPUSH wakes, on a store of the kind we use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hiredis

from benchmarks.peers.replicated import servers

KEY = "bench.wait"
WAIT = hiredis.pack_command(("BLPOP", KEY, "0"))
PUSH = hiredis.pack_command(("LPUSH", KEY, "x" * 100))


class Line(asyncio.Protocol):
    """A connection to the store that notes when an answer comes."""

    transport: asyncio.Transport
    came: asyncio.Future[float]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def ask(self, packed: bytes) -> asyncio.Future[float]:
        """Send a command; the future is when its answer came."""
        self.came = asyncio.get_running_loop().create_future()
        self.transport.write(packed)
        return self.came

    def data_received(self, data: bytes) -> None:
        if not self.came.done():
            self.came.set_result(time.perf_counter())


class BareWait:
    """Wakes a waiting connection by another one, again and again."""

    def __init__(self, waiter: Line, pusher: Line) -> None:
        self._waiter, self._pusher = waiter, pusher

    async def woken_ms(self) -> float:
        """Return ms from a push until the connection that waited has the element."""
        came = self._waiter.ask(WAIT)
        await asyncio.sleep(0.005)  # it waits
        began = time.perf_counter()
        pushed = self._pusher.ask(PUSH)
        took_ms = (await came - began) * 1000
        await pushed
        return took_ms


@contextlib.contextmanager
def store(folder: Path) -> Iterator[int]:
    """Start a store without replicas in ``folder``; yields its port."""
    inside = folder / "control"
    inside.mkdir()
    with servers(inside, 0) as found:
        yield found["primary"][0]


@contextlib.asynccontextmanager
async def bare_wait(port: int) -> AsyncIterator[BareWait]:
    """Connect twice to the store at ``port``."""
    loop = asyncio.get_running_loop()
    lines: list[Line] = []
    try:
        for _ in range(2):
            _, line = await loop.create_connection(Line, "127.0.0.1", port)
            lines.append(line)
        yield BareWait(*lines)
    finally:
        for line in lines:
            line.transport.close()
