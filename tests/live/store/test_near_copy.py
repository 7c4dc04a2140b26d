"""Reads in a node's own copy: they write nothing, and what is known of their age is true."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import age_known_at, comparison_of
from support.queues.desk import CLUSTER, queue_scripts
from support.store.near_pair import NearPair, near_pair
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import Error, NoQuorum, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.reads.condition import condition_of
from tidewarden.queue.task import TaskSpec
from tidewarden.store import StoreConnection
from tidewarden.store.near_copy import CopyAge, NearCopy
from tidewarden.store.reply_errors import NoMajority
from tidewarden.tokens.system_queues import system_queues

AGES_MS = 600_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[NearPair]:
    with near_pair(tmp_path) as made:
        yield made


class Seat:
    """A node's queues before the primary, with a copy."""

    def __init__(self, queues: Queues, link: StoreConnection, near: NearCopy) -> None:
        self.queues, self.link, self.near = queues, link, near

    @property
    def age(self) -> CopyAge:
        assert self.queues.near is not None
        return self.queues.near.age


@contextlib.asynccontextmanager
async def seat(
    pair: NearPair, *, library: bool = True, alone: Callable[[], bool] = bool
) -> AsyncIterator[Seat]:
    config = load(None, {}, {"cluster.name": CLUSTER})
    scripts, clock = queue_scripts(library=library), SystemClock()
    link = StoreConnection(pair.store.url, "n0-data", clock)
    await link.start(wait_s=60)
    await scripts.use_library(link, library)
    await link.call("SET", f"{{{CLUSTER}}}:view", 1)
    near = pair.near(scripts)
    near.alone = alone
    try:
        async with near.connected():
            queues = Queues(
                config,
                link,
                scripts,
                clock,
                views=True,
                system_queues=system_queues(),
                near=near,
            )
            queues.catalog.holder = "n0.1"
            made = Seat(queues, link, near)
            await eventually(lambda: near.connections > 0)
            yield made
            await made.age.stop()
    finally:
        await link.stop()


@pytest.mark.parametrize("library", [True, False])
async def test_what_only_reads_runs_in_a_copy(pair: NearPair, library: bool) -> None:
    """By the library, which came with the data; without it by the script's text."""
    async with seat(pair, library=library) as node:
        queues = node.queues
        for number in range(3):
            await queues.put("q", TaskSpec(b"x", id=f"t{number}"))
        there = await queues.admin.stats("q"), await queues.admin.peek("q", "t1")
        await asyncio.to_thread(pair.caught_up)
        await eventually(lambda: node.age.within(AGES_MS))
        await asyncio.to_thread(pair.freeze)
        assert await queues.admin.stats("q", max_stale_ms=AGES_MS) == there[0]
        assert await queues.admin.peek("q", "t1", AGES_MS) == there[1]
        stats = pair.copy.info("commandstats")
        done = {name for name in stats if name.endswith("_ro") and not stats[name]["failed_calls"]}
        assert done >= ({"cmdstat_fcall_ro"} if library else {"cmdstat_eval_ro"})


async def test_nothing_is_written_whatever_a_read_finds(pair: NearPair) -> None:
    """A newer cut of the queue, a step of the clock, a field that is no number."""
    async with seat(pair) as node:
        await node.queues.put("q", TaskSpec(b"x", id="t"))
        (shard,) = node.queues.catalog.shards["q"]
        record = f"{shard.keys[0]}:shard"
        pair.store.client.hset(record, "tick", "rubbish")
        await asyncio.to_thread(pair.caught_up)
        for client in (pair.store.client, pair.copy):
            before = client.hgetall(record)
            for stamp in ("0~0~7~-5000/3", "-99", "0"):
                runs: list[Any] = [
                    node.near.run(name, shard.keys, (stamp, "n0.1", *args))
                    for name, args in (
                        ("queue.stats", ()),
                        ("queue.peek", ("id", "t", "")),
                        ("tokens.get", ("a",)),
                    )
                ]
                assert all(reply[2] == 0 for reply in await asyncio.gather(*runs))
            assert client.hgetall(record) == before
        function = queue_scripts()["queue.put"].function
        with pytest.raises(Error, match=r"write|read-only"):
            await node.near.ask("FCALL_RO", function, 1, shard.keys[0], 0, "n0.1", "b", "", "x")
        with pytest.raises(Error, match="NOPERM"):
            await node.near.ask("SET", "k", "v")


async def test_an_old_copy_is_read_by_who_allows_it_alone(pair: NearPair) -> None:
    async with seat(pair) as node:
        queues = node.queues
        await queues.put("q", TaskSpec(b"x", id="old"))
        await asyncio.to_thread(pair.caught_up)
        await eventually(lambda: node.age.within(AGES_MS))
        await asyncio.to_thread(pair.freeze)
        await queues.put("q", TaskSpec(b"x", id="new"))
        assert (await queues.admin.stats("q"))["ready"] == 2
        assert (await queues.admin.stats("q", max_stale_ms=AGES_MS))["ready"] == 1
        page, _ = await queues.admin.page("q", "ready", max_stale_ms=AGES_MS)
        assert [task["id"] for task in page] == ["old"]
        assert (await queues.admin.peek("q", "new", AGES_MS))["id"] == "new"
        assert (await queues.admin.stats("q", max_stale_ms=0))["ready"] == 2


async def test_the_age_is_known_when_the_primary_is_lost_though_nobody_asked(
    pair: NearPair,
) -> None:
    async with seat(pair) as node:
        queues = node.queues
        await queues.put("q", TaskSpec(b"x", id="t"))
        await asyncio.to_thread(pair.caught_up)
        node.age.start()
        await eventually(lambda: age_known_at(node.age) > 0)
        pair.primary_process.kill()
        await eventually(lambda: not node.link.up)
        assert (await queues.admin.peek("q", "t", AGES_MS))["id"] == "t"
        assert (await queues.admin.stats("q", max_stale_ms=AGES_MS))["ready"] == 1


async def test_a_primary_that_nothing_confirms_vouches_for_no_age(pair: NearPair) -> None:
    """One that is cut off, which another may have replaced, has all that it knows of."""
    async with seat(pair) as node:
        await node.queues.put("q", TaskSpec(b"x", id="a"))
        await asyncio.to_thread(pair.caught_up)
        asked, confirms = list[bool](), False

        async def confirmed() -> None:
            asked.append(confirms)
            if not confirms:
                raise NoQuorum("it is cut off")

        age = CopyAge(node.near, node.link, SystemClock(), lambda: confirmed)
        try:
            await eventually(lambda: age.within(AGES_MS) or len(asked) > 2)
            assert not age.within(AGES_MS)
            confirms = True
            await eventually(lambda: age.within(AGES_MS))
        finally:
            await age.stop()


async def test_a_copy_that_is_behind_is_known_to_be(pair: NearPair) -> None:
    """It follows no more, stands still, or is another start: the primary answers."""
    async with seat(pair) as node:
        stats = node.queues.admin.stats
        await node.queues.put("q", TaskSpec(b"x", id="a"))
        await eventually(lambda: node.age.within(1000))
        await asyncio.to_thread(pair.freeze)
        await node.queues.put("q", TaskSpec(b"x", id="b"))
        for _ in range(2):
            await eventually(
                lambda: not node.age.within(100) and comparison_of(node.age) is not None
            )
            await eventually(lambda: comparison_of(node.age) is None)
            assert not node.age.within(100)
        assert (await stats("q", max_stale_ms=100))["ready"] == 2

        await asyncio.to_thread(pair.follow)
        await eventually(lambda: node.age.within(1000))
        pair.copy_process.send_signal(signal.SIGSTOP)
        try:
            assert (await stats("q", max_stale_ms=AGES_MS))["ready"] == 2
            with pytest.raises(StoreDown, match="has not answered for"):
                await node.near.ask("PING")
        finally:
            pair.copy_process.send_signal(signal.SIGCONT)

        connections = node.near.connections
        await asyncio.to_thread(pair.restart_copy)
        await eventually(lambda: node.near.connections > connections)
        assert not node.age.within(AGES_MS)
        await eventually(lambda: node.age.within(AGES_MS))


async def test_without_a_copy_the_primary_answers(pair: NearPair) -> None:
    async with seat(pair) as node:
        queues = node.queues
        await queues.put("q", TaskSpec(b"x", id="a"))
        pair.copy_process.kill()
        await eventually(lambda: not node.near.up)
        assert (await queues.admin.stats("q", max_stale_ms=AGES_MS))["ready"] == 1
        assert (await queues.admin.peek("q", "a", AGES_MS))["id"] == "a"
        with pytest.raises(StoreDown, match="this node's own store is away"):
            await node.near.ask("PING")
        assert queues.near is not None
        with pytest.raises(StoreDown, match="the queue other is not known here"):
            await queues.near.run("queue.stats", "other", 0, ())


def unconfirmed(*_: object) -> Any:
    """A write of which nobody says that it lasts."""
    raise NoQuorum("too few have it")


@pytest.mark.parametrize("is_primary", [True, False])
async def test_where_no_majority_is_in_reach_the_copy_answers_and_says_so(
    pair: NearPair, monkeypatch: pytest.MonkeyPatch, is_primary: bool
) -> None:
    """Though its store be the primary, which nobody confirms: another may have been elected."""
    async with seat(pair, alone=lambda: True) as node:
        queues, admin = node.queues, node.queues.admin
        await queues.put("q", TaskSpec(b"x", id="t"))
        await queues.put("failed", TaskSpec(b"x", id="f"))
        session = queues.open_session()
        (task,) = await queues.take(session, ["failed"])
        await queues.bury(session, "failed", "f", task.lease, "no such mailbox")
        await asyncio.to_thread(pair.caught_up)
        await eventually(lambda: node.age.within(AGES_MS))
        assert "stale_ms" not in await admin.stats("q", marks=True), "a primary that is confirmed"
        assert "stale_ms" not in await queues.buried.reasons("q", marks=True)
        if is_primary:
            monkeypatch.setattr(queues.catalog.durability, "firm", unconfirmed)
        else:
            await asyncio.to_thread(pair.kill_primary)
            await eventually(lambda: not node.link.up)
        stats = await admin.stats("q", by_shard=True, marks=True)
        assert (stats["ready"], stats["by_shard"][0]["total"], stats["stale_ms"] >= 0) == (1, 1, 1)
        assert (await admin.stats("q", max_stale_ms=AGES_MS, marks=True))["stale_ms"] < AGES_MS
        assert (await admin.peek("q", "t", marks=True))["stale_ms"] >= 0
        page, after = await admin.page("q", "ready", marks=True)
        assert ([(one["id"], one["stale_ms"] >= 0) for one in page], after) == ([("t", True)], "")
        condition = condition_of("x", "payload", None)
        found = await queues.search.find("q", "ready", condition=condition, marks=True)
        assert [one["stale_ms"] >= 0 for one in (found, *found["tasks"])] == [True, True]
        reasons = await queues.buried.reasons("failed", marks=True)
        assert (reasons["tasks"], reasons["stale_ms"] >= 0) == (1, True)
        assert reasons["reasons"][0]["reason"] == "no such mailbox"
        assert await admin.names() == ["failed", "q"]
        assert (await admin.settings("q", marks=True))["shards"] == 1
        queues.catalog.shards.clear()  # one that this node has not met
        queues.catalog.settings.clear()
        assert (await admin.stats("q", marks=True))["ready"] == 1


@pytest.mark.parametrize("is_primary", [True, False])
async def test_where_no_majority_is_in_reach_what_has_no_mark_is_refused(
    pair: NearPair, monkeypatch: pytest.MonkeyPatch, is_primary: bool
) -> None:
    """Who holds a lock, what is not there, and what has to be newer than the copy may be."""
    async with seat(pair, alone=lambda: True) as node:
        queues, admin = node.queues, node.queues.admin
        await queues.put("q", TaskSpec(b"x", id="t"))
        session = queues.open_session()
        assert await queues.locks.acquire(session, "job", 60_000)
        await asyncio.to_thread(pair.caught_up)
        if is_primary:
            monkeypatch.setattr(queues.catalog.durability, "firm", unconfirmed)
        else:
            await asyncio.to_thread(pair.kill_primary)
            await eventually(lambda: not node.link.up)
        for refused in (
            admin.stats("q"),
            admin.peek("q", "t"),
            admin.page("q", "ready"),
            admin.settings("q"),
            queues.buried.reasons("q"),
            queues.search.find("q", "ready", condition=condition_of("x", "payload", None)),
            queues.locks.peek("job"),
            queues.locks.page(),
            admin.peek("q", "another", marks=True),
            admin.page("q", "buried", marks=True),
            admin.stats("another", marks=True),
            queues.buried.reasons("another", marks=True),
            admin.stats("q", max_stale_ms=1, marks=True),
        ):
            with pytest.raises(NoQuorum, match="no majority of the nodes is in reach, and"):
                await refused


async def test_a_copy_of_which_no_age_is_known_says_that(pair: NearPair) -> None:
    async with seat(pair, alone=lambda: True) as node:
        await node.queues.put("q", TaskSpec(b"x", id="t"))
        await asyncio.to_thread(pair.caught_up)
        await eventually(lambda: node.age.within(AGES_MS))
        assert node.age.known_ms() >= 0
        await asyncio.to_thread(pair.restart_copy)
        await eventually(lambda: node.near.up and node.near.connections > 1)
        await asyncio.to_thread(pair.kill_primary)
        await eventually(lambda: not node.link.up)
        stats = await node.queues.admin.stats("q", marks=True)
        assert (stats["ready"], stats["stale_ms"]) == (1, -1)
        with pytest.raises(NoQuorum, match="may be older than 600000 ms"):
            await node.queues.admin.stats("q", max_stale_ms=AGES_MS, marks=True)


async def test_a_read_that_waits_goes_to_the_copy_once_no_majority_is_known_to_be_there(
    pair: NearPair,
) -> None:
    known = False
    async with seat(pair, alone=lambda: known) as node:
        near = node.queues.near
        assert near is not None

        async def read(mark: dict[str, int] | None) -> dict[str, int]:
            nonlocal known
            if mark is None:
                known = True
                raise NoMajority("nothing was sent")
            return mark

        assert "stale_ms" in await near.answered(read, marks=True)
        known = False
        with pytest.raises(NoMajority):
            await near.answered(read, marks=False)
