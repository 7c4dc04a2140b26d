"""Registrations on a Redis Cluster whose slot with the cluster's own keys moves, key by key."""

from __future__ import annotations

import asyncio

import pytest
from support.store.clusters import ClusterSet

from tidewarden.clock import SystemClock
from tidewarden.cluster.registration import Registration
from tidewarden.node.product_scripts import product_scripts
from tidewarden.store.redis_cluster.cluster_client import ClusterClient
from tidewarden.store.redis_cluster.slots import slot_of
from tidewarden.store.redis_cluster.topology import Topology


@pytest.mark.parametrize(
    "cluster_of_three", ["valkey", pytest.param("redis", marks=pytest.mark.soak)], indirect=True
)
@pytest.mark.thorough
async def test_beats_go_on_while_the_keys_of_their_slot_move_one_by_one(
    three_primaries: ClusterSet,
) -> None:
    slot = slot_of("{tidewarden}")
    source = three_primaries.owner(slot)
    target = next(port for port in three_primaries.ports if port != source)
    auth = ["AUTH", three_primaries.password] if three_primaries.password else []

    def move(key: str) -> None:
        three_primaries.say(source, "MIGRATE", "127.0.0.1", target, "", 0, 5000, *auth, "KEYS", key)

    clock, scripts = SystemClock(), product_scripts()
    topology = Topology(three_primaries.url(), "x", clock)
    route = ClusterClient(topology, "x", clock, on_up=scripts.load_commands)
    await route.start(wait_s=60)
    try:
        n0 = Registration("tidewarden", "n0", route, scripts, clock, lambda _: None)
        for first, then in (("nodes", "nodes:at"), ("nodes:at", "nodes")):
            n0.address = "10.0.0.1:7420"
            await n0.register()
            three_primaries.open_slot(slot, source, target)
            move(f"{{tidewarden}}:{first}")
            await n0.beat()
            n0.address = "10.0.0.2:7420"
            registering = asyncio.create_task(n0.register())  # waits until all of it is there
            await asyncio.sleep(0.2)
            move(f"{{tidewarden}}:{then}")
            three_primaries.move_keys(slot, source, target)
            three_primaries.close_slot(slot, source, target)
            await registering
            await n0.beat()
            assert n0.addresses == {"n0": "10.0.0.2:7420"}
            assert [seen.node for seen in n0.seen] == ["n0"]
            source, target = target, source
    finally:
        await route.stop()
