"""The faults, each with its cure, drawn by a seed: what happens to processes, links, disks, clocks and the provider."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from live.counting_provider import CountingProvider
from live.faulty import FaultyCluster
from live.harness import START_S, Node, until

Act = Callable[["Storm"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. ``needs``: the part of a :class:`FaultyCluster` that may be absent. ``weight``: how often it is drawn."""

    name: str
    act: Act
    needs: str = ""
    weight: int = 2
    process: bool = False
    """It ends or stops processes; of two faults at a time at most one does."""


CATALOGUE: dict[str, Fault] = {}


def fault(name: str, needs: str = "", weight: int = 2, process: bool = False) -> Callable[[Act], Act]:
    """Put a fault into the catalogue."""

    def enter(act: Act) -> Act:
        CATALOGUE[name] = Fault(name, act, needs, weight, process)
        return act

    return enter


@dataclass
class Storm:
    """Brings faults upon a cluster. ``injected``: how many of each kind."""

    cluster: FaultyCluster
    dice: random.Random
    provider: CountingProvider | None = None
    longest_s: float = 4.0
    injected: Counter[str] = field(default_factory=Counter)

    def able(self) -> list[Fault]:
        """The faults that can be brought about here."""
        return [one for one in CATALOGUE.values() if one.needs not in self.cluster.absent]

    def round(self) -> Iterator[Fault]:
        """Every kind once, in an order of the dice, then any, by weight."""
        first = self.able()
        self.dice.shuffle(first)
        yield from first
        while True:
            yield from self.dice.choices(self.able(), [one.weight for one in self.able()])

    async def strike(self, *faults: Fault) -> None:
        """These faults at a time, each with its end; what they killed is started again."""
        for one in faults:
            self.injected[one.name] += 1
        try:
            await asyncio.gather(*(one.act(self) for one in faults))
        finally:
            self.cluster.calm()

    async def last(self, low_s: float = 0.3) -> None:
        """As long as a fault goes on."""
        await asyncio.sleep(self.dice.uniform(low_s, self.longest_s))

    async def leader(self) -> Node:
        """Who leads; any node when nobody does."""
        found = await asyncio.to_thread(self.cluster.sweeper)
        return found[0] if found else self.dice.choice(list(self.cluster.nodes.values()))

    async def follower(self) -> Node:
        leader = await self.leader()
        return self.dice.choice([node for node in self.cluster.nodes.values() if node is not leader])

    async def someone(self) -> Node:
        return self.dice.choice(list(self.cluster.nodes.values()))


# Processes.


@fault("kill the leader", weight=4, process=True)
async def kill_the_leader(storm: Storm) -> None:
    (await storm.leader()).kill()
    await storm.last()


@fault("kill a follower", weight=3, process=True)
async def kill_a_follower(storm: Storm) -> None:
    (await storm.follower()).kill()
    await storm.last()


@fault("pause the leader", weight=4, process=True)
async def pause_the_leader(storm: Storm) -> None:
    (await storm.leader()).freeze()
    await storm.last()


@fault("pause a follower", process=True)
async def pause_a_follower(storm: Storm) -> None:
    (await storm.follower()).freeze()
    await storm.last()


@fault("kill every node", weight=1, process=True)
async def kill_every_node(storm: Storm) -> None:
    for node in storm.cluster.nodes.values():
        node.kill()


@fault("kill the store", weight=3, process=True)
async def kill_the_store(storm: Storm) -> None:
    storm.cluster.valkey.kill()
    await storm.last(0.0)
    hidden = storm.cluster.valkey.launch()
    await asyncio.to_thread(storm.cluster.valkey.serve, hidden)


@fault("pause the store", process=True)
async def pause_the_store(storm: Storm) -> None:
    storm.cluster.valkey.freeze()
    await storm.last()
    storm.cluster.valkey.thaw()


@fault("stop the leader (SIGTERM)", weight=1, process=True)
async def stop_the_leader(storm: Storm) -> None:
    await asyncio.to_thread((await storm.leader()).terminate, 40.0)  # whatever else goes on: END_S, and then some


# Links between nodes.


@fault("cut the leader off from its peers", "network", 3)
async def isolate_the_leader(storm: Storm) -> None:
    assert storm.cluster.network
    storm.cluster.network.isolate((await storm.leader()).name)
    await storm.last()


@fault("cut a follower off from its peers", "network")
async def isolate_a_follower(storm: Storm) -> None:
    assert storm.cluster.network
    storm.cluster.network.isolate((await storm.follower()).name)
    await storm.last()


@fault("one-way: nobody hears the leader", "network", 3)
async def leader_unheard(storm: Storm) -> None:
    assert storm.cluster.network
    leader = await storm.leader()
    for other in storm.cluster.nodes:
        if other != leader.name:
            storm.cluster.network.cut(leader.name, other)
    await storm.last()


@fault("one-way: the leader hears nobody", "network", 3)
async def leader_deaf(storm: Storm) -> None:
    assert storm.cluster.network
    leader = await storm.leader()
    for other in storm.cluster.nodes:
        if other != leader.name:
            storm.cluster.network.cut(other, leader.name)
    await storm.last()


@fault("one link of three", "network", 3)
async def one_link(storm: Storm) -> None:
    assert storm.cluster.network
    one, other = await storm.leader(), await storm.follower()
    storm.cluster.network.cut(one.name, other.name)
    storm.cluster.network.cut(other.name, one.name)
    await storm.last()


@fault("every node alone", "network", 1)
async def all_alone(storm: Storm) -> None:
    assert storm.cluster.network
    for name in storm.cluster.nodes:
        storm.cluster.network.isolate(name)
    await storm.last()


@fault("cut the leader off from peers and store", "network", 3)
async def leader_from_both(storm: Storm) -> None:
    assert storm.cluster.network
    leader = await storm.leader()
    for way in storm.cluster.proxies[leader.name].ways.values():
        way.lost = True
    storm.cluster.network.isolate(leader.name)
    await storm.last()


# Links to the store.


@fault("cut the leader off from the store", weight=3)
async def leader_from_store(storm: Storm) -> None:
    for way in storm.cluster.proxies[(await storm.leader()).name].ways.values():
        way.lost = True
    await storm.last()


@fault("reset every link to the store")
async def reset_links(storm: Storm) -> None:
    for name in storm.cluster.nodes:
        storm.cluster.proxies[name].cut(reset=storm.dice.random() < 0.7)
    await asyncio.sleep(0.2)


@fault("links to the store reset at random")
async def lossy_links(storm: Storm) -> None:
    for name in storm.cluster.nodes:
        for way in storm.cluster.proxies[name].ways.values():
            way.reset_chance = 0.02
    await storm.last()


@fault("the store's answers are held back")
async def hold_answers(storm: Storm) -> None:
    storm.cluster.proxies[(await storm.someone()).name].ways["down"].open.clear()
    await storm.last()


@fault("what goes to the store is held back")
async def hold_requests(storm: Storm) -> None:
    storm.cluster.proxies[(await storm.leader()).name].ways["up"].open.clear()
    await storm.last()


@fault("slow links to the store")
async def slow_links(storm: Storm) -> None:
    for name in storm.cluster.nodes:
        for way in storm.cluster.proxies[name].ways.values():
            way.delay_s = storm.dice.uniform(0.005, 0.08)
    await storm.last()


@fault("single bytes on a link to the store", weight=1)
async def sliced_link(storm: Storm) -> None:
    for way in storm.cluster.proxies[(await storm.leader()).name].ways.values():
        way.slice_bytes = 1
    await storm.last()


# Disks and clocks.


@fault("slow disk of the store", "slow disk")
async def slow_store_disk(storm: Storm) -> None:
    storm.cluster.slow["store"].delay(storm.dice.randrange(20, 400))
    await storm.last()


@fault("slow disk of the leader", "slow disk")
async def slow_leader_disk(storm: Storm) -> None:
    storm.cluster.slow[(await storm.leader()).name].delay(storm.dice.randrange(50, 1500))
    await storm.last()


@fault("full disk of the leader", "small disk")
async def full_leader_disk(storm: Storm) -> None:
    leader = await storm.leader()
    storm.cluster.disks[leader.name].fill()
    if storm.dice.random() < 0.5:  # it has to vote and to claim while there is no room
        (await storm.follower()).freeze()
    await storm.last()


@fault("the store's clock steps", "clock", 1)
async def step_the_clock(storm: Storm) -> None:
    storm.cluster.step_clock(storm.dice.choice((-20, -8, 8, 20)))
    await storm.last()
    storm.cluster.step_clock(0)


# The provider.


@fault("the provider's answers are lost")
async def drop_answers(storm: Storm) -> None:
    if storm.provider:
        storm.provider.drop = 3
    await storm.last()


@fault("the provider is slow", weight=1)
async def slow_provider(storm: Storm) -> None:
    if storm.provider:
        storm.provider.delay_s = 1.5
    await storm.last(1.5)
    if storm.provider:
        storm.provider.delay_s = 0.0


async def healed(cluster: FaultyCluster) -> Node:
    """Every node serves and one leads, without anybody's doing beyond :meth:`FaultyCluster.calm`."""
    for node in cluster.nodes.values():
        await asyncio.to_thread(until, node.ready, START_S, what=f"{node.name} serves")
    leader: Node = await asyncio.to_thread(cluster.leader, 60.0)
    return leader
