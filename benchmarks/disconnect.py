"""
Measures how soon another consumer has a task when its first one goes.

What becomes of it when a node goes: ``benchmarks.failover``.

    python -m benchmarks.disconnect [--rounds 500]

- *connection closed*: one consumer holds a task, another waits; the first hangs up. Beside
  beanstalkd and Tarantool.
- *consumer killed*: the same, but the connection belongs to a process that is ended by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import machine
from benchmarks.connections import Board, Broken, Connection, connected
from benchmarks.machine import median, percentile
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.targets import Target, start_peers

LIMIT_CLOSED_MEDIAN_MS, LIMIT_CLOSED_P99_MS = 1.0, 10.0
ROUND_S = 30.0


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
) -> list[float]:
    """
    Return ms from the end of a consumer that holds a task until another one has it, round by round.

    Raises: Broken.
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
    return found


# --- the run


def report_deaths(found: dict[tuple[str, str], list[float]]) -> None:
    for (what, name), values in found.items():
        machine.line(f"{what}, {name}", values, "ms")
    mine = found["connection closed", "tidewarden"]
    for (what, name), values in found.items():
        if name != "tidewarden":
            ratio = median(found[what, "tidewarden"]) / median(values)
            print(f"  ratio of medians, {what}: {ratio:.2f} of {name}")
    print(
        "  median:"
        f" {machine.against(LIMIT_CLOSED_MEDIAN_MS, median(mine), least=False, unit=' ms')}"
    )
    print(
        "  p99:"
        f" {machine.against(LIMIT_CLOSED_P99_MS, percentile(mine, 0.99), least=False, unit=' ms')}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("how soon a task is with another consumer when its first one goes")
    parser.add_argument(
        "--rounds",
        type=int,
        default=500,
        help="closed connections; a tenth as many killed consumers",
    )
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        ours = stack.enter_context(tidewarden.started(folder))
        peers = start_peers(
            stack, lambda: beanstalkd.started(folder), lambda: tarantool.started(folder)
        )
        machine.print_machine(folder, *(target.version for target in (ours, *peers)))
        machine.print_heads()

        async def all_deaths() -> dict[tuple[str, str], list[float]]:
            found = {}
            for target in (ours, *peers):
                found["connection closed", target.name] = await deaths(
                    target, options.rounds, hang_up
                )
            for target in (ours, *peers):
                found["consumer killed", target.name] = await deaths(
                    target, max(1, options.rounds // 10), in_a_process
                )
            return found

        try:
            report_deaths(machine.run(all_deaths()))
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
