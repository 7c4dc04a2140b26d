"""
What happens to hosts whose stores replicate, and for how long puts are not answered then.

A fault names the hosts whose writers go on, and is mended once the gap was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gaps, machine
from benchmarks.connections import Broken
from benchmarks.machine import median, percentile
from benchmarks.network import Network, missing
from benchmarks.peers.tidewarden import QUEUE, TidewardenConnection
from benchmarks.targets import Target
from benchmarks.trios import power
from benchmarks.trios.tidewarden import ADMIN, Nodes, nodes
from benchmarks.trios.trio import HOSTS

STORE = 3
"""A store's port, from its node's base."""
CALM_S, WATCHED_S, SYNC_S = 1.0, 4.0, 1.1
SETTLED_S = 90.0


@dataclass
class Scene:
    """Three nodes with their stores, and the network between them where there can be one."""

    nodes: Nodes
    network: Network | None
    dice: random.Random

    def others(self, number: int) -> list[int]:
        return [one for one in range(HOSTS) if one != number]

    def name(self, number: int) -> str:
        return self.nodes.servers[number].name

    def send(self, number: int, how: signal.Signals) -> None:
        """A signal to all processes of a host at once."""
        for pid in self.nodes.servers[number].processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def start(self, number: int) -> None:
        self.nodes.servers[number].start()

    def target(self, number: int) -> Target:
        server = self.nodes.servers[number]
        auth = (ADMIN, self.nodes.secret)
        return Target(server.name, server.host, server.port, {}, TidewardenConnection, auth)


Mend = Callable[[], object]
Strike = Callable[[Scene, int], Awaitable[tuple[list[int], Mend]]]
"""Given the primary: whose writers go on, and what ends the fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind, and the limits of its gaps in seconds."""

    strike: Strike
    median_s: float
    p99_s: float
    needs_network: bool = False


def everywhere() -> list[int]:
    return list(range(HOSTS))


async def store_killed(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    os.kill(await asyncio.to_thread(scene.nodes.store_pid, primary), signal.SIGKILL)
    return everywhere(), bool


async def host_killed(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    scene.nodes.servers[primary].kill()
    return scene.others(primary), lambda: scene.start(primary)


async def power_cut(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    """What was written in its last second, and was not synced, is not there any more."""
    folder = scene.nodes.store_folder(primary)
    synced = power.logs(folder)
    await asyncio.sleep(SYNC_S)
    scene.nodes.servers[primary].kill()

    def mend() -> None:
        power.cut(folder, synced)
        scene.start(primary)

    return scene.others(primary), mend


async def disk_lost(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    scene.nodes.servers[primary].kill()

    def mend() -> None:
        shutil.rmtree(scene.nodes.store_folder(primary))
        scene.start(primary)

    return scene.others(primary), mend


async def cut_off(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    assert scene.network
    await asyncio.to_thread(scene.network.isolate, scene.name(primary))
    return scene.others(primary), scene.network.heal


async def store_frozen(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    pid = await asyncio.to_thread(scene.nodes.store_pid, primary)
    os.kill(pid, signal.SIGSTOP)

    def mend() -> None:
        with contextlib.suppress(ProcessLookupError):  # its host has ended it
            os.kill(pid, signal.SIGCONT)

    return everywhere(), mend


async def host_frozen(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    scene.send(primary, signal.SIGSTOP)
    return scene.others(primary), lambda: scene.send(primary, signal.SIGCONT)


async def replication_cut(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    """What the primary's store sends is lost, what it is sent is not."""
    assert scene.network
    port = scene.nodes.servers[primary].port + STORE
    for other in scene.others(primary):
        scene.network.cut(scene.name(primary), scene.name(other), served=port)
    return everywhere(), scene.network.heal


async def member_killed(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    victim = scene.dice.choice(scene.others(primary))
    scene.nodes.servers[victim].kill()
    return scene.others(victim), lambda: scene.start(victim)


async def switchover(scene: Scene, primary: int) -> tuple[list[int], Mend]:
    def ask() -> None:
        with scene.nodes.client(primary, socket_timeout=30) as client:
            client.execute_command("R.SWITCHOVER")

    await asyncio.to_thread(ask)
    return everywhere(), bool


FAULTS = {
    "store killed": Fault(store_killed, 0.5, 1.5),
    "host killed": Fault(host_killed, 1.0, 2.0),
    "power cut": Fault(power_cut, 1.0, 2.0),
    "disk lost": Fault(disk_lost, 1.0, 2.0),
    "cut off": Fault(cut_off, 1.0, 2.0, needs_network=True),
    "store frozen": Fault(store_frozen, 1.5, 3.0),
    "host frozen": Fault(host_frozen, 1.5, 3.0),
    "replication cut one way": Fault(replication_cut, 3.0, 3.0, needs_network=True),
    "member killed": Fault(member_killed, 0.9, 1.5),
    "switchover": Fault(switchover, 0.1, 0.3),
}


@contextlib.asynccontextmanager
async def scene(folder: Path, seed: int) -> AsyncIterator[Scene]:
    """Three nodes that serve, each in a network namespace of its own where there can be one."""
    names = [f"n{number}" for number in range(HOSTS)]
    with contextlib.ExitStack() as stack:
        network = None
        if reason := missing():
            print(f"no cuts: {reason}")
        else:
            network = Network(names)
            stack.callback(network.close)
        hosts = [network.addresses[name] for name in names] if network else None

        def inside(number: int) -> list[str]:
            place = Path(network.namespace(names[number])).name if network else ""
            return ["ip", "netns", "exec", place] if place else []

        made = stack.enter_context(nodes(folder, {}, hosts, inside))
        with made.client(0, socket_timeout=10) as client:
            client.execute_command("Q.CONFIG", QUEUE, "SET", "durability", "quorum")
        yield Scene(made, network, random.Random(seed))


async def settled(found: Scene) -> int:
    """Wait until all stores are in sync; the primary. Raises: Broken."""
    until = time.monotonic() + SETTLED_S
    while not await asyncio.to_thread(found.nodes.whole):
        if time.monotonic() > until:
            said = [found.nodes.status(number) for number in range(HOSTS)]
            raise Broken(f"not all stores came back into the set within {SETTLED_S:g} s: {said}")
        await asyncio.sleep(0.2)
    return await asyncio.to_thread(found.nodes.primary)


async def once(found: Scene, fault: Fault) -> float:
    """One fault; the longest gap at a host whose writers go on. Raises: Broken."""
    primary = await settled(found)
    targets = {number: found.target(number) for number in everywhere()}
    async with gaps.writing(targets) as logs:
        await asyncio.sleep(CALM_S)
        since = time.perf_counter()
        hosts, mend = await fault.strike(found, primary)
        try:
            seen = {number: logs[number] for number in hosts}
            return await gaps.gap(seen, since, WATCHED_S)
        finally:
            await asyncio.to_thread(mend)


async def measure(folder: Path, count: int, only: list[str], seed: int) -> None:
    """So many faults of each kind, a row and its limits after each. Raises: Broken."""
    print(f"\n{HOSTS} nodes with a store each, 4 writers at each host, durability quorum")
    machine.print_heads()
    async with scene(folder, seed) as found:
        for name in only or FAULTS:
            fault = FAULTS[name]
            if fault.needs_network and not found.network:
                continue
            seen = [await once(found, fault) for _ in range(count)]
            machine.line(name, seen, "s")
            p99_s = percentile(seen, 0.99)
            of_median = machine.against(fault.median_s, median(seen), least=False, unit=" s")
            of_p99 = machine.against(fault.p99_s, p99_s, least=False, unit=" s")
            print(f"  median: {of_median}; p99: {of_p99}", flush=True)
