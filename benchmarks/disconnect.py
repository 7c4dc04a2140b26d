"""
How soon a task is with another consumer when its first one goes, and how soon a cluster sweeps again when its leader dies.

    python -m benchmarks.disconnect [--rounds 500] [--kills 6]

- *connection closed*: one consumer holds a task, another waits; the first hangs up. Beside beanstalkd and Tarantool.
- *consumer killed*: the same, but the connection belongs to a process that is ended by SIGKILL.
- *node killed*: ``tidewarden up`` runs three nodes; a consumer at one of them holds ten tasks, another waits at another; the node
  is ended by SIGKILL. In turns it is the leader and a follower; time until the last of the ten has come.
- *leader killed*: until another node sweeps under a new epoch.

No peer has nodes, so the last two stand beside their limits alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.cluster import Cluster, client_of, cluster_up
from benchmarks.connections import Board, Broken, Connection, connected
from benchmarks.machine import median, percentile
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.targets import Target, start_peers

LIMIT_CLOSED_MEDIAN_MS, LIMIT_CLOSED_P99_MS = 1.0, 10.0
LIMIT_NODE_S = 4.0
LIMIT_LEADER_MEDIAN_S, LIMIT_LEADER_P99_S = 0.8, 2.0
HELD = 10
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
    target: Target, rounds: int, way: Callable[[Connection], contextlib.AbstractContextManager[Callable[[], None]]]
) -> list[float]:
    """
    Milliseconds from the end of a consumer that holds a task until another one has it, round by round.

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


# --- a cluster: the node goes


async def collect(cluster: Cluster, port: int, count: int) -> float:
    """Take and acknowledge ``count`` tasks at a node; when the last had come."""
    async with client_of(port, cluster.secret) as client:
        while count:
            rows = await client.execute_command("Q.TAKE", "COUNT", count, "WAIT", 60_000, "FROM", "bench.kills")
            came = time.perf_counter()
            count -= len(rows)
            for queue, task_id, lease, *_ in rows:
                await client.execute_command("Q.ACK", queue, task_id, lease)
    return came


async def kill_node(cluster: Cluster, kill_leader: bool) -> tuple[float, float | None]:
    """
    Kill a node whose consumer holds tasks: seconds until another consumer has them, and until another node sweeps.

    Raises: Broken.
    """
    leader, epoch = await cluster.calm()
    victim = leader if kill_leader else next(port for port in cluster.ports if port != leader)
    rest = [port for port in cluster.ports if port != victim]
    status = await cluster.status(victim)
    if status is None:
        raise Broken(f"the node at {victim} does not answer")
    async with client_of(victim, cluster.secret) as holder:
        for _ in range(HELD):
            await holder.execute_command("Q.PUT", "bench.kills", b"x", "LEASE", 600_000)
        held = await holder.execute_command("Q.TAKE", "COUNT", HELD, "FROM", "bench.kills")
        if len(held) != HELD:
            raise Broken(f"{len(held)} of {HELD} tasks could be taken")
        collected = asyncio.create_task(collect(cluster, rest[-1], HELD))
        try:
            await asyncio.sleep(0.1)  # it waits
            began = time.perf_counter()
            os.kill(int(status["pid"]), signal.SIGKILL)
            swept: float | None = None
            async with asyncio.timeout(ROUND_S):
                while kill_leader and await cluster.leader(rest, epoch) is None:
                    await asyncio.sleep(0.005)
                swept = time.perf_counter() - began if kill_leader else None
                return await collected - began, swept
        except TimeoutError:
            raise Broken(f"tasks or the sweep did not come back within {ROUND_S:g} s of a kill") from None
        finally:
            collected.cancel()
            await asyncio.gather(collected, return_exceptions=True)


async def kills(folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Seconds to the tasks, and to the sweep, of ``count`` kills, the leader's first."""
    tasks: list[float] = []
    sweeps: list[float] = []
    async with cluster_up(folder) as cluster:
        for number in range(count):
            took_s, swept_s = await kill_node(cluster, kill_leader=number % 2 == 0)
            tasks.append(took_s)
            if swept_s is not None:
                sweeps.append(swept_s)
    return tasks, sweeps


# --- the run


def line(name: str, found: list[float], unit: str) -> None:
    figures = (median(found), percentile(found, 0.99), max(found))
    print(f"{name:34}  {len(found):>6}  " + "  ".join(f"{figure:>8.2f}" for figure in figures) + f"  {unit}")


def report_deaths(found: dict[tuple[str, str], list[float]]) -> None:
    for (what, name), values in found.items():
        line(f"{what}, {name}", values, "ms")
    mine = found["connection closed", "tidewarden"]
    for (what, name), values in found.items():
        if name != "tidewarden":
            ratio = median(found[what, "tidewarden"]) / median(values)
            print(f"  ratio of medians, {what}: {ratio:.2f} of {name}")
    print(f"  median: {machine.against(LIMIT_CLOSED_MEDIAN_MS, median(mine), least=False, unit=' ms')}")
    print(f"  p99: {machine.against(LIMIT_CLOSED_P99_MS, percentile(mine, 0.99), least=False, unit=' ms')}", flush=True)


def report_kills(tasks: list[float], sweeps: list[float]) -> None:
    line("node killed → its tasks", tasks, "s")
    print(f"  max: {machine.against(LIMIT_NODE_S, max(tasks), least=False, unit=' s')}")
    line("leader killed → sweep", sweeps, "s")
    print(f"  median: {machine.against(LIMIT_LEADER_MEDIAN_S, median(sweeps), least=False, unit=' s')}")
    print(f"  p99: {machine.against(LIMIT_LEADER_P99_S, percentile(sweeps, 0.99), least=False, unit=' s')}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("how soon a task is with another consumer when its first one goes")
    parser.add_argument("--rounds", type=int, default=500, help="closed connections; a tenth as many killed consumers")
    parser.add_argument("--kills", type=int, default=6, help="killed nodes, about ten seconds each; 0: none")
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        ours = stack.enter_context(tidewarden.started(folder))
        peers = start_peers(stack, lambda: beanstalkd.started(folder), lambda: tarantool.started(folder))
        machine.print_machine(folder, *(target.version for target in (ours, *peers)))
        print(f"\n{'':34}  {'rounds':>6}  {'median':>8}  {'p99':>8}  {'max':>8}")

        async def all_deaths() -> dict[tuple[str, str], list[float]]:
            found = {}
            for target in (ours, *peers):
                found["connection closed", target.name] = await deaths(target, options.rounds, hang_up)
            for target in (ours, *peers):
                found["consumer killed", target.name] = await deaths(target, max(1, options.rounds // 10), in_a_process)
            return found

        try:
            if options.rounds:
                report_deaths(machine.run(all_deaths()))
            if options.kills:
                report_kills(*machine.run(kills(folder, options.kills)))
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
