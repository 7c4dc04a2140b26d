"""
What happens to hosts whose stores replicate: to node, store or both, to disks, links and clocks.
"""

from __future__ import annotations

import asyncio
import signal

from support.faults.hosts import RAFT, STORE, HostCluster
from support.faults.storm import Fault, Storm, fault

from benchmarks.trios import power

HOSTS: dict[str, Fault] = {}


def cluster_of(storm: Storm) -> HostCluster:
    assert isinstance(storm.cluster, HostCluster)
    return storm.cluster


async def primary(storm: Storm) -> str:
    """Whose store takes writes; any when nobody says."""
    found = await asyncio.to_thread(cluster_of(storm).primary)
    return found or storm.dice.choice(list(storm.cluster.nodes))


async def members(storm: Storm) -> list[str]:
    """The others, in an order of the dice."""
    first = await primary(storm)
    others = [name for name in storm.cluster.nodes if name != first]
    storm.dice.shuffle(others)
    return others


# Processes.


@fault("kill the primary's store", weight=3, process=True, catalogue=HOSTS)
async def kill_the_store(storm: Storm) -> None:
    cluster_of(storm).stores[await primary(storm)].send(signal.SIGKILL)
    await storm.last()


@fault("kill the primary's store and its host process", process=True, catalogue=HOSTS)
async def kill_the_store_process(storm: Storm) -> None:
    cluster_of(storm).stores[await primary(storm)].kill()
    await storm.last()


@fault("kill the primary's node", weight=3, process=True, catalogue=HOSTS)
async def kill_the_node(storm: Storm) -> None:
    storm.cluster.nodes[await primary(storm)].kill()
    await storm.last()


@fault("kill the primary's host", weight=5, process=True, catalogue=HOSTS)
async def kill_the_host(storm: Storm) -> None:
    cluster_of(storm).kill_host(await primary(storm))
    await storm.last()


@fault("kill the leader's host", weight=3, process=True, catalogue=HOSTS)
async def kill_the_leaders_host(storm: Storm) -> None:
    cluster_of(storm).kill_host((await storm.leader()).name)
    await storm.last()


@fault("kill a member's host", weight=3, process=True, catalogue=HOSTS)
async def kill_a_host(storm: Storm) -> None:
    cluster_of(storm).kill_host((await members(storm))[0])
    await storm.last()


@fault("kill a member's store", process=True, catalogue=HOSTS)
async def kill_a_store(storm: Storm) -> None:
    cluster_of(storm).stores[(await members(storm))[0]].send(signal.SIGKILL)
    await storm.last()


@fault("kill a member's host, then the primary's", weight=3, process=True, catalogue=HOSTS)
async def kill_one_then_the_other(storm: Storm) -> None:
    first = await primary(storm)
    cluster_of(storm).kill_host((await members(storm))[0])
    await storm.last()
    cluster_of(storm).kill_host(first)
    await storm.last()


async def kill_held(storm: Storm, held: int) -> None:
    """
    The primary's stream to so many members is held for a moment, then its host dies with it.

    What was sent stays lost, as what a dead host's kernel has to send.
    """
    cluster, first = cluster_of(storm), await primary(storm)
    for name in (await members(storm))[:held]:
        cluster.cut(first, name, STORE)
    await asyncio.sleep(storm.dice.uniform(0.1, 0.35))
    cluster.kill_host(first)
    await storm.last()


@fault("hold a member's stream, then kill the primary's host", "network", 4, True, HOSTS)
async def kill_behind(storm: Storm) -> None:
    """Who waits for anything less than all members loses what that one lacks."""
    await kill_held(storm, 1)


@fault("hold both members' streams, then kill the primary's host", "network", 2, True, HOSTS)
async def kill_ahead(storm: Storm) -> None:
    """Whatever is answered meanwhile, the primary alone has."""
    await kill_held(storm, 2)


@fault("kill all stores at once", weight=1, process=True, catalogue=HOSTS)
async def kill_all_stores(storm: Storm) -> None:
    for store in cluster_of(storm).stores.values():
        store.send(signal.SIGKILL)
    await storm.last()


@fault("kill all hosts at once", weight=1, process=True, catalogue=HOSTS)
async def kill_all_hosts(storm: Storm) -> None:
    for name in storm.cluster.nodes:
        cluster_of(storm).kill_host(name)


@fault("pause the primary's store", weight=3, process=True, catalogue=HOSTS)
async def pause_the_store(storm: Storm) -> None:
    stores, first = cluster_of(storm).stores, await primary(storm)
    stores[first].send(signal.SIGSTOP)
    await storm.last()
    stores[first].send(signal.SIGCONT)


@fault("pause the primary's node", weight=2, process=True, catalogue=HOSTS)
async def pause_the_node(storm: Storm) -> None:
    storm.cluster.nodes[await primary(storm)].freeze()
    await storm.last()


@fault("pause the primary's host", weight=3, process=True, catalogue=HOSTS)
async def pause_the_host(storm: Storm) -> None:
    cluster_of(storm).freeze_host(await primary(storm))
    await storm.last()


@fault("pause a member's host", process=True, catalogue=HOSTS)
async def pause_a_host(storm: Storm) -> None:
    cluster_of(storm).freeze_host((await members(storm))[0])
    await storm.last()


@fault("stop the primary's node (SIGTERM)", process=True, catalogue=HOSTS)
async def stop_the_node(storm: Storm) -> None:
    await asyncio.to_thread(storm.cluster.nodes[await primary(storm)].terminate, 60.0)


@fault("switch over", weight=2, catalogue=HOSTS)
async def switch_over(storm: Storm) -> None:
    node = await storm.someone()
    await asyncio.to_thread(refused_or_done, node)
    await storm.last(0.0)


def refused_or_done(node: object) -> None:
    """A second fault may be in its way; then it says so."""
    import redis

    try:
        node.say("R.SWITCHOVER")  # type: ignore[attr-defined]
    except (redis.RedisError, OSError) as error:
        print(f"switchover: {error}")


# Disks, power, clocks.


@fault("lose the disk of the primary's store", weight=2, process=True, catalogue=HOSTS)
async def lose_the_disk(storm: Storm) -> None:
    first = await primary(storm)
    cluster_of(storm).kill_host(first)
    await storm.last()
    cluster_of(storm).lose_disk(first)


@fault("lose the disk of a member's store", weight=2, process=True, catalogue=HOSTS)
async def lose_a_disk(storm: Storm) -> None:
    name = (await members(storm))[0]
    cluster_of(storm).kill_host(name)
    await storm.last()
    cluster_of(storm).lose_disk(name)


async def cut_the_power(storm: Storm, names: list[str]) -> None:
    """Those hosts at once: what they wrote in the last second is gone, but for what was synced."""
    cluster = cluster_of(storm)
    synced = {name: power.logs(cluster.store_folder(name)) for name in names}
    await asyncio.sleep(1.1)
    for name in names:
        cluster.kill_host(name)
    for name in names:
        cluster.cut_power(name, synced[name])


@fault("cut the power of the primary's host", weight=3, process=True, catalogue=HOSTS)
async def cut_the_primarys_power(storm: Storm) -> None:
    await cut_the_power(storm, [await primary(storm)])
    await storm.last()


@fault("cut the power of all hosts", "synced disk", weight=2, process=True, catalogue=HOSTS)
async def cut_all_power(storm: Storm) -> None:
    await cut_the_power(storm, list(storm.cluster.nodes))


@fault("fill the disk of the primary's host", "small disk", catalogue=HOSTS)
async def fill_the_disk(storm: Storm) -> None:
    cluster_of(storm).disks[await primary(storm)].fill()
    await storm.last()


@fault("fill the disk of a member's host", "small disk", catalogue=HOSTS)
async def fill_a_disk(storm: Storm) -> None:
    cluster_of(storm).disks[(await members(storm))[0]].fill()
    await storm.last()


@fault("slow disk of the primary's store", "synced disk", catalogue=HOSTS)
async def slow_the_disk(storm: Storm) -> None:
    cluster_of(storm).slow[await primary(storm)].delay(storm.dice.randrange(20, 400))
    await storm.last()


@fault("slow disk of a member's store", "synced disk", catalogue=HOSTS)
async def slow_a_disk(storm: Storm) -> None:
    cluster_of(storm).slow[(await members(storm))[0]].delay(storm.dice.randrange(20, 1500))
    await storm.last()


@fault("the clock of the primary's store steps", "clock", 1, catalogue=HOSTS)
async def step_the_clock(storm: Storm) -> None:
    cluster_of(storm).step_clock(await primary(storm), storm.dice.choice((-20, -8, 8, 20)))
    await storm.last()


@fault("the primary's store falls over to one whose clock is behind", "clock", 2, True, HOSTS)
async def fall_over_to_the_past(storm: Storm) -> None:
    first = await primary(storm)
    for name in await members(storm):
        cluster_of(storm).step_clock(name, -8)
    await asyncio.sleep(0.2)
    cluster_of(storm).kill_host(first)
    await storm.last()


# Links.


async def cut(storm: Storm, name: str, *, says: bool, hears: bool, port: int = 0) -> None:
    """That host and the others: what it says is lost, what it is told, or both."""
    for other in storm.cluster.nodes:
        if other != name and says:
            cluster_of(storm).cut(name, other, port)
        if other != name and hears:
            cluster_of(storm).cut(other, name, port)
    await storm.last()


LINKS = (
    ("cut the primary's host off", 4, True, True, 0),
    ("one-way: nobody hears the primary's host", 3, True, False, 0),
    ("one-way: the primary's host hears nobody", 3, False, True, 0),
    ("Raft only: the primary's node is cut off", 3, True, True, RAFT),
    ("Raft only, one-way: nobody hears the primary's node", 2, True, False, RAFT),
    ("stores only: the primary's store is cut off", 3, True, True, STORE),
    ("stores only, one-way: nobody hears the primary's store", 3, True, False, STORE),
    ("stores only, one-way: the primary's store hears nobody", 2, False, True, STORE),
    ("cut a member's host off", 2, True, True, 0),
    ("stores only: one member is cut off", 2, True, True, STORE),
)
"""Name, weight, whether what it says and what it hears is lost, and of which port alone."""


def enter(name: str, weight: int, says: bool, hears: bool, port: int) -> None:
    """Put a fault of the table into the catalogue."""

    async def act(storm: Storm) -> None:
        struck = (await members(storm))[0] if "member" in name else await primary(storm)
        await cut(storm, struck, says=says, hears=hears, port=port)

    fault(name, "network", weight, catalogue=HOSTS)(act)


for row in LINKS:
    enter(*row)


@fault("one link of three", "network", 2, catalogue=HOSTS)
async def one_link(storm: Storm) -> None:
    first, other = await primary(storm), (await members(storm))[0]
    cluster_of(storm).cut(first, other)
    cluster_of(storm).cut(other, first)
    await storm.last()


@fault("every host alone", "network", 1, catalogue=HOSTS)
async def all_alone(storm: Storm) -> None:
    assert storm.cluster.network
    for name in storm.cluster.nodes:
        storm.cluster.network.isolate(name)
    await storm.last()
