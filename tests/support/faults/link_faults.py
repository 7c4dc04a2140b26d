"""
What happens to links: between nodes, those of Raft besides, and to the store; each with its end.
"""

from __future__ import annotations

import asyncio
import itertools

from support.faults.storm import Storm, fault
from support.store.proxy import Part, Proxy, Way


def ways(storm: Storm, source: str = "", target: str = "") -> list[Way]:
    """
    What nodes say to each other by Raft: that one to the others, the others to that one, or all to
    all.
    """
    pairs = itertools.permutations(storm.cluster.nodes, 2)
    return [
        way
        for a, b in pairs
        if source in ("", a) and target in ("", b)
        for way in storm.cluster.between(a, b)
    ]


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


@fault("slow links between nodes", "raft links")
async def slow_peers(storm: Storm) -> None:
    for way in ways(storm):
        way.delay_s = storm.dice.uniform(0.005, 0.2)
    await storm.last()


@fault("one-way: what the leader says to its peers is slower than an election", "raft links")
async def slow_leader(storm: Storm) -> None:
    leader = await storm.leader()
    for way in ways(storm, source=leader.name):
        way.delay_s = storm.dice.uniform(0.4, 1.6)
    await storm.last()


@fault(
    "one-way: what the leader says to its peers is held back, and let go at once", "raft links", 3
)
async def hold_leader(storm: Storm) -> None:
    leader = await storm.leader()
    for way in ways(storm, source=leader.name):
        way.open.clear()
    await storm.last()


@fault("one-way: what a leader's peers say to it is held back, and let go at once", "raft links")
async def hold_peers(storm: Storm) -> None:
    leader = await storm.leader()
    for way in ways(storm, target=leader.name):
        way.open.clear()
    await storm.last()


@fault("links between nodes held back and let go, each by itself", "raft links", 3)
async def swizzle_peers(storm: Storm) -> None:
    end = asyncio.get_running_loop().time() + storm.dice.uniform(1.0, storm.longest_s)
    while asyncio.get_running_loop().time() < end:
        way = storm.dice.choice(ways(storm))
        if way.open.is_set():
            way.open.clear()
        else:
            way.open.set()
        await asyncio.sleep(storm.dice.uniform(0.02, 0.4))


@fault("links between nodes reset at random", "raft links")
async def lossy_peers(storm: Storm) -> None:
    for way in ways(storm):
        way.reset_chance = 0.05
    await storm.last()


@fault("single bytes on links between nodes", "raft links", 1)
async def sliced_peers(storm: Storm) -> None:
    for way in ways(storm):
        way.slice_bytes = 1
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


# One of a node's links to the store, and all others go on.

PURPOSES = ("data", "control", "sweep", "accounts", "ears", "commit")
"""What a node's connections to the store are for, by the ends of their names."""


async def one_link_to_the_store(storm: Storm) -> tuple[Proxy, str]:
    """
    The proxy of a node, and one of its links by its purpose; of all nodes only the leader sweeps.
    """
    purpose = storm.dice.choice(PURPOSES)
    node = await (storm.leader() if purpose == "sweep" else storm.someone())
    return storm.cluster.proxies[node.name], purpose


async def lose(storm: Storm, part: Part, proxy: Proxy, purpose: str) -> None:
    """
    What passes next on that link, which is cut with it; nothing, where nothing passes for as long
    as a fault goes on.
    """
    loss = proxy.lose(purpose, part, reset=storm.dice.random() < 0.7)
    await asyncio.to_thread(loss.happened.wait, storm.longest_s)


@fault("one link to the store: a request is lost with it")
async def lose_a_request(storm: Storm) -> None:
    await lose(storm, "request", *await one_link_to_the_store(storm))


@fault("one link to the store: an answer is lost with it", weight=3)
async def lose_an_answer(storm: Storm) -> None:
    await lose(storm, "reply", *await one_link_to_the_store(storm))


@fault("one link to the store: a message is lost with it")
async def lose_a_message(storm: Storm) -> None:
    await lose(storm, "message", storm.cluster.proxies[(await storm.someone()).name], "ears")


@fault("one link to the store: reset while it is idle, or at once")
async def reset_one_link(storm: Storm) -> None:
    proxy, purpose = await one_link_to_the_store(storm)
    proxy.cut(purpose, reset=storm.dice.random() < 0.7)


@fault("one link to the store: held back one way, and let go at once")
async def hold_one_link(storm: Storm) -> None:
    proxy, purpose = await one_link_to_the_store(storm)
    proxy.named(purpose)[storm.dice.choice(("up", "down"))].open.clear()
    await storm.last()


@fault("one link to the store: silent for ever one way")
async def silence_one_link(storm: Storm) -> None:
    proxy, purpose = await one_link_to_the_store(storm)
    proxy.named(purpose)[storm.dice.choice(("up", "down"))].lost = True
    await storm.last()
