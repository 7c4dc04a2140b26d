"""
How fast the SDK's worker works a queue off, and how many writes that takes it.

    python -m benchmarks.worker [--tasks 10000] [--concurrency 1 10]

Handlers that do nothing, on a lone node with its embedded store: what is measured is taking and
acknowledging. A write counts when bytes are given to a connection of the SDK; each is at least one
system call here and one read at the node.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest import mock

import uvloop

from benchmarks import machine
from benchmarks.connections import PAYLOAD
from benchmarks.peers import tidewarden
from benchmarks.targets import Target, cpu_s
from tidewarden.client import AsyncClient, AsyncTask, Worker
from tidewarden.client.connection import ClientConnection

QUEUE = "bench.worker"
LIMIT = 1.1  # writes a task, one at a time


class Counted:
    """A transport that counts its writes."""

    count = 0

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, data: bytes) -> None:
        Counted.count += 1
        self._real.write(data)


class CountedConnection(ClientConnection):
    """The SDK's connection over such a transport."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Counted(transport))


async def worked_off(url: str, concurrency: int, tasks: int) -> None:
    """Work until the last of so many tasks is acknowledged."""
    worker = Worker(url, concurrency=concurrency)
    left = tasks

    @worker.task(QUEUE)
    async def nothing(_task: AsyncTask) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.stop()

    await worker.serve()


def rate(
    target: Target, runner: asyncio.Runner, concurrency: int, tasks: int
) -> tuple[float, float, dict[str, float]]:
    """Tasks a second, writes a task, and processor µs a task by part."""
    url = f"redis://{target.host}:{target.port}"

    async def put() -> None:
        async with AsyncClient(url) as client:
            await client.queue(QUEUE).put_many([PAYLOAD] * tasks)

    def used() -> dict[str, float]:
        return {part: cpu_s(pid) for part, pid in target.pids.items()} | {
            "worker": time.process_time()
        }

    runner.run(put())
    before, writes, began = used(), Counted.count, time.perf_counter()
    runner.run(worked_off(url, concurrency, tasks))
    passed = time.perf_counter() - began
    parts = {part: (value - before[part]) / tasks * 1e6 for part, value in used().items()}
    return tasks / passed, (Counted.count - writes) / tasks, parts


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("a queue worked off by the SDK's worker, whose handlers do nothing")
    parser.add_argument("--tasks", type=int, default=10_000, help="of each round")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 10], help="tasks at a time"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    options = parser.parse_args(argv)
    with (
        mock.patch("tidewarden.client.endpoints.ClientConnection", CountedConnection),
        machine.own_folder(options.folder) as folder,
        tidewarden.started(folder) as target,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        machine.print_machine(folder, target.version)
        print(
            f"{options.tasks:,} tasks a round, payload {len(PAYLOAD)} bytes, handlers that do"
            " nothing"
        )
        print(f"\n{'at a time':>9}  {'tasks/s':>8}  {'writes/task':>11}  processor µs per task")
        for concurrency in options.concurrency:
            found = [
                rate(target, runner, concurrency, options.tasks) for _ in range(options.rounds)
            ]
            parts = {
                part: machine.median([used[part] for *_, used in found]) for part in found[0][2]
            }
            shown = ", ".join(f"{part} {value:.1f}" for part, value in parts.items())
            writes = machine.median([count for _, count, _ in found])
            limit = (
                f"; writes {machine.against(LIMIT, writes, least=False)}"
                if concurrency == 1
                else ""
            )
            speed = machine.median([speed for speed, *_ in found])
            print(f"{concurrency:>9}  {speed:>8,.0f}  {writes:>11.2f}  {shown}{limit}")


if __name__ == "__main__":
    main()
