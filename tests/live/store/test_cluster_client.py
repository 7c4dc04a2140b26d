"""
A store that is a Redis Cluster: each call at the primary of its key, redirections, slots on the
move, and what queues make of it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import transport_of
from support.providers import certificate
from support.store.clusters import ClusterSet, cluster_set
from support.store.store_process import process

from tidewarden.clock import SystemClock
from tidewarden.errors import ConfigError, Full, StoreDown
from tidewarden.queue.task import TaskSpec
from tidewarden.store import StoreConnection
from tidewarden.store.full_store_writes import full_store_write
from tidewarden.store.preflight import check_store
from tidewarden.store.redis_cluster import cluster_client, redirects
from tidewarden.store.redis_cluster.cluster_client import ClusterClient
from tidewarden.store.redis_cluster.slots import slot_of
from tidewarden.store.redis_cluster.topology import Topology

NAMES = [f"{{t:{i}}}" for i in range(12)]
SLOT = slot_of("{t:0}")


@pytest.fixture
def clean(three_primaries: ClusterSet) -> ClusterSet:
    """The session's cluster, emptied."""
    return three_primaries


@pytest.fixture
async def route(clean: ClusterSet) -> AsyncIterator[ClusterClient]:
    made = ClusterClient(Topology(clean.url(), "t", SystemClock()), "t-data", SystemClock())
    await made.start()
    yield made
    await made.stop()


def two_of(three: ClusterSet, slot: int) -> tuple[int, int]:
    """Who has the slot, and another."""
    source = three.owner(slot)
    return source, next(port for port in three.ports if port != source)


async def test_each_call_goes_to_the_primary_of_its_key(
    clean: ClusterSet, route: ClusterClient
) -> None:
    await asyncio.gather(*(route.call("SET", f"{name}:k", name) for name in NAMES))
    assert sum(clean.client(port).dbsize() for port in clean.ports) == len(NAMES)
    for name in NAMES:
        link = route.link_of(name)
        assert link is not None
        assert link.at.endswith(f":{clean.owner(slot_of(name))}")
    assert [await route.call("GET", f"{name}:k") for name in NAMES] == [
        name.encode() for name in NAMES
    ]
    assert [await route.call(*full_store_write("SET", f"{name}:k", "new")) for name in NAMES] == [
        b"OK"
    ] * len(NAMES)
    assert await route.call("GET", f"{NAMES[0]}:k") == b"new"
    assert len(await route.call("TIME")) == 2
    assert route.up
    assert len(route.at.split()) == len(route.each()) == 3
    assert "p@ss" not in route.at
    assert route.warning() == ""
    assert route.calls >= 2 * len(NAMES)


async def test_a_slot_that_was_moved_is_followed_and_whoever_follows_is_told(
    clean: ClusterSet, route: ClusterClient
) -> None:
    await route.call("SET", "{t:0}:k", "1")
    source, target = two_of(clean, SLOT)
    told: list[int] = []

    def follower() -> None:
        told.append(1)

    route.topology.follow(follower)
    await asyncio.to_thread(clean.move_slot, SLOT, source, target)
    assert await asyncio.gather(*(route.call("INCR", "{t:0}:k") for _ in range(50))) == list(
        range(2, 52)
    )
    link = route.link_of("{t:0}")
    assert link is not None
    assert link.at.endswith(f":{target}")
    assert told
    await route.topology.forget(follower)
    await asyncio.to_thread(clean.move_slot, SLOT, target, source)
    assert await route.call("GET", "{t:0}:k") == b"51"


async def test_a_plain_command_follows_its_key_while_the_slot_moves(
    clean: ClusterSet, route: ClusterClient
) -> None:
    for name in ("a", "b"):
        await route.call("SET", f"{{t:0}}:{name}", name)
    source, target = two_of(clean, SLOT)
    clean.open_slot(SLOT, source, target)
    clean.move_keys(SLOT, source, target, 1)
    got = await asyncio.gather(
        *(route.call("GET", f"{{t:0}}:{name}") for name in ("a", "b", "none"))
    )
    assert got == [b"a", b"b", None]
    await route.call("SET", "{t:0}:new", "n")
    assert clean.say(target, "CLUSTER", "COUNTKEYSINSLOT", SLOT) == 2, (
        "a new key is made where the slot goes"
    )
    clean.move_keys(SLOT, source, target)
    clean.close_slot(SLOT, source, target)
    assert await route.call("GET", "{t:0}:new") == b"n"
    await asyncio.to_thread(clean.move_slot, SLOT, target, source)


def push(route: ClusterClient, n: int) -> asyncio.Future[Any]:
    """A script, with the guard that ours have."""
    return_to: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    words = (
        "EVAL",
        "return redis.call('RPUSH', KEYS[1] .. ':l', ARGV[1])",
        2,
        "{t:0}",
        "{t:0}~",
        n,
    )
    route.send(cluster_client.pack(words), return_to, "{t:0}")
    return return_to


async def test_scripts_wait_while_their_slot_moves_and_keep_their_order(
    clean: ClusterSet, route: ClusterClient
) -> None:
    await push(route, 0)
    source, target = two_of(clean, SLOT)
    clean.open_slot(SLOT, source, target)
    first = [push(route, n) for n in range(1, 6)]
    await asyncio.sleep(0.2)
    clean.move_keys(SLOT, source, target)
    later = [push(route, n) for n in range(6, 11)]
    await asyncio.sleep(0.2)
    assert not any(one.done() for one in (*first, *later)), (
        "neither server runs them on a part of the keys"
    )
    clean.close_slot(SLOT, source, target)
    assert await asyncio.gather(*first, *later) == list(range(2, 12))
    assert await route.call("LRANGE", "{t:0}:l", 0, -1) == [str(n).encode() for n in range(11)]
    await asyncio.to_thread(clean.move_slot, SLOT, target, source)


async def test_a_slot_that_stays_open_is_answered_in_the_servers_words(
    clean: ClusterSet, route: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "PATIENCE_S", 0.3)
    source, target = two_of(clean, SLOT)
    clean.open_slot(SLOT, source, target)
    with pytest.raises(
        StoreDown, match="nothing was done: the store refuses: TRYAGAIN Multiple keys"
    ):
        await push(route, 1)
    assert await route.call("EXISTS", "{t:0}:l") == 0
    clean.say(source, "CLUSTER", "SETSLOT", SLOT, "STABLE")
    clean.say(target, "CLUSTER", "SETSLOT", SLOT, "STABLE")
    assert await push(route, 1) == 1


async def test_a_slot_that_nobody_serves_is_waited_for(
    clean: ClusterSet, route: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = two_of(clean, SLOT)
    for port in clean.ports:
        clean.say(port, "CLUSTER", "DELSLOTS", SLOT)
    monkeypatch.setattr(cluster_client, "PATIENCE_S", 0.3)
    two = [route.call("SET", "{t:0}:k", "2") for _ in range(2)]
    for one in two:
        with pytest.raises(StoreDown, match="CLUSTERDOWN Hash slot not served"):
            await one
    monkeypatch.setattr(cluster_client, "PATIENCE_S", 10)
    waiting = route.call("SET", "{t:0}:k", "1")
    await asyncio.sleep(0.1)
    assert not waiting.done()
    for port in clean.ports:
        clean.say(port, "CLUSTER", "SETSLOT", SLOT, "NODE", clean.id_of(source))
    assert await waiting == b"OK"


async def test_a_call_that_was_under_way_when_its_connection_went_is_not_sent_again(
    clean: ClusterSet, route: ClusterClient
) -> None:
    link = route.link_of("{t:0}")
    assert link is not None
    clean.client(clean.owner(SLOT)).execute_command("CLIENT", "PAUSE", 300, "ALL")
    lost = [route.call("INCR", "{t:0}:k") for _ in range(3)]
    await asyncio.sleep(0.05)
    transport = transport_of(link)
    assert transport is not None
    transport.abort()
    for one in lost:
        with pytest.raises(StoreDown, match="may or may not have happened"):
            await one
    again = route.call("INCR", "{t:0}:n")  # waits for the connection
    assert await again == 1


async def test_what_waits_is_bounded_and_ends_with_the_route(
    clean: ClusterSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "BACKLOG_MAX", 2)
    route = ClusterClient(
        Topology("redis+cluster://127.0.0.1:1", "t", SystemClock()), "t", SystemClock()
    )
    with pytest.raises(StoreDown, match="no server of the cluster answers"):
        await route.start(wait_s=0.2)
    calls = [route.call("SET", "{t:0}:k", n) for n in range(3)]
    with pytest.raises(StoreDown, match="2 calls wait for it"):
        await calls[2]
    await route.stop()
    for one in calls[:2]:
        with pytest.raises(StoreDown, match="was closed"):
            await one


def test_a_caller_who_has_gone_does_not_stop_those_behind() -> None:
    """The first of those that wait is sent to try also when its caller has gone."""
    heard: list[int] = []

    class Guide:
        def astray(self, *_: Any, **__: Any) -> None: ...

        def through(self, slot: int) -> None:
            heard.append(slot)

    class Gone:
        def done(self) -> bool:
            return True

        def set_result(self, result: Any, /) -> None:
            raise AssertionError

        def set_exception(self, exception: BaseException, /) -> None:
            raise AssertionError

    guide = Guide()
    for end in (lambda one: one.set_result(1), lambda one: one.set_exception(StoreDown("lost"))):
        call = redirects.RedirectedCall(guide, 7, b"", Gone())
        call.probe()
        assert not call.done()
        end(call)
        assert call.done()
    assert heard == [7, 7]


# --- what the store's other parts make of it


async def test_every_primary_is_checked(clean: ClusterSet, route: ClusterClient) -> None:
    assert (await check_store(route, "t")).version
    clean.client(clean.ports[1]).config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(
            ConfigError, match=rf":{clean.ports[1]} cannot be the store: its maxmemory-policy"
        ):
            await check_store(route, "t")
    finally:
        clean.client(clean.ports[1]).config_set("maxmemory-policy", "noeviction")
    one = StoreConnection(route.each()[0].url, "t", SystemClock())
    await one.start(wait_s=60)
    with pytest.raises(ConfigError, match=r"redis\+cluster://"):
        await check_store(one, "t")
    await one.stop()


async def test_only_the_full_primarys_shards_refuse_puts(
    clean: ClusterSet, eventually: Any
) -> None:
    async with process(clean.url()) as one:
        await one.queues.admin.configure("q", {"shards": 8})
        port = clean.owner(slot_of("{tidewarden:q:0}"))
        memory = clean.client(port)
        memory.config_set("maxmemory", 1 << 20)
        try:
            await eventually(lambda: one.queues.catalog.store_memory.full)
            assert f":{port} is full" in one.queues.catalog.store_memory.warning()
            with pytest.raises(Full, match=f":{port} is full"):
                await one.queues.put("q", TaskSpec(b"x", id="a~0"))
            other = next(
                i for i in range(8) if clean.owner(slot_of(f"{{tidewarden:q:{i}}}")) != port
            )
            await one.queues.put("q", TaskSpec(b"x", id=f"a~{other}"))
            assert one.queues.catalog.store_memory.stats()["store_full_refused_total"] == 1
        finally:
            memory.config_set("maxmemory", 0)
        await eventually(lambda: not one.queues.catalog.store_memory.full)
        await one.queues.put("q", TaskSpec(b"x", id="a~0"))
    assert clean.audit() == 8


async def test_all_of_it_by_tls(tmp_path: Path) -> None:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine, and the embedded one has no TLS")
    with cluster_set(binary, tmp_path, certificate=certificate.make(tmp_path)) as made:
        async with process(made.url(), replicas="0") as one:
            await one.queues.admin.configure("q", {"shards": 6})
            for i in range(6):
                await one.queues.put("q", TaskSpec(b"x", id=f"t~{i}"))
            assert len(await one.queues.take(one.queues.open_session(), ["q"], count=10)) == 6
            assert one.data.at.count("rediss://") == 3
