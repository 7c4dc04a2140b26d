"""
Measures how soon another consumer has a task when its first one goes.

What becomes of it when a node goes: ``benchmarks.failover``.

    python -m benchmarks.disconnect [--rounds 500] [--replicated]

- *connection closed*: one consumer holds a task, another waits; the first hangs up. Beside
  beanstalkd and Tarantool; with ``--replicated`` three nodes with a store each, at the primary's.
- *consumer killed*: the same, but the connection belongs to a process that is ended by SIGKILL.
- *bare BLPOP woken*: the control. Behind each round of ours an LPUSH wakes a BLPOP on a store of
  its own, so that both meet the same moments of the machine. A processor that stands still delays
  either. Where the control has a tail, ours may have three times that.

What a round of ours costs, from the put to the second consumer's ack, less what the servers do at
rest: processor µs of all servers together, and hops, the messages between processes. The clients'
are nine: four requests with their answers, and the end of a connection. The store's are what it has
read from connections and written to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from benchmarks import bare_wait, machine
from benchmarks.connections import Board, Broken, Connection, connected
from benchmarks.machine import median, percentile
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.targets import Target, cpu_s, start_peers
from benchmarks.trios import tidewarden as trio

LIMIT_CLOSED_MEDIAN_MS, LIMIT_REPLICATED_MEDIAN_MS = 1.0, 2.5
LIMIT_CLOSED_P99_MS = 10.0
CALM_MS = 2.0
"""So much p99 the control has at most on a machine whose tail is ours, if there is one …"""
LIMIT_OF_CONTROL = 3.0
"""… and where it has more, ours may have so many times that."""
CONTROL = "control"
HOPS_OF_CLIENTS = 9
IDLE_S = 3.0
ROUND_S = 30.0
Deaths = dict[tuple[str, str], list[float]]
"""Milliseconds of each round, by what happened and to whom."""


# --- one node: the consumer goes


@dataclass
class Seat(Board):
    """A place where the connection of a round reports."""

    task: asyncio.Future[float] = field(default_factory=asyncio.Future)


class Holder(Connection):
    """put → take, and keeps it."""

    ends_by_itself = False
    board: Seat

    def begin(self) -> None:
        self.put()

    def was_put(self) -> None:
        self.take()

    def was_taken(self, task: Any, payload: bytes) -> None:
        self.board.task.set_result(time.perf_counter())


class Heir(Connection):
    """Takes when told to, and acknowledges."""

    ends_by_itself = False
    board: Seat

    def was_taken(self, task: Any, payload: bytes) -> None:
        self.board.task.set_result(time.perf_counter())
        self.ack(task)


def hang_up(holder: Connection) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """How a consumer goes: its connection is closed."""
    return contextlib.nullcontext(holder.transport.abort)


@contextlib.contextmanager
def in_a_process(holder: Connection) -> Iterator[Callable[[], None]]:
    """How a consumer goes: its connection is another process's alone, which is killed."""
    number = holder.transport.get_extra_info("socket").fileno()
    process = subprocess.Popen(["sleep", "600"], pass_fds=[number], stdin=subprocess.DEVNULL)
    try:
        holder.transport.abort()
        yield process.kill
    finally:
        process.kill()
        process.wait()


async def deaths(
    target: Target,
    rounds: int,
    way: Callable[[Connection], contextlib.AbstractContextManager[Callable[[], None]]],
    behind: Callable[[], Awaitable[None]] | None = None,
) -> list[float]:
    """
    Return ms from the end of a consumer that holds a task until another one has it, round by round.

    ``behind`` runs behind each. Raises: Broken.
    """
    found: list[float] = []
    seat = Seat()
    async with connected(target, Heir, seat) as (heir,):
        await asyncio.sleep(0.1)  # one that greets has greeted
        for _ in range(rounds):
            seat.task = asyncio.Future()
            held = Seat(stopping=True)  # a holder is meant to be lost
            async with connected(target, Holder, held) as (holder,), asyncio.timeout(ROUND_S):
                await held.task
                heir.take()
                await asyncio.sleep(0.005)  # it waits
                with way(holder) as end:
                    await asyncio.sleep(0.005)
                    began = time.perf_counter()
                    end()
                    found.append((await seat.task - began) * 1000)
            await asyncio.sleep(0.001)  # it has acknowledged
            if behind is not None:
                await behind()
    return found


# --- what a round costs


@dataclass(frozen=True)
class Ours:
    """What is measured of ours, and what its servers have used so far."""

    target: Target
    cpu_s: Callable[[], float]
    """Processor seconds of all servers."""
    hops: Callable[[], int]
    """Messages that the store which takes the writes has read and written."""
    limit_ms: float
    """Of the median of closed connections."""


@dataclass(frozen=True)
class Used:
    """What the servers used between two moments."""

    seconds: float
    cpu_s: float
    hops: float

    def less_rest(self, rest: Used) -> Used:
        """What of it they would not have used at rest."""
        share = self.seconds / rest.seconds
        cpu_s, hops = self.cpu_s - share * rest.cpu_s, self.hops - share * rest.hops
        return Used(self.seconds, cpu_s, hops)


async def used_while(ours: Ours, work: Awaitable[None]) -> Used:
    """What the servers use while ``work`` runs; asking for it costs them something, too."""
    hops = await asyncio.to_thread(ours.hops)
    cpu, began = ours.cpu_s(), time.perf_counter()
    await work
    seconds, cpu = time.perf_counter() - began, ours.cpu_s() - cpu
    return Used(seconds, cpu, await asyncio.to_thread(ours.hops) - hops)


@dataclass
class Closed:
    """Rounds of ours with the control beside them, and what a round of ours cost."""

    ours_ms: list[float] = field(default_factory=list)
    control_ms: list[float] = field(default_factory=list)
    cpu_us: float = 0.0
    hops: float = 0.0


async def closed_beside_control(ours: Ours, control_port: int, rounds: int) -> Closed:
    """Close connections of ours, and wake the control behind each. Raises: Broken."""
    found = Closed()
    async with bare_wait.bare_wait(control_port) as control:

        async def behind() -> None:
            found.control_ms.append(await control.woken_ms())

        async def close() -> None:
            found.ours_ms = await deaths(ours.target, rounds, hang_up, behind)

        rest = await used_while(ours, asyncio.sleep(IDLE_S))
        used = (await used_while(ours, close())).less_rest(rest)
    found.cpu_us, found.hops = used.cpu_s / rounds * 1e6, used.hops / rounds
    return found


# --- the run


def report_deaths(found: Deaths) -> None:
    for (what, name), values in found.items():
        machine.line(f"{what}, {name}", values, "ms")
    for (what, name), values in found.items():
        if name not in ("tidewarden", CONTROL):
            ratio = median(found[what, "tidewarden"]) / median(values)
            print(f"  ratio of medians, {what}: {ratio:.2f} of {name}")


def report_closed(closed: Closed, limit_ms: float) -> None:
    """The limits, of which that of the tail follows from the control's."""
    ours, control = percentile(closed.ours_ms, 0.99), percentile(closed.control_ms, 0.99)
    tail = LIMIT_CLOSED_P99_MS if control <= CALM_MS else round(LIMIT_OF_CONTROL * control, 1)
    print(
        f"  median: {machine.against(limit_ms, median(closed.ours_ms), least=False, unit=' ms')}\n"
        f"  p99: {machine.against(tail, ours, least=False, unit=' ms')}; {ours / control:.1f} × the"
        f" control's, {LIMIT_OF_CONTROL:g} × where that has more than {CALM_MS:g} ms\n"
        f"  a round: {closed.cpu_us:,.0f} µs of the servers together, {HOPS_OF_CLIENTS} hops of the"
        f" clients and {closed.hops:.1f} of the store",
        flush=True,
    )


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[Ours]:
    """A node with a store of its own."""
    with tidewarden.started(folder) as target:

        def hops() -> int:
            with redis.Redis.from_url(target.engine) as store:
                return tidewarden.hops_of(store.info("stats"))

        def used() -> float:
            return sum(map(cpu_s, target.pids.values()))

        yield Ours(target, used, hops, LIMIT_CLOSED_MEDIAN_MS)


@contextlib.contextmanager
def replicated(folder: Path) -> Iterator[Ours]:
    """Three nodes with a store each, at the primary's node."""
    with trio.started(folder) as nodes:

        def used() -> float:
            return sum(nodes.cpu_s().values())

        target = nodes.target(nodes.leader())
        yield Ours(target, used, nodes.hops, LIMIT_REPLICATED_MEDIAN_MS)


async def measure(
    ours: Ours, peers: list[Target], control_port: int, rounds: int
) -> tuple[Deaths, Closed]:
    """All of them, one after the other. Raises: Broken."""
    closed = await closed_beside_control(ours, control_port, rounds)
    found = {
        ("connection closed", ours.target.name): closed.ours_ms,
        ("bare BLPOP woken", CONTROL): closed.control_ms,
    }
    for target in peers:
        found["connection closed", target.name] = await deaths(target, rounds, hang_up)
    for target in (ours.target, *peers):
        few = max(1, rounds // 10)
        found["consumer killed", target.name] = await deaths(target, few, in_a_process)
    return found, closed


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("how soon a task is with another consumer when its first one goes")
    parser.add_argument(
        "--rounds",
        type=int,
        default=500,
        help="closed connections; a tenth as many killed consumers",
    )
    parser.add_argument(
        "--replicated", action="store_true", help="three nodes with a store each, without peers"
    )
    options = parser.parse_args(argv)
    busy = machine.is_busy()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        try:
            ours = stack.enter_context((replicated if options.replicated else alone)(folder))
            starts = (lambda: beanstalkd.started(folder), lambda: tarantool.started(folder))
            peers = start_peers(stack, *(() if options.replicated else starts))
            port = stack.enter_context(bare_wait.store(folder))
            machine.print_machine(folder, *(one.version for one in (ours.target, *peers)))
            if busy:
                print("others use the processors: these figures settle nothing")
            machine.print_heads()
            found, closed = machine.run(measure(ours, peers, port, options.rounds))
        except Broken as broken:
            raise SystemExit(str(broken)) from None
        report_deaths(found)
        report_closed(closed, ours.limit_ms)


if __name__ == "__main__":
    main()
