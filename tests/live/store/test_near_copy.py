"""Reads in a node's own copy: they write nothing, and what is known of their age is true."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
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
from tidewarden.queue.task import TaskSpec
from tidewarden.store import StoreConnection
from tidewarden.store.near_copy import CopyAge, NearCopy
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
async def seat(pair: NearPair, *, library: bool = True) -> AsyncIterator[Seat]:
    config = load(None, {}, {"cluster.name": CLUSTER})
    scripts, clock = queue_scripts(library=library), SystemClock()
    link = StoreConnection(pair.store.url, "n0-data", clock)
    await link.start(wait_s=60)
    await scripts.use_library(link, library)
    await link.call("SET", f"{{{CLUSTER}}}:view", 1)
    near = pair.near(scripts)
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
