"""
Queues on a Redis Cluster: wake-ups that stay within a shard's servers, and shards that move to
other servers under load.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.inspect import links_by_shard, note_subscription, primaries_of, transport_of
from support.store.clusters import ClusterSet
from support.store.store_process import Process, process

from tidewarden.clock import SystemClock
from tidewarden.errors import StoreDown
from tidewarden.queue.task import TaskSpec
from tidewarden.store import StoreConnection
from tidewarden.store.redis_cluster.sharded_pubsub import ShardedPubSub
from tidewarden.store.redis_cluster.slots import slot_of
from tidewarden.store.redis_cluster.topology import Topology
from tidewarden.store.reply_errors import error_of

SHARD = "{tidewarden:load:0}"


def sharded(one: Process) -> ShardedPubSub:
    assert one.subscriber.shards is not None
    return one.subscriber.shards.pubsub


@pytest.fixture
async def two(
    three_primaries: ClusterSet, eventually: Any
) -> AsyncIterator[tuple[Process, Process]]:
    """Two processes that know a queue of four shards."""
    url = three_primaries.url()
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(process(url, f"n{i}")) for i in range(2)]
        await made[0].queues.admin.configure("load", {"shards": 4})
        for one in made:
            await eventually(lambda one=one: len(one.queues.catalog.shards_known()) == 4)
            await eventually(
                lambda one=one: all(
                    link is not None for link in links_by_shard(sharded(one)).values()
                )
            )
        yield made[0], made[1]
    three_primaries.audit()


def sent(cluster: ClusterSet) -> int:
    """Messages that went to every server of the cluster."""
    return sum(
        int(cluster.info(port).get("cluster_stats_messages_publish_sent", 0))
        for port in cluster.ports
    )


async def parked(one: Process, shard: str = SHARD) -> None:
    """Return when a take waits in that shard."""
    (found,) = [known for known in one.queues.catalog.shards_known() if known.keys[0] == shard]
    while not found.parked:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "cluster_of_three", ["valkey", pytest.param("redis", marks=pytest.mark.soak)], indirect=True
)
async def test_wake_ups_of_every_kind_stay_within_the_shards_servers(
    three_primaries: ClusterSet, two: tuple[Process, Process]
) -> None:
    here, there = two
    session = there.queues.open_session()
    broadcast = sent(three_primaries)
    for i in range(4):
        taking = there.queues.take(session, ["load"], wait_ms=60_000)
        await parked(there)
        await here.queues.put("load", TaskSpec(b"x", id=f"t~{i}"))
        async with asyncio.timeout(20):
            (task,) = await taking
        ending = asyncio.ensure_future(here.queues.wait("load", f"t~{i}", 60_000))
        await asyncio.sleep(0.05)
        await there.queues.ack(session, "load", [(task.id, task.lease)])
        async with asyncio.timeout(20):
            assert (await ending)[0] == "done"
    late = there.queues.take(session, ["load"], wait_ms=60_000)
    await parked(there)
    await here.queues.put("load", TaskSpec(b"x", id="late~2", delay_ms=300))
    async with asyncio.timeout(20):
        assert (await late)[0].id == "late~2"
    assert sent(three_primaries) == broadcast


async def test_a_shard_that_moved_is_heard_where_it_lies(
    three_primaries: ClusterSet, two: tuple[Process, Process], eventually: Any
) -> None:
    here, there = two
    session = there.queues.open_session()
    slot = slot_of(SHARD)
    source = three_primaries.owner(slot)
    target = next(port for port in three_primaries.ports if port != source)
    taking = there.queues.take(session, ["load"], wait_ms=20_000)
    await parked(there)
    await asyncio.to_thread(three_primaries.move_slot, slot, source, target)
    await eventually(
        lambda: (
            (link := links_by_shard(sharded(there))[SHARD]) is not None
            and link.at.endswith(f":{target}")
        )
    )
    await here.queues.put("load", TaskSpec(b"x", id="t~0"))
    async with asyncio.timeout(20):
        assert (await taking)[0].id == "t~0"


async def test_a_new_name_is_heard(two: tuple[Process, Process]) -> None:
    here, there = two
    await there.nodes.register()
    taking = there.queues.take(there.queues.open_session(), ["load"], wait_ms=60_000)
    await parked(there)
    await here.queues.put("load", TaskSpec(b"x", id="t~0"))
    async with asyncio.timeout(20):
        assert (await taking)[0].id == "t~0"


async def test_what_was_missed_while_not_subscribed_is_looked_for(
    three_primaries: ClusterSet, two: tuple[Process, Process]
) -> None:
    here, there = two
    taking = there.queues.take(there.queues.open_session(), ["load"], wait_ms=60_000)
    await parked(there)
    for link in primaries_of(sharded(there)).each():
        assert transport_of(link) is not None
        transport_of(link).abort()
    await here.queues.put("load", TaskSpec(b"x", id="t~0"))
    async with asyncio.timeout(20):
        assert (await taking)[0].id == "t~0"


class Traffic:
    """Puts and takes of both processes, until stopped; what became of them."""

    def __init__(self, two: tuple[Process, Process]) -> None:
        self._two = two
        self._stopped = False
        self.put: list[str] = []
        self.taken: Counter[str] = Counter()
        self.acked: list[str] = []
        self.troubles: list[str] = []
        self._tasks = [asyncio.create_task(self._putter(i)) for i in range(4)]
        self._tasks += [asyncio.create_task(self._taker(i)) for i in range(4)]

    async def _putter(self, number: int) -> None:
        n = 0
        while not self._stopped:
            n += 1
            name = f"{number}-{n}"
            try:
                await self._two[number % 2].queues.put("load", TaskSpec(b"x", id=name))
                self.put.append(name)
            except StoreDown as error:
                self.troubles.append(str(error))
            await asyncio.sleep(0.004)

    async def _taker(self, number: int) -> None:
        queues = self._two[number % 2].queues
        session = queues.open_session()
        while not self._stopped or len(self.acked) < len(self.put):
            try:
                for task in await queues.take(session, ["load"], count=5, wait_ms=200):
                    self.taken[task.id] += 1
                    if (await queues.ack(session, "load", [(task.id, task.lease)]))[0]:
                        self.acked.append(task.id)
            except StoreDown as error:
                self.troubles.append(str(error))

    async def stop(self) -> None:
        self._stopped = True
        async with asyncio.timeout(20):
            await asyncio.gather(*self._tasks)


@pytest.mark.parametrize(
    "cluster_of_three", ["valkey", pytest.param("redis", marks=pytest.mark.soak)], indirect=True
)
@pytest.mark.parametrize("whole", [False, True], ids=["key by key", "whole"])
async def test_slots_that_move_under_load_lose_and_double_nothing(
    three_primaries: ClusterSet, two: tuple[Process, Process], whole: bool
) -> None:
    if (
        whole
        and b"MIGRATESLOTS"
        not in str(three_primaries.say(three_primaries.ports[0], "CLUSTER", "HELP")).encode()
    ):
        pytest.skip("this server moves slots key by key alone")
    traffic = Traffic(two)
    places = Counter[int]()
    for turn in range(6):
        slot = slot_of(f"{{tidewarden:load:{turn % 3}}}" if turn != 4 else "{tidewarden}")
        source = three_primaries.owner(slot)
        target = next(port for port in three_primaries.ports if port != source)
        if whole:
            await three_primaries.move_whole(slot, source, target)
        else:
            await asyncio.to_thread(three_primaries.move_slot, slot, source, target, slowly_s=0.01)
        places[target] += 1
        await asyncio.sleep(0.1)
    await traffic.stop()
    assert not traffic.troubles
    assert len(traffic.put) > 50
    assert sorted(traffic.acked) == sorted(traffic.put), "each was acknowledged, once"
    assert set(traffic.taken) == set(traffic.put)
    assert max(traffic.taken.values()) == 1, "none was given to two"


async def test_a_user_who_may_not_hear_a_shard_is_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    topology = Topology("redis+cluster://127.0.0.1:1", "t", clock)
    ears = ShardedPubSub(
        topology,
        "t",
        clock,
        channel_of=lambda prefix: prefix,
        heard=lambda *_: None,
        listens=lambda _: None,
    )
    link = StoreConnection("redis://127.0.0.1:1", "t", clock)
    for error in (StoreDown("lost"), error_of("NOPERM No permissions to access a channel")):
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_exception(error)
        note_subscription(ears, SHARD, link, SHARD, done)
    (told,) = [record.message for record in caplog.records]
    assert "NOPERM" in told
