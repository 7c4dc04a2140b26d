"""
Whether a task costs more among millions: at 10,000,000 stored tasks beside 10,000.

    python -m benchmarks.flat [--tasks 1000000] [--beside 10000] [--seconds 20]

Two nodes with their stores, one filled with ``--tasks`` delayed tasks, the other with ``--beside``,
by the product's own put script in batches. Then, in turns:

- *whole cycle*: put → take → ack at 50 connections through the door, in the queue where the others
  lie;
- *engine*: the life of a delayed task as it is when so many are stored: put with a due time
  somewhere among all the others, and as many become due, are taken and acknowledged. The scripts
  are driven straight, with a clock that runs as fast as needed; the engine's own count of its
  script time (INFO commandstats) and its process's processor time.

Ten million tasks need about 3 GB of memory for the store, as much on disk while it runs, and some
minutes to load.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from benchmarks import machine
from benchmarks.connections import CONNECTIONS, WARM_S, Broken, Cycle, Round, rate_of
from benchmarks.desk import Desk
from benchmarks.machine import median
from benchmarks.peers import tidewarden
from benchmarks.targets import Target, cpu_s
from tidewarden.queue import TaskSpec

LIMIT_WHOLE, LIMIT_ENGINE = 1.3, 2.5
BATCH = 5000
STEP = 100
ROUNDS = 4
DAY_MS = 86_400_000
BODY = b"x" * 136


@dataclass
class Store:
    """One node with so many tasks asleep, and what was measured there."""

    target: Target
    tasks: int
    desk: Desk
    now_ms: float
    """The engine's clock of the straight rounds: begins when the first sleeper is due."""
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    number: int = 0
    cycles: list[Round] = field(default_factory=list)
    engine_us: list[float] = field(default_factory=list)
    engine_cpu_us: list[float] = field(default_factory=list)

    def sleeper(self, first_ms: float) -> TaskSpec:
        """A task that is due within a day of ``first_ms``."""
        self.number += 1
        due_ms = int(first_ms) + self.dice.randrange(1, DAY_MS)
        return TaskSpec(
            payload=BODY, id=f"{self.number * 0x9E3779B97F4A7C15 % 2**64:016x}", at_ms=due_ms
        )

    def load(self) -> float:
        """Put all sleepers; how many seconds that took."""
        began = time.perf_counter()
        for begin in range(0, self.tasks, BATCH):
            self.desk.put(
                [self.sleeper(self.now_ms) for _ in range(min(BATCH, self.tasks - begin))]
            )
            if sys.stderr.isatty() and begin % (BATCH * 20) == 0:
                print(
                    f"\r{begin:,} of {self.tasks:,} tasks stored",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        return time.perf_counter() - began

    def settle(self) -> None:
        """
        Have the store rewrite its log now, and wait for it, so that it does not inside the rounds.
        """
        self.desk.client.bgrewriteaof()
        while self.desk.client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.2)

    def rewrites(self) -> int:
        """How often the store has rewritten its log."""
        return int(self.desk.client.info("persistence")["aof_rewrites"])

    def run_engine(self, seconds: float) -> None:
        """The life of delayed tasks for so long; a round's figures are kept."""
        step_ms = STEP * DAY_MS / self.tasks  # in this time as many are due as are put
        pid = self.target.pids["engine"]
        busy_us, used_s, count = self.desk.busy_us(), cpu_s(pid), 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            now_ms = int(self.now_ms)
            self.desk.put([self.sleeper(now_ms) for _ in range(STEP)], now_ms)
            self.now_ms += step_ms
            rows = self.desk.take(STEP, int(self.now_ms))
            if rows:
                self.desk.ack(rows, int(self.now_ms))
            count += len(rows)
        if not count:
            raise Broken("no task became due")
        self.engine_us.append((self.desk.busy_us() - busy_us) / count)
        self.engine_cpu_us.append((cpu_s(pid) - used_s) / count * 1e6)


def open_store(stack: contextlib.ExitStack, folder: Path, tasks: int) -> Store:
    """A node with ``tasks`` sleepers in the queue that the cycles go through."""
    target = stack.enter_context(tidewarden.started(folder, name=f"node-{tasks}"))
    with redis.Redis(target.host, target.port) as client:  # the node has to know its queue
        client.execute_command("Q.PUT", tidewarden.QUEUE, b"", "ID", "first")
        client.execute_command("Q.DELETE", tidewarden.QUEUE, "first")
    desk = Desk(target.engine, tidewarden.QUEUE)
    stack.callback(desk.close)
    return Store(target, tasks, desk, time.time() * 1000 + DAY_MS)


async def measure(stores: list[Store], seconds: float) -> None:
    """Rounds in turn: the whole cycle first, as the engine's clock runs ahead afterwards."""
    each = max(0.3, seconds / (2 * len(stores) * ROUNDS) - WARM_S)
    before = [store.rewrites() for store in stores]
    for number in range(ROUNDS):
        for store in stores[:: 1 if number % 2 == 0 else -1]:
            store.cycles.append(await rate_of(store.target, Cycle, CONNECTIONS, each))
    for number in range(ROUNDS):
        for store in stores[:: 1 if number % 2 == 0 else -1]:
            store.run_engine(each)
    for store, count in zip(stores, before, strict=True):
        if store.rewrites() > count:
            print(
                f"the store of {store.tasks:,} tasks rewrote its log {store.rewrites() - count}"
                " times inside the rounds"
            )


def report(stores: list[Store]) -> None:
    print(
        f"\n{'tasks stored':>12}  {'cycles/s':>8}  {'rounds':26}  {'engine µs a delayed task':>24} "
        f" {'processor µs':>12}"
    )
    for store in stores:
        rates = " ".join(f"{round_.rate:,.0f}" for round_ in store.cycles)
        print(
            f"{store.tasks:>12,}  {median([round_.rate for round_ in store.cycles]):>8,.0f} "
            f" {rates:26}  {median(store.engine_us):>24.1f}  {median(store.engine_cpu_us):>12.1f}"
        )
    few, many = stores
    whole = median([r.rate for r in few.cycles]) / median([r.rate for r in many.cycles])
    print(
        f"whole cycle, cost: {whole:.2f} ×;"
        f" {machine.against(LIMIT_WHOLE, whole, least=False, unit=' ×')}"
    )
    plain = [median([r.cpu_us["engine"] for r in store.cycles]) for store in stores]
    print(
        f"engine's processor time of a plain cycle: {plain[0]:.1f} and {plain[1]:.1f} µs,"
        f" {plain[1] / plain[0]:.2f} ×"
    )
    ratio = median(many.engine_us) / median(few.engine_us)
    print(
        f"engine time of a delayed task: {ratio:.2f} ×;"
        f" {machine.against(LIMIT_ENGINE, ratio, least=False, unit=' ×')}"
    )
    cpu = median(many.engine_cpu_us) / median(few.engine_cpu_us)
    print(f"  by its process's processor time: {cpu:.2f} ×")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("whether a task costs more among millions")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="tasks of the full store")
    parser.add_argument("--beside", type=int, default=10_000, help="tasks of the other one")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of the run, without loading"
    )
    options = parser.parse_args(argv)
    if min(options.tasks, options.beside) < 1000:
        parser.error("fewer than 1000 tasks tell nothing")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        stores = [open_store(stack, folder, count) for count in (options.beside, options.tasks)]
        machine.print_machine(folder, stores[0].target.version)
        print(
            f"{options.tasks:,} delayed tasks beside {options.beside:,}, body {len(BODY)} bytes,"
            " id 16"
        )
        for store in stores:
            took_s = store.load()
            used = tidewarden.memory_bytes(store.target)
            print(
                f"{store.tasks:,} tasks stored in {took_s:.1f} s; the store uses"
                f" {used / 1e6:,.0f} MB",
                flush=True,
            )
            store.settle()
        try:
            machine.run(measure(stores, options.seconds))
        except Broken as broken:
            raise SystemExit(str(broken)) from None
        report(stores)


if __name__ == "__main__":
    main()
