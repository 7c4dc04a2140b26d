"""
put → take → ack in batches through a client, beside the same scripts driven straight from redis-py.

    python -m benchmarks.batches [--seconds 15] [--batch 100]

One client, one request under way: a batch of puts, one take of as many, one ack of them all.
Through the SDK that is ``put_many``, ``take_many``, ``ack_many`` of its asyncio client; through
redis-py a pipeline of Q.PUT and two commands; both at a node's door. Straight, the product's own
scripts are run by redis-py on the same embedded store, without a node between. Rounds take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable

import redis
import uvloop

from benchmarks import machine
from benchmarks.connections import PAYLOAD, Broken
from benchmarks.desk import Desk
from benchmarks.machine import median
from benchmarks.peers import tidewarden
from benchmarks.targets import Target, cpu_s
from tidewarden.client import AsyncClient
from tidewarden.queue import TaskSpec

LIMIT = 0.5
ROUNDS = 3
QUEUE = "bench.batches"

Batch = Callable[[int], None]
"""Puts, takes and acknowledges so many tasks."""


def through_scripts(target: Target) -> Batch:
    """The scripts straight: put, take, ack."""
    desk = Desk(target.engine, "bench.straight")
    ids = map(str, itertools.count())

    def batch(size: int) -> None:
        desk.put([TaskSpec(payload=PAYLOAD, id=next(ids)) for _ in range(size)])
        rows = desk.take(size)
        if desk.ack(rows) != size:
            raise Broken(f"straight: {len(rows)} of {size} tasks came back")

    return batch


def through_sdk(target: Target, runner: asyncio.Runner, stack: contextlib.ExitStack) -> Batch:
    """Our client at the door."""
    client = AsyncClient(f"redis://{target.host}:{target.port}")
    stack.callback(lambda: runner.run(client.close()))
    queue = client.queue("bench.sdk")

    async def one(size: int) -> None:
        await queue.put_many([PAYLOAD] * size)
        tasks = await queue.take_many(size, wait_ms=5000)
        if sum(await queue.ack_many(tasks)) != size:
            raise Broken(f"SDK: {len(tasks)} of {size} tasks came back")

    return lambda size: runner.run(one(size))


def through_pipeline(target: Target) -> Batch:
    """A plain Redis client at the door."""
    client = redis.Redis(
        target.host,
        target.port,
        single_connection_client=True,
        socket_timeout=None,
        retry=None,
        protocol=2,
    )
    ids = map(str, itertools.count())

    def batch(size: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for _ in range(size):
            pipeline.execute_command("Q.PUT", QUEUE, PAYLOAD, "ID", next(ids))
        pipeline.execute()
        rows = client.execute_command("Q.TAKE", "COUNT", size, "WAIT", 5000, "FROM", QUEUE)
        held = client.execute_command("Q.ACK", QUEUE, *(word for row in rows for word in row[1:3]))
        if (sum(held) if isinstance(held, list) else held == b"OK") != size:
            raise Broken(f"redis-py: {len(rows)} of {size} tasks came back")

    return batch


def rate(target: Target, batch: Batch, size: int, seconds: float) -> tuple[float, dict[str, float]]:
    """Tasks a second, and processor µs a task by part."""

    def used() -> dict[str, float]:
        return {part: cpu_s(pid) for part, pid in target.pids.items()} | {
            "client": time.process_time()
        }

    batch(size)
    before, began, count = used(), time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        batch(size)
        count += size
    return count / passed, {
        part: (value - before[part]) / count * 1e6 for part, value in used().items()
    }


def measure(
    target: Target, runner: asyncio.Runner, stack: contextlib.ExitStack, size: int, seconds: float
) -> dict[str, list[tuple[float, dict[str, float]]]]:
    """Rounds in turn."""
    ways = {
        "scripts": through_scripts(target),
        "SDK": through_sdk(target, runner, stack),
        "redis-py": through_pipeline(target),
    }
    each = max(0.2, seconds / (ROUNDS * len(ways)))
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(rate(target, ways[name], size, each))
    return found


def report(found: dict[str, list[tuple[float, dict[str, float]]]]) -> None:
    print(f"\n{'':10}  {'tasks/s':>8}  {'rounds':26}  processor µs per task")
    straight = median([rate for rate, _ in found["scripts"]])
    for name, rounds in found.items():
        parts = {part: median([used[part] for _, used in rounds]) for part in rounds[0][1]}
        shown = ", ".join(f"{part} {value:.1f}" for part, value in parts.items())
        print(
            f"{name:10}  {median([rate for rate, _ in rounds]):>8,.0f}"
            f"  {' '.join(f'{rate:,.0f}' for rate, _ in rounds):26}  {shown}"
        )
    for name, rounds in found.items():
        if name != "scripts":
            ratio = median([rate for rate, _ in rounds]) / straight
            limit = f"; {machine.against(LIMIT, ratio, least=True)}" if name == "SDK" else ""
            print(f"{'ratio':10}  {ratio:>8.2f}  {name} to the scripts{limit}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments(
        "put → take → ack in batches, beside the scripts driven straight from redis-py"
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="length of the whole run, without starting up"
    )
    parser.add_argument("--batch", type=int, default=100, help="tasks of a batch, at most 1000")
    options = parser.parse_args(argv)
    with (
        machine.own_folder(options.folder) as folder,
        tidewarden.started(folder) as target,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        contextlib.ExitStack() as stack,
    ):
        machine.print_machine(folder, target.version, f"redis-py {redis.__version__}")
        print(
            f"batches of {options.batch}, payload {len(PAYLOAD)} bytes, ids of the caller's, one"
            " client"
        )
        report(measure(target, runner, stack, options.batch, options.seconds))


if __name__ == "__main__":
    main()
