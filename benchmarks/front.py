"""
Measures where the front's processor time goes: inside the process without sockets, and in sockets.

    python -m benchmarks.front [--connections 50] [--cycles 50000]

The stages are timed around real connections, queues and scripts whose two transports are lists:
*read* is a request from its bytes to its place in a batch, *send* a batch from there to the store's
bytes, *answer* the store's bytes to the replies'. Each figure is µs a request, the lowest tenth of
all rounds, so that a busy machine hardly shows. The price of the sockets is what a server that
answers ``+OK`` to anything pays for a request on this machine, with as many connections: the limit
of any front.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any

import hiredis
import uvloop

from tidewarden.clock import SystemClock
from tidewarden.config.load import Config
from tidewarden.node.product_scripts import product_scripts
from tidewarden.queue import Queues
from tidewarden.queue.settings import QueueSettings
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.server import RespServer
from tidewarden.server.services import Services
from tidewarden.store import Scripts, StoreConnection
from tidewarden.tokens.system_queues import system_queues

QUEUE = "bench.front"
PAYLOAD = b"x" * 100
NOW_MS = 1_700_000_000_000
FLOOR_S = 2.0
STAGES = ("read", "send", "answer")


class List:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.write = self.out.append

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "list", 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        """There is none."""


class Cluster:
    """Not asked."""

    def status(self) -> dict[str, Any]:
        return {}


class Store:
    """Answers scripts as the real one does, from the calls' arguments."""

    def __init__(self, scripts: Scripts, wire: List) -> None:
        self._names = {script.sha.encode(): script.name for script in scripts}
        self._wire = wire
        self._ids: list[bytes] = []
        self._lease = 1 << 37

    def answers(self) -> bytes:
        reader, found = hiredis.Reader(), []
        reader.feed(b"".join(self._wire.out))
        self._wire.out.clear()
        while (call := reader.gets()) is not False:
            arguments = call[3 + int(call[2]) + 2 :]
            items: list[Any] = [1] * (len(arguments) // 3)
            if self._names[call[1]] == "queue.put":
                self._ids += arguments[::3]
            elif self._names[call[1]] == "queue.take":
                items = [[self._row()] for _ in range((len(arguments) - 1) // 4)]
            found.append(encoded([NOW_MS, NOW_MS + 30_000, 0, items]))
        return b"".join(found)

    def _row(self) -> list[Any]:
        self._lease += 1
        return [self._ids.pop(), self._lease, PAYLOAD, 1, NOW_MS, NOW_MS + 30_000]


def encoded(value: Any) -> bytes:
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))


async def stages(connections: int, cycles: int) -> dict[tuple[str, str], float]:
    """µs a request by verb and stage."""
    config, clock, wire = Config(), SystemClock(), List()
    scripts = product_scripts()
    link = StoreConnection("redis://nowhere", "bench", clock)
    link._transport = wire  # type: ignore[assignment]
    queues = Queues(config, link, scripts, clock, views=True, system_queues=system_queues())
    queues.catalog.holder = "n0.1"
    (shard,) = queues.catalog.build(QUEUE, QueueSettings())
    server = RespServer(config, Services(queues, Cluster()), clock)
    peers: list[tuple[Connection, List]] = [
        (Connection(server.context), List()) for _ in range(connections)
    ]
    for connection, transport in peers:
        connection.connection_made(transport)  # type: ignore[arg-type]
    store = Store(scripts, wire)
    rounds: dict[tuple[str, str], list[float]] = {}

    def play(verb: str, requests: list[bytes]) -> list[bytes]:
        clocked = [time.perf_counter()]
        for (connection, _), request in zip(peers, requests, strict=True):
            connection.data_received(request)
        clocked.append(time.perf_counter())
        shard._flush()
        clocked.append(time.perf_counter())
        answers = store.answers()
        began = time.perf_counter()
        link.data_received(answers)
        spent = (clocked[1] - clocked[0], clocked[2] - clocked[1], time.perf_counter() - began)
        for stage, seconds in zip(STAGES, spent, strict=True):
            rounds.setdefault((verb, stage), []).append(seconds / connections * 1e6)
        return [transport.out.pop() for _, transport in peers]

    put = hiredis.pack_command(("Q.PUT", QUEUE, PAYLOAD))
    take = hiredis.pack_command(("Q.TAKE", "WAIT", "10000", "FROM", QUEUE))
    gc.freeze()
    for _ in range(max(10, cycles // connections)):
        play("put", [put] * connections)
        acks = []
        for reply in play("take", [take] * connections):
            reader = hiredis.Reader()
            reader.feed(reply)
            _, task_id, lease, *_ = reader.gets()[0]
            acks.append(hiredis.pack_command(("Q.ACK", QUEUE, task_id, lease)))
        play("ack", acks)
        await asyncio.sleep(0)
    return {place: sorted(times)[len(times) // 10] for place, times in rounds.items()}


# --- the limit


class Okay(asyncio.Protocol):
    """Answers anything with +OK, or as the client asks again at each answer."""

    def __init__(self, say: bytes, first: Callable[[], None] | None = None) -> None:
        self.say = say
        self.answered = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        if self.answered is not None:
            transport.write(self.say)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.say)
        if self.answered is not None:
            self.answered()


def serve(pipe: Pipe) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Okay(b"+OK\r\n"), "127.0.0.1", 0
        )
        pipe.send(server.sockets[0].getsockname()[1])
        while not pipe.poll():
            await asyncio.sleep(0.05)
        pipe.recv()
        pipe.send(time.process_time())

    uvloop.run(main())


async def floor(connections: int) -> float:
    """Processor µs that a request costs a server which does nothing with it."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=serve, args=(other,))
    process.start()
    port = await asyncio.to_thread(pipe.recv)
    count = 0

    def answered() -> None:
        nonlocal count
        count += 1

    request = hiredis.pack_command(("Q.PUT", QUEUE, PAYLOAD))
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: Okay(request, answered), "127.0.0.1", port, family=socket.AF_INET
        )
        for _ in range(connections)
    ]
    await asyncio.sleep(0.2)
    before, counted = used(process.pid), count
    await asyncio.sleep(FLOOR_S)
    spent, done = used(process.pid) - before, count - counted
    for transport, _ in made:
        transport.close()
    pipe.send("end")
    await asyncio.to_thread(process.join)
    return spent / done * 1e6


def used(pid: int | None) -> float:
    """Processor seconds of a process of one thread."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description="the front's processor time by stage")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--cycles", type=int, default=50_000, help="put → take → ack")
    options = parser.parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(stages(options.connections, options.cycles))
        limit = runner.run(floor(options.connections))
    print(f"{options.connections} connections, {os.cpu_count()} cores; µs of processor a request\n")
    print(f"{'':6}" + "".join(f"{stage:>8}" for stage in STAGES))
    for verb in ("put", "take", "ack"):
        print(f"{verb:6}" + "".join(f"{found[verb, stage]:8.2f}" for stage in STAGES))
    print(f"\na cycle of the three: {sum(found.values()):.1f} µs inside the process")
    print(f"sockets alone: {limit:.1f} µs a request, {3 * limit:.1f} µs a cycle")


if __name__ == "__main__":
    main()
