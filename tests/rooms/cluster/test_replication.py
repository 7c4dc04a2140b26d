"""Three real stores that replicate: founding, failover, and how each comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cluster.replicating import ReplicatingNodes, replicating
from support.queues.desk import queue_scripts

from tidewarden.cluster.replication import local_store
from tidewarden.cluster.replication.follower import Follower
from tidewarden.cluster.replication.set_keeper import SetKeeper
from tidewarden.cluster.replication.store_look import StoreLook, read_look


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ReplicatingNodes]:
    async with replicating(tmp_path) as started:
        yield started


@pytest.mark.thorough
async def test_a_store_that_is_told_to_stop_hands_over_before(nodes: ReplicatingNodes) -> None:
    """As `tidewarden store` does on SIGTERM, beside the node."""
    await nodes.write("a", "1")
    old = nodes.primary
    assert old.host is not None
    await old.host.prepare_stop(60.0)
    assert nodes.primary is not old
    assert nodes.is_open()
    assert old.name not in nodes.facts.nodes_in_sync, "nobody waits for it"
    await old.stop_store()
    await nodes.write("b", "2")
    await old.start_store()
    await nodes.in_sync(*nodes.nodes)
    assert await old.call("MGET", "a", "b") == ["1", "2"]


@pytest.mark.thorough
async def test_a_store_without_a_node_waits_for_nobody(nodes: ReplicatingNodes) -> None:
    old = nodes.primary
    assert old.host is not None
    await old.stop_node()
    await old.host.prepare_stop(60.0)
    assert nodes.raft.commands, "it returned"


async def test_a_killed_store_is_replaced_and_comes_back(nodes: ReplicatingNodes) -> None:
    await nodes.write("a", "1")
    view, old = nodes.facts.view, nodes.primary
    old.kill_store()
    await nodes.until(lambda: nodes.is_open(view + 1))
    assert nodes.primary is not old
    await nodes.write("b", "2")
    assert await nodes.primary.call("MGET", "a", "b") == ["1", "2"]
    await nodes.in_sync(*nodes.nodes)
    assert await old.call("MGET", "a", "b") == ["1", "2"]


async def test_a_store_that_takes_over_has_the_scripts(nodes: ReplicatingNodes) -> None:
    """Else each link of each node would send them to it, before the first put is answered."""
    old = nodes.primary
    old.kill_store()
    await nodes.until(lambda: nodes.is_open(2))
    assert nodes.primary is not old
    listed = await nodes.primary.call("FUNCTION", "LIST", "LIBRARYNAME", "tidewarden_*")
    assert queue_scripts()["queue.put"].function in str(listed)


@pytest.mark.thorough
async def test_a_defect_in_a_duty_ends_no_node(
    nodes: ReplicatingNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of the duties meet an error that nobody foresaw, and all is whole again."""
    broken: set[str] = set()

    def break_once(owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def once(self: object, *args: object, **options: object) -> object:
            if name not in broken:
                broken.add(name)
                raise RuntimeError(f"{name} is broken")
            return whole(self, *args, **options)

        monkeypatch.setattr(owner, name, once)

    break_once(SetKeeper, "round")
    break_once(Follower, "turn")
    await nodes.until(lambda: broken == {"round", "turn"})
    await nodes.write("a", "1")
    await nodes.in_sync(*nodes.nodes)
    for duty in ("in-sync set", "own store"):
        assert f"{duty} failed for a reason of ours" in caplog.text


@pytest.mark.thorough
async def test_a_log_that_could_not_be_written_is_begun_anew(
    nodes: ReplicatingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have zeros, and if the disk is full once more, the server cuts off too much of it."""
    poor = nodes.others[0]
    full, looks = True, 0

    def look(answers: Sequence[Any]) -> StoreLook:
        nonlocal looks
        found = read_look(answers)
        looks += found.node == poor.name
        return dataclasses.replace(found, disk_fault=full and found.node == poor.name)

    await nodes.in_sync(*nodes.nodes)
    while (await poor.call("INFO", "persistence"))["aof_rewrite_in_progress"]:
        await asyncio.sleep(0.02)
    (log,) = poor.folder.glob("appendonlydir/*.incr.aof")
    monkeypatch.setattr(local_store, "read_look", look)
    await nodes.until(lambda: looks > 3)
    assert log.exists(), "what is written meanwhile would be in both logs"
    full = False
    await nodes.until(lambda: not log.exists())
    await nodes.in_sync(*nodes.nodes)


@pytest.mark.thorough
async def test_a_store_whose_disk_is_full_says_so_once_and_to_all(
    nodes: ReplicatingNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poor = nodes.others[0]
    statvfs = os.statvfs

    def almost_full(place: Path) -> os.statvfs_result:
        found = list(statvfs(place))
        if Path(place) == poor.folder:
            found[4] = 3  # blocks that are free for us
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", almost_full)
    told = nodes.primary.replication
    assert told is not None
    for found in (told.seen.problems, lambda: told.seen.warnings().values()):
        await nodes.until(
            lambda found=found: any(
                text.startswith(f"{poor.name}: its disk is full") for text in found()
            )
        )
    assert str(poor.folder) in told.seen.copies()[poor.name]["why"]
    assert caplog.text.count(f"{poor.name}'s store: its disk is full") == 1
