"""
How late a due task reaches a consumer that waits, beside beanstalkd and Tarantool.

    python -m benchmarks.lateness [--seconds 45] [--rate 200] [--tasks 200000]

One connection puts tasks that are due in one or two seconds (beanstalkd counts whole ones), ten
others wait for them: unix time of arrival less due time, all on one host and one clock. In our
store lie ``--tasks`` further tasks, and half-way through it is told to rewrite its append-only
file, so that the fork and the copying fall into the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from benchmarks import machine
from benchmarks.connections import Board, Broken, Connection, connected
from benchmarks.desk import Desk
from benchmarks.machine import percentile
from benchmarks.memory import batches, spread
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.targets import Target, start_peers

LIMIT_P99_MS, LIMIT_MAX_MS = 3.0, 100.0
CONSUMERS = 10
DELAYS_MS = (1000, 2000)
GRACE_S = 5.0


@dataclass
class Watch(Board):
    """What is on its way, and how late what came was."""

    due_s: dict[bytes, float] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Producer(Connection):
    """Puts when it is told to, and ``free`` says whether it may be."""

    ends_by_itself = False
    board: Watch

    def begin(self) -> None:
        self.board.free.set()

    def was_put(self) -> None:
        self.board.free.set()


class Consumer(Connection):
    """take → ack, and looks at the clock."""

    ends_by_itself = False
    board: Watch

    def begin(self) -> None:
        self.take()

    def was_taken(self, task: Any, payload: bytes) -> None:
        now_s = time.time()
        due_s = self.board.due_s.pop(payload, None)
        if due_s is not None:
            self.board.late_ms.append((now_s - due_s) * 1000)
        if not self.board.due_s:
            self.board.done.set()
        self.ack(task)

    def was_acked(self) -> None:
        self.take()


async def lateness(
    target: Target, seconds: float, rate: float, rewrite: bool = False
) -> list[float]:
    """
    Milliseconds by which each of ``rate * seconds`` tasks came late.

    Raises: Broken: also when some have not come some seconds after they were due.
    """
    board = Watch()
    try:
        async with asyncio.timeout(2 * seconds + GRACE_S + 30):
            await _watch(target, board, seconds, rate, rewrite)
    except TimeoutError:
        raise Broken(f"{target.name}: {board.problem or 'the run did not end'}") from None
    if board.due_s:
        raise Broken(
            f"{target.name}: {len(board.due_s)} tasks did not come within {GRACE_S:g} s of their"
            " time"
        )
    return board.late_ms


async def _watch(target: Target, board: Watch, seconds: float, rate: float, rewrite: bool) -> None:
    dice = random.Random(1)
    half = asyncio.get_running_loop().time() + seconds / 2
    async with (
        connected(target, Consumer, board, CONSUMERS),
        connected(target, Producer, board) as (*_, producer),
    ):
        rewriting: asyncio.Task[None] | None = None
        for number in range(int(rate * seconds)):
            payload = b"%d" % number
            await board.free.wait()
            board.free.clear()
            board.due_s[payload] = producer.put_due(payload, dice.choice(DELAYS_MS))
            await asyncio.sleep(dice.uniform(0.5, 1.5) / rate)
            if rewrite and rewriting is None and asyncio.get_running_loop().time() > half:
                rewriting = asyncio.create_task(rewrite_log(target))
        board.done.clear()
        if board.due_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(DELAYS_MS) / 1000 + GRACE_S):
                    await board.done.wait()
        if rewriting is not None:
            await rewriting


async def rewrite_log(target: Target) -> None:
    """Have the store rewrite its append-only file, and say what it cost."""
    async with redis.asyncio.Redis.from_url(target.engine) as store:
        began = time.perf_counter()
        await store.bgrewriteaof()
        while (info := await store.info("everything"))["aof_rewrite_in_progress"] or not info[
            "aof_rewrites"
        ]:
            await asyncio.sleep(0.1)
        print(
            f"inside the run the store ({info['used_memory'] / 1e6:,.0f} MB) rewrote its log: fork"
            f" {info['latest_fork_usec'] / 1000:.1f} ms, {time.perf_counter() - began:.1f} s in all"
        )


def load(target: Target, count: int) -> None:
    """Tasks that are due tomorrow."""
    desk, dice = Desk(target.engine, "bench.sleepers"), random.Random(1)
    for numbers in batches(count):
        desk.put(spread(dice, b"x" * 136, numbers))
    desk.close()


async def measure(targets: list[Target], seconds: float, rate: float) -> dict[str, list[float]]:
    """One target after the other."""
    found: dict[str, list[float]] = {}
    for target in targets:
        found[target.name] = await lateness(
            target, seconds / len(targets), rate, rewrite=bool(target.engine)
        )
    return found


def report(found: dict[str, list[float]]) -> None:
    print(f"\n{'ms late':10}  {'tasks':>7}  {'p50':>7}  {'p99':>7}  {'max':>7}")
    for name, late in found.items():
        figures = (percentile(late, 0.5), percentile(late, 0.99), max(late))
        print(f"{name:10}  {len(late):>7,}  " + "  ".join(f"{figure:>7.2f}" for figure in figures))
    mine = found["tidewarden"]
    p99, most = percentile(mine, 0.99), max(mine)
    for name, late in found.items():
        if late is not mine:
            print(f"ratio of p99 to {name}'s: {p99 / percentile(late, 0.99):.2f}")
    print(f"p99: {machine.against(LIMIT_P99_MS, p99, least=False, unit=' ms')}")
    print(f"max: {machine.against(LIMIT_MAX_MS, most, least=False, unit=' ms')}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("how late a due task reaches a waiting consumer")
    parser.add_argument(
        "--seconds", type=float, default=45.0, help="length of the whole run, without starting up"
    )
    parser.add_argument("--rate", type=float, default=200.0, help="tasks a second")
    parser.add_argument(
        "--tasks", type=int, default=200_000, help="tasks that lie in our store besides"
    )
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        ours = stack.enter_context(tidewarden.started(folder))
        load(ours, options.tasks)
        peers = start_peers(
            stack, lambda: beanstalkd.started(folder), lambda: tarantool.started(folder)
        )
        machine.print_machine(folder, *(target.version for target in (ours, *peers)))
        print(
            f"{options.rate:g} tasks a second, {CONSUMERS} waiting consumers, {options.tasks:,}"
            " tasks besides"
        )
        try:
            found = machine.run(measure([ours, *peers], options.seconds, options.rate))
        except Broken as broken:
            raise SystemExit(str(broken)) from None
        report(found)


if __name__ == "__main__":
    main()
