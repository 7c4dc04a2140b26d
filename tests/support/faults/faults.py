"""
What happens to processes, disks, clocks and the provider, each with its end; links are in
``link_faults``.
"""

from __future__ import annotations

import asyncio

from support.faults.storm import Storm, fault
from support.providers.scripted_provider import rotate_and_cut

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


@fault("the store stands still for long", weight=1, process=True)
async def stop_the_store(storm: Storm) -> None:
    """
    About as long as a link waits for an answer, which is when some of a node's links are cut and
    others not.
    """
    storm.cluster.valkey.freeze()
    await asyncio.sleep(storm.dice.uniform(5.0, 20.0))
    storm.cluster.valkey.thaw()


@fault("stop the leader (SIGTERM)", weight=1, process=True)
async def stop_the_leader(storm: Storm) -> None:
    # whatever else goes on: END_S, and then some
    await asyncio.to_thread((await storm.leader()).terminate, 40.0)


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
        storm.provider.faults.extend([rotate_and_cut] * 3)
    await storm.last()


@fault("the provider is slow", weight=1)
async def slow_provider(storm: Storm) -> None:
    if storm.provider:
        storm.provider.delay_s = 1.5
    await storm.last(1.5)
    if storm.provider:
        storm.provider.delay_s = 0.0
