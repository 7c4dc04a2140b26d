"""Writers at several hosts, and for how long each host's writers had no answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from benchmarks.connections import Board, Broken, Connection, joined
from benchmarks.targets import Target

WRITERS = 4
"""At each host, so that the patience of one does not decide."""
PATIENCE_S = 0.3
PAUSE_S = 0.004
CALM_S, LIMIT_S = 1.5, 60.0
"""It is over when no writer has waited for longer than a part of ``CALM_S`` for so long."""


@dataclass
class Log(Board):
    """When a host's writers were answered OK, and how often they were refused."""

    acked: list[float] = field(default_factory=list)
    refused: int = 0


class Writer(Connection):
    """Puts, again as soon as it is answered; a refusal is tried again."""

    ends_by_itself = False
    board: Log
    asked_at = 0.0

    def begin(self) -> None:
        self.again()

    def again(self) -> None:
        if not self.transport.is_closing():
            self.asked_at = time.perf_counter()
            self.put()

    def was_put(self) -> None:
        self.board.acked.append(time.perf_counter())
        asyncio.get_running_loop().call_later(PAUSE_S, self.again)

    def fail(self, found: object) -> None:
        self.board.refused += 1
        asyncio.get_running_loop().call_later(PAUSE_S, self.again)


async def write(target: Target, log: Log, patience_s: float) -> None:
    """One writer, connected anew when it lost its connection or its patience."""
    made = joined(Writer, target.connection)
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(patience_s):
                _, writer = await asyncio.get_running_loop().create_connection(
                    lambda: made(log, target.auth), target.host, target.port
                )
            assert isinstance(writer, Writer)
            writer.asked_at = time.perf_counter()
            try:
                while (
                    not writer.transport.is_closing()
                    and time.perf_counter() < writer.asked_at + patience_s
                ):
                    await asyncio.sleep(0.02)
            finally:
                writer.transport.abort()
        await asyncio.sleep(PAUSE_S)


@contextlib.asynccontextmanager
async def writing(targets: dict[int, Target]) -> AsyncIterator[dict[int, Log]]:
    """
    Writers at each of these hosts until the block's end; the log of each.

    Raises: Broken: they are not answered at first.
    """
    logs = {number: Log(stopping=True) for number in targets}
    tasks = [
        asyncio.create_task(write(target, logs[number], PATIENCE_S * (1 + place / WRITERS)))
        for number, target in targets.items()
        for place in range(WRITERS)
    ]
    try:
        until = time.monotonic() + LIMIT_S
        while min(len(log.acked) for log in logs.values()) < 20:
            if time.monotonic() > until:
                raise Broken("puts are not answered before any fault")
            await asyncio.sleep(0.02)
        yield logs
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def longest(acked: Iterable[float], since: float, until: float) -> float:
    """The longest time without an answer from ``since`` on, that which goes on included."""
    before = max((at for at in acked if at <= since), default=since)
    points = [before, *(at for at in acked if at > since), until]
    return max(after - at for at, after in itertools.pairwise(points))


async def gap(logs: dict[int, Log], since: float, least_s: float) -> float:
    """
    Watch for ``least_s`` and until all hosts are answered well; the longest gap at any of them.

    Raises: Broken: they are not within a minute.
    """
    while True:
        await asyncio.sleep(0.1)
        now = time.perf_counter()
        calm = max(longest(log.acked, now - CALM_S, now) for log in logs.values()) < CALM_S / 3
        if calm and now > since + least_s:
            return max(longest(log.acked, since, now) for log in logs.values())
        if now > since + least_s + LIMIT_S:
            raise Broken(f"puts are not answered {LIMIT_S:g} s after a fault")
