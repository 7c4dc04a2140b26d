"""
What a task costs when consumers wait for it: put → in a consumer's hands, beside beanstalkd.

    python -m benchmarks.waiting [--seconds 60] [--sizes 1x50,8x50,1x1] [--pause-ms 1] [--before
    PYTHON]

``NxM``: N producers, each of which puts its next task a moment after its last is done
(``--pause-ms``), and M consumers that take, waiting, and acknowledge. One process drives all by one
client, as in ``benchmarks.cycle``; rounds take turns. The latency is measured from the put's bytes
to the task's.

How many takes are asked and how many calls are made at the store, per task, is read from the
store's ``MONITOR``, in a round of their own.

``--before`` is the interpreter of another installation of ours, whose node is measured in the same
turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis.asyncio

from benchmarks import machine
from benchmarks.connections import PAYLOAD, WARM_S, Board, Broken, Connection, connected
from benchmarks.machine import median, percentile
from benchmarks.peers import beanstalkd, tidewarden
from benchmarks.targets import Target, cpu_s, start_peers

ROUNDS = 3
COUNTED = 1000  # tasks of the round in which takes and calls are counted
COUNTED_S = 30.0
LIMIT_SIZES = (1, 50)
LIMIT_TAKES, LIMIT_CALLS = 1.1, 3.0
QUEUE_KEY = f":{tidewarden.QUEUE}:0}} "
END = "benchmarks.waiting has counted"


@dataclass
class Hall(Board):
    """
    What is under way, by its payload: since when, and whose it is; and how long it took, in ms.
    """

    under_way: dict[bytes, tuple[float, Producer]] = field(default_factory=dict)
    took_ms: list[float] = field(default_factory=list)
    number: int = 0
    pause_s: float = 0.0


class Producer(Connection):
    """put, and the next one when this one is answered and a consumer has done it."""

    board: Hall
    missing = 0

    def begin(self) -> None:
        board = self.board
        board.number += 1
        payload = b"%0*d" % (len(PAYLOAD), board.number)
        self.missing = 2
        board.under_way[payload] = (time.perf_counter(), self)
        self.put(payload)

    def was_put(self) -> None:
        self.one_less()

    def one_less(self) -> None:
        self.missing -= 1
        if self.missing == 0:
            self.went_round()


@dataclass
class Bench(Board):
    """Where consumers wait for what is under way in a hall."""

    hall: Hall = field(default_factory=Hall)


class Consumer(Connection):
    """take → ack, and looks at the clock."""

    ends_by_itself = False
    board: Bench

    producer: Producer

    def begin(self) -> None:
        self.take()

    def was_taken(self, task: Any, payload: bytes) -> None:
        hall = self.board.hall
        began, self.producer = hall.under_way.pop(payload)
        hall.took_ms.append((time.perf_counter() - began) * 1000)
        self.ack(task)

    def was_acked(self) -> None:
        self.begin()
        asyncio.get_running_loop().call_later(self.board.hall.pause_s, self.producer.one_less)


@dataclass
class Figures:
    """One round's: tasks a second, latencies, processor µs a task by part."""

    rate: float
    took_ms: list[float]
    cpu_us: dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How many put, how many take, and how long a producer pauses."""

    producers: int
    consumers: int
    pause_s: float


@contextlib.asynccontextmanager
async def at_work(target: Target, sizes: Sizes) -> AsyncIterator[Hall]:
    """
    Consumers that wait, and producers that put; the consumers see the last task of each producer.

    Raises: Broken.
    """
    hall = Hall(pause_s=sizes.pause_s)
    async with connected(target, Consumer, Bench(hall=hall), sizes.consumers):
        await asyncio.sleep(WARM_S)
        async with connected(target, Producer, hall, sizes.producers):
            yield hall


async def figures(target: Target, sizes: Sizes, seconds: float) -> Figures:
    """
    One round.

    Raises: Broken.
    """
    async with at_work(target, sizes) as hall:

        def now() -> tuple[float, int, dict[str, float]]:
            used = {part: cpu_s(pid) for part, pid in target.pids.items()} | {
                "client": time.process_time()
            }
            return time.perf_counter(), hall.rounds, used

        await asyncio.sleep(WARM_S)
        hall.took_ms.clear()
        began, before, used_before = now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await hall.reached.wait()
        ended, after, used_after = now()
        took_ms = list(hall.took_ms)
    count = max(1, after - before)
    cpu_us = {part: (used_after[part] - used_before[part]) / count * 1e6 for part in used_after}
    return Figures((after - before) / (ended - began), took_ms, cpu_us)


def takes_in(command: str) -> int:
    """How many takes a call asks, by the store's words of it (lua/take.lua, lua/batch.lua)."""
    words = command.split(" ")  # of what this benchmark sends none has a space
    if words[0] != "FCALL":
        return 0
    args = words[3 + int(words[2]) :]
    if words[1].startswith("queue_take_"):
        return (len(args) - 3) // 4
    asked, at = 0, 2
    while words[1].startswith("queue_batch_") and at < len(args):
        verb, size = args[at], int(args[at + 1])
        asked += (size - 1) // 4 if verb == "take" else 0
        at += 2 + size
    return asked


async def counted(target: Target, sizes: Sizes) -> tuple[float, float]:
    """
    Takes asked and calls made per task, in a round of its own.

    Raises: Broken.
    """
    asked = calls = 0
    async with redis.asyncio.Redis.from_url(target.engine) as store, store.monitor() as monitor:

        async def read() -> None:
            nonlocal asked, calls
            async for heard in monitor.listen():
                command = heard["command"]
                if END in command:
                    return
                if heard["client_type"] != "lua" and QUEUE_KEY in command:
                    asked += takes_in(command)
                    calls += 1

        reading = asyncio.create_task(read())
        async with at_work(target, sizes) as hall, asyncio.timeout(COUNTED_S):
            while hall.rounds < COUNTED and not hall.problem:
                await asyncio.sleep(0.01)
        await store.echo(END)
        await reading
    return asked / hall.number, calls / hall.number


@dataclass
class Found:
    """What was found at one target with one pair of sizes."""

    rounds: list[Figures] = field(default_factory=list)
    asked: float = 0.0
    calls: float = 0.0

    def middle(self, of: str) -> float:
        values: list[float] = [getattr(round_, of) for round_ in self.rounds]
        return float(median(values))

    def took(self, share: float) -> float:
        return float(median([percentile(round_.took_ms, share) for round_ in self.rounds]))


Results = dict[Sizes, dict[str, Found]]


async def measure(targets: list[Target], pairs: list[Sizes], seconds: float) -> Results:
    """
    Rounds in turn: every target once, then again, with each pair of sizes; then takes are counted.
    """
    each = max(0.2, seconds / (len(pairs) * len(targets) * ROUNDS) - 2 * WARM_S)
    results: Results = {}
    for sizes in pairs:
        found = results[sizes] = {target.name: Found() for target in targets}
        for number in range(ROUNDS):
            for target in targets if number % 2 == 0 else targets[::-1]:
                found[target.name].rounds.append(await figures(target, sizes, each))
        for target in targets:
            if target.engine:
                at = found[target.name]
                at.asked, at.calls = await counted(target, sizes)
    return results


def report(results: Results) -> None:
    print(
        f"\n{'sizes':>8}  {'':10}  {'tasks/s':>8}  {'p50 ms':>7}  {'p99 ms':>7}  takes  calls "
        " processor µs per task"
    )
    for sizes, by_name in results.items():
        for name, found in by_name.items():
            parts = {
                part: median([r.cpu_us[part] for r in found.rounds])
                for part in found.rounds[0].cpu_us
            }
            shown = ", ".join(f"{part} {value:.0f}" for part, value in parts.items())
            asked = f"{found.asked:>5.2f}  {found.calls:>5.2f}" if found.calls else f"{'':12}"
            print(
                f"{sizes.producers:>4}x{sizes.consumers:<3}  {name:10} "
                f" {found.middle('rate'):>8,.0f}  {found.took(0.5):>7.3f}  {found.took(0.99):>7.3f}"
                f"  {asked}  {shown}"
            )
        ours = by_name["tidewarden"]
        for name, found in by_name.items():
            if found is not ours:
                print(
                    f"{'':8}  {'ratio':10}  {ours.middle('rate') / found.middle('rate'):>8.2f} "
                    f" {ours.took(0.5) / found.took(0.5):>7.2f} "
                    f" {ours.took(0.99) / found.took(0.99):>7.2f}  of {name}"
                )
        if (sizes.producers, sizes.consumers) == LIMIT_SIZES:
            print(
                f"takes a task: {machine.against(LIMIT_TAKES, round(ours.asked, 2), least=False)}"
            )
            print(
                "store calls a task:"
                f" {machine.against(LIMIT_CALLS, round(ours.calls, 2), least=False)}"
            )


@contextlib.contextmanager
def nodes(folder: Path, before: str) -> Iterator[Sequence[Target]]:
    """Our node, and that of the other installation."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(tidewarden.started(folder))]
        if before:
            other = stack.enter_context(tidewarden.started(folder, name="before", python=before))
            found.append(dataclasses.replace(other, name="before"))
        yield found


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("put → in the hands of a consumer that waits, beside beanstalkd")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of the whole run, without starting up"
    )
    parser.add_argument("--sizes", default="1x50,8x50,1x1", help="producers x consumers, in order")
    parser.add_argument(
        "--pause-ms", type=float, default=1.0, help="of a producer, after its task was done"
    )
    parser.add_argument(
        "--before",
        default="",
        help="interpreter of another installation, measured in turns with this",
    )
    options = parser.parse_args(argv)
    pairs = []
    for pair in options.sizes.split(","):
        producers, _, consumers = pair.partition("x")
        pairs.append(Sizes(int(producers), int(consumers), options.pause_ms / 1000))
    with machine.own_folder(options.folder) as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(nodes(folder, options.before))
        peers = start_peers(stack, lambda: beanstalkd.started(folder))
        machine.print_machine(folder, *(target.version for target in (*ours, *peers)))
        print(f"payload {len(PAYLOAD)} bytes; ours on disk within a second")
        try:
            report(machine.run(measure([*ours, *peers], pairs, options.seconds)))
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
