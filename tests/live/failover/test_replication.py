"""Three real stores that replicate, under what happens to hosts; Raft alone is played."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster.replicating import CLUSTER, ReplicatingNode, ReplicatingNodes, replicating

from tidewarden.errors import BadArg, NoQuorum, NotFound, StoreDown
from tidewarden.raft.store_facts import read_set
from tidewarden.store.durability.view_library import primary_key


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ReplicatingNodes]:
    async with replicating(tmp_path) as started:
        yield started


async def test_a_host_that_is_gone_is_replaced_and_its_disk_may_be_gone_too(
    nodes: ReplicatingNodes,
) -> None:
    await nodes.write("a", "1")
    view, old = nodes.facts.view, nodes.primary
    await old.kill_host()
    await nodes.until(lambda: nodes.is_open(view + 1))
    assert old.name not in nodes.facts.nodes_in_sync
    await nodes.write("b", "2")
    old.lose_disk()
    await old.start_store()
    await old.start_node()
    await nodes.in_sync(*nodes.nodes)
    assert nodes.primary is not old
    for node in nodes.nodes.values():
        assert await node.call("MGET", "a", "b") == ["1", "2"]


async def test_a_member_that_is_gone_leaves_the_set(nodes: ReplicatingNodes) -> None:
    view, gone = nodes.facts.view, nodes.others[0]
    await gone.kill_host()
    await nodes.write("a", "1")
    assert gone.name not in nodes.facts.nodes_in_sync
    assert nodes.facts.view == view
    await gone.start_store()
    await gone.start_node()
    await nodes.in_sync(*nodes.nodes)
    assert await gone.call("GET", "a") == "1"


async def test_a_primary_that_was_stopped_wakes_as_no_primary(
    nodes: ReplicatingNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """What it alone had is set aside, kept, and told: no warning, for nobody misses it."""
    caplog.set_level(logging.INFO, logger="tidewarden.cluster")
    await nodes.write("a", "1")
    view, old = nodes.facts.view, nodes.primary
    async with old.client() as client:
        await client.ping()
        old.freeze_store()
        late = asyncio.create_task(client.set("lost", "1"))
        await nodes.until(lambda: nodes.is_open(view + 1))
        await nodes.write("b", "2")
        old.wake_store()
        await asyncio.gather(late, return_exceptions=True)
    await nodes.in_sync(*nodes.nodes)
    assert await old.call("MGET", "a", "b", "lost") == ["1", "2", None]
    assert old.replication is not None
    (told,) = [one for one in caplog.records if "were set aside" in one.message]
    assert told.levelno == logging.INFO, told.message
    kept = await old.replication.discarded()
    assert [one["view"] for one in kept] == [view]
    assert kept[0]["bytes"] > 0
    assert list(Path(kept[0]["path"]).glob("*.aof"))


async def test_all_stores_at_once_come_back_with_all_they_had(nodes: ReplicatingNodes) -> None:
    await nodes.write("a", "1")
    view = nodes.facts.view
    for node in nodes.nodes.values():
        node.kill_store()
    await nodes.until(lambda: nodes.is_open(view + 1))
    assert not nodes.facts.loss
    await nodes.write("b", "2")
    await nodes.in_sync(*nodes.nodes)
    assert await nodes.primary.call("MGET", "a", "b") == ["1", "2"]


async def test_a_node_that_starts_again_leaves_its_store_alone(nodes: ReplicatingNodes) -> None:
    """Nobody takes over, and nothing is copied, whichever node it is."""
    for node in nodes.nodes.values():
        before, pid = nodes.facts, node.host.pid if node.host else None
        await node.stop_node()
        await node.start_node()
        if node is nodes.primary:  # what a process before may have proposed is made impossible
            await nodes.until(lambda before=before: nodes.facts.version > before.version)
        await nodes.write("a", node.name)
        # On a slow machine a store that answers late may leave the set for a moment.
        await nodes.until(lambda before=before: nodes.facts.in_sync == before.in_sync)
        assert nodes.facts.view == before.view
        assert node.host is not None
        assert node.host.pid == pid
    info = await nodes.primary.call("INFO", "stats")
    assert int(info["sync_full"]) == 2


async def test_the_primary_is_handed_over(nodes: ReplicatingNodes) -> None:
    """Writers wait for some hundredths of a second; nothing is copied, and nothing set aside."""
    await nodes.write("a", "1")
    old, asked = nodes.primary, nodes.others[1]
    assert asked.replication is not None
    own = ".".join(nodes.facts.primary_member)
    await nodes.until(lambda: asked.report and asked.report.follows == own)
    assert await asked.replication.switchover(asked.name) == asked.name
    assert nodes.is_open()
    await nodes.write("b", "2")
    await nodes.in_sync(*nodes.nodes)
    assert await old.call("MGET", "a", "b") == ["1", "2"]
    assert (await nodes.primary.call("INFO", "stats"))["sync_full"] == 0
    assert old.replication is not None
    assert await old.replication.discarded() == []
    await nodes.until(lambda: not list((old.folder / "discarded").glob("*")))


async def test_a_log_that_cannot_be_read_is_set_aside_for_the_primarys(
    nodes: ReplicatingNodes,
) -> None:
    """The primary's, whose place another has taken by then."""
    await nodes.write("a", "1")
    old, view = nodes.primary, nodes.facts.view
    (log,) = old.folder.glob("appendonlydir/*.incr.aof")
    begin = log.stat().st_size
    await nodes.write("b", "2")
    with log.open("r+b") as file:
        file.seek(begin)
        file.write(b"garbage")
    old.kill_store()
    await nodes.until(lambda: nodes.is_open(view + 1))
    await nodes.in_sync(*nodes.nodes)
    assert await old.call("MGET", "a", "b") == ["1", "2"]
    assert old.replication is not None
    (kept,) = await old.replication.discarded()
    assert b"garbage" in (Path(kept["path"]) / log.name).read_bytes()


async def test_a_hand_over_that_cannot_be_is_refused_in_words(nodes: ReplicatingNodes) -> None:
    primary = nodes.primary
    assert primary.replication is not None
    with pytest.raises(BadArg, match=f"{primary.name}'s store is the primary already"):
        await primary.replication.switchover(primary.name)
    with pytest.raises(NotFound, match="n9' is no member that votes; these are n0, n1, n2"):
        await primary.replication.switchover("n9")
    gone = nodes.others[0]
    await gone.kill_host()
    await nodes.until(lambda: gone.name not in nodes.facts.nodes_in_sync)
    with pytest.raises(NoQuorum, match=f"{gone.name}'s store can take over now|{gone.name}"):
        await primary.replication.switchover(gone.name)
    await nodes.write("a", "1")
    assert nodes.primary is primary


async def test_a_hand_over_that_fails_leaves_the_primary_writing(nodes: ReplicatingNodes) -> None:
    primary, chosen = nodes.primary, nodes.others[0]
    assert primary.replication is not None
    chosen.freeze_store()
    with pytest.raises((StoreDown, NoQuorum)):
        await primary.replication.switchover(chosen.name)
    await nodes.write("a", "1")
    assert nodes.primary is primary
    chosen.wake_store()


async def test_a_node_that_stops_in_order_hands_over_and_leaves_the_set(
    nodes: ReplicatingNodes,
) -> None:
    old = nodes.primary
    await old.stop_node(gracefully=True, store_ends=True)
    assert nodes.primary is not old
    assert nodes.facts.nodes_in_sync == nodes.raft.voters - {old.name}
    await nodes.write("a", "1")


async def chosen(node: ReplicatingNode) -> dict[str, Any]:
    """What would be recovered, once enough stores are heard."""
    assert node.replication is not None
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(StoreDown):
                return await node.replication.choice(None)
            await asyncio.sleep(0.02)


async def test_two_of_three_that_are_lost_need_an_operators_word(nodes: ReplicatingNodes) -> None:
    await nodes.write("a", "1")
    view, (left, gone) = nodes.facts.view, nodes.others
    primary = nodes.primary
    left.kill_store()  # it restarts whole, and continues the member it was
    await nodes.in_sync(*nodes.nodes)
    await left.kill_host()
    await nodes.write("b", "2")
    await nodes.until(lambda: left.name not in nodes.facts.nodes_in_sync)
    for lost in (primary, gone):
        await lost.kill_host()
        lost.lose_disk()
    await left.start_store()
    await left.start_node()
    await gone.start_store()
    await gone.start_node()
    assert left.replication is not None
    told = await chosen(left)
    assert (told["node"], told["view"], told["loss"]) == (left.name, view, "likely")
    assert nodes.facts.view == view
    assert await left.replication.recover(None) == told
    await nodes.until(lambda: nodes.is_open(view + 1))
    assert nodes.facts.loss == "likely"
    await nodes.in_sync(left.name, gone.name)
    await nodes.write("c", "3")
    assert await gone.call("MGET", "a", "c") == ["1", "3"]
    assert await left.replication.confirm() == "likely"
    assert not nodes.facts.loss


async def test_data_that_are_newer_than_the_facts_follow_nobody(nodes: ReplicatingNodes) -> None:
    """As of a cluster whose Raft folders were lost or brought back from long ago."""
    other = nodes.others[0]
    await nodes.write("a", "1")
    await other.stop_node()
    await other.call("REPLICAOF", "NO", "ONE")
    await other.call("HSET", primary_key(CLUSTER), "view", 99)
    await other.call("REPLICAOF", "127.0.0.1", 1)
    await other.start_node()
    await nodes.until(lambda: other.report and "of view 99" in other.report.why)
    await nodes.until(lambda: other.name not in nodes.facts.nodes_in_sync)
    assert await other.call("HGET", primary_key(CLUSTER), "view") == "99"
    assert await other.call("GET", "a") == "1"


async def test_the_data_name_the_set_that_is_committed(nodes: ReplicatingNodes) -> None:
    gone = nodes.others[0]
    await gone.kill_host()
    await nodes.until(lambda: gone.name not in nodes.facts.nodes_in_sync)
    text = ""
    async with asyncio.timeout(10):
        while read_set(text) != nodes.facts.in_sync:
            text = await nodes.primary.call("HGET", primary_key(CLUSTER), "set")
