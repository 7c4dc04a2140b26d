"""Fault after fault, drawn by a seed, while tasks flow; at the end every account agrees."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator

import pytest
from live.harness import Cluster, background, cluster, until, until_async
from live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "25"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
FAULTS = ("kill the leader", "kill a follower", "pause the leader", "pause a follower", "kill the store")


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(request, tmp_path_factory.mktemp("soak")) as made:
        yield made


async def strike(nodes: Cluster, fault: str) -> None:
    """One fault, and the cure a supervisor would bring."""
    leader = await asyncio.to_thread(nodes.leader)
    target = leader if "leader" in fault else nodes.others(leader)[0]
    if fault == "kill the store":
        await asyncio.to_thread(nodes.valkey.kill)
        await asyncio.to_thread(nodes.valkey.start)
    elif fault.startswith("kill"):
        target.kill()
    else:
        target.freeze()
        await asyncio.sleep(random.Random(fault).uniform(1, 4))  # the length of the pause is part of the fault
    await asyncio.to_thread(nodes.heal)


async def test_nothing_is_lost_or_done_twice(nodes: Cluster) -> None:
    """
    Every task put with OK is delivered, and every account agrees, after many deaths and pauses.

    A store that is killed keeps what it had written to its file (nothing was synced away by a power cut), so nothing
    acknowledged may be missing; an ack whose answer was lost with a connection counts as unknown.
    """
    dice = random.Random(SEED)
    everywhere = list(nodes.nodes.values())
    traffic = Traffic("soak", everywhere, dice=random.Random(SEED))
    epochs = [int(nodes.leader().status()["epoch"])]
    jobs = [traffic.produce(node) for node in everywhere] + [traffic.consume(node) for node in everywhere * 2]
    async with background(*jobs):
        for number in range(ROUNDS):
            fault = dice.choice(FAULTS)
            before = len(traffic.put)
            await strike(nodes, fault)
            await until_async(
                lambda before=before: len(traffic.put) > before + 50, 60, what=f"tasks flow on: {traffic}"
            )
            epochs.append(int(nodes.leader().status()["epoch"]))
            print(f"round {number}: {fault}; epoch {epochs[-1]}; {traffic}")
        await traffic.drained(nodes)
    assert epochs == sorted(epochs), "epochs only grow"
    traffic.check()
    stats = nodes.alive()[0].say("Q.STATS", traffic.queue)
    assert stats["total"] == 0
    assert not nodes.audit(traffic.queue)
    until(lambda: sum(node.status()["sweeping"] for node in nodes.alive()) == 1, 10, what="one node sweeps")
