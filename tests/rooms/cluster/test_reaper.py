"""
The leader ends what dead nodes and former boots held, in every shard, again and again until it is
done.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.inspect import transport_of
from support.manual_clock import ManualClock

from tidewarden import log
from tidewarden.cluster import reaper as module
from tidewarden.cluster.reaper import Reaper
from tidewarden.cluster.registration import BEAT_S, DEAD_MS, NodeRecord, Registration
from tidewarden.errors import Internal, Stale, StoreDown
from tidewarden.queue import TaskSpec

LIMIT_S = 60.0


class Scene:
    """A leader n0 with its reaper on a clock moved by hand, and n1, which holds leases."""

    def __init__(self, n0: Any, n1: Any) -> None:
        self.clock = ManualClock()
        self.queues, self.other = n0.queues, n1.queues
        self.nodes = Registration("tw", "n0", n0.link, n0.scripts, self.clock, lambda holder: None)
        self.heard_s = 9e9
        self.reaper = Reaper("n0", self.nodes, self.queues, self.clock, lambda name: self.heard_s)
        self.link = n0.link
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, epoch: int = 1) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(self.reaper.run(epoch)))
        return self.tasks[-1]


@pytest.fixture
async def scene(node: Any) -> Any:
    made = Scene(await node("n0"), await node("n1", boot=5))
    await made.other.admin.configure("wide", {"shards": 4})
    for queue in ("q", "wide"):
        await asyncio.gather(*(made.other.put(queue, TaskSpec()) for _ in range(20)))
    session = made.other.open_session()
    await made.other.take(session, ["q"], count=15)
    await made.other.take(session, ["wide"], count=15)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def leased(scene: Scene) -> int:
    return sum([(await scene.queues.admin.stats(queue))["leased"] for queue in ("q", "wide")])


async def rounds(scene: Scene, done: Any) -> None:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        await asyncio.gather(scene.link.call("PING"), return_exceptions=True)
        await scene.clock.advance(BEAT_S)
        if done():
            return
    raise AssertionError(f"not within {LIMIT_S:g} s: {scene.nodes.seen}")


async def test_a_dead_nodes_leases_end_and_it_is_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    await scene.link.call("HSET", "{tw}:nodes", "n1", "5 1")
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    scene.start()
    await rounds(scene, lambda: not scene.nodes.seen)
    assert await leased(scene) == 0
    assert scene.reaper.reaped == 30
    assert await scene.link.call("HGET", "{tw}:nodes", "n1") is None
    assert "node n1 (boot 5) is buried; 30 of its leases ended" in caplog.text
    for queue in ("q", "wide"):
        with pytest.raises(Stale):
            await scene.other.take(scene.other.open_session(), [queue])


async def test_a_queue_whose_settings_nobody_can_read_keeps_no_dead_nodes_leases(
    scene: Scene,
) -> None:
    await scene.link.call("HSET", "{tw}:nodes", "n1", "5 1")
    await scene.link.call("HSET", "{tw}:queues", "bad", "{")
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    scene.start()
    await rounds(scene, lambda: not scene.nodes.seen)
    assert await leased(scene) == 0


async def test_a_queue_that_is_dropped_meanwhile_keeps_no_dead_nodes_leases(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.link.call("HSET", "{tw}:nodes", "n1", "5 1")
    await scene.queues.put("gone", TaskSpec())
    await scene.queues.dropped.drop("gone", force=True)

    async def names() -> list[str]:
        return ["gone", "q", "wide"]

    monkeypatch.setattr(scene.queues.catalog, "names", names)
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    scene.start()
    await rounds(scene, lambda: not scene.nodes.seen)
    assert await leased(scene) == 0


async def test_one_that_raft_still_hears_is_spared(scene: Scene) -> None:
    scene.heard_s = 0.2
    scene.nodes.seen = [NodeRecord("n1", 5, 10 * DEAD_MS)]
    scene.start()
    for _ in range(10):
        await scene.link.call("PING")
        await scene.clock.advance(BEAT_S)
    assert await leased(scene) == 30
    assert scene.nodes.seen


async def test_what_a_former_boot_held_ends_when_the_node_is_back(scene: Scene) -> None:
    scene.nodes.seen = [NodeRecord("n1", 6, 0)]
    scene.start()
    await rounds(scene, lambda: scene.reaper.reaped == 30)
    assert await leased(scene) == 0
    scene.other.catalog.holder = "n1.6"
    assert len(await scene.other.take(scene.other.open_session(), ["q"], count=5)) == 5


@pytest.mark.parametrize("dead", [False, True])
async def test_the_numbers_of_a_nodes_calls_go_when_it_dies_and_not_with_each_leader(
    scene: Scene, *, dead: bool
) -> None:
    """A node that lives may have calls under way that are sent again."""
    await scene.link.call("HSET", "{tw}:nodes", "n1", "6 1")
    await scene.link.call("HSET", "{tw:q:0}:shard", "by:n1", 7, "at:n1", 4)
    scene.nodes.seen = [NodeRecord("n1", 6, DEAD_MS if dead else 0)]
    scene.start()
    reaped = scene.reaper.reaped
    await rounds(scene, lambda: scene.reaper.reaped > reaped and (not dead or not scene.nodes.seen))
    left = await scene.link.call("HMGET", "{tw:q:0}:shard", "by:n1", "floor")
    assert left == ([None, b"7"] if dead else [b"7", None])


async def test_it_ends_when_another_leads(scene: Scene) -> None:
    await scene.queues.scripts.run("queue.sweep", "q", 0, [9, 10])
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    scene.queues.catalog.holder = "n0.2"
    task = scene.start(epoch=8)
    await rounds(scene, task.done)
    with pytest.raises(Stale):
        await task
    assert scene.nodes.seen, "not forgotten before its leases have ended"


async def test_a_store_that_is_away_is_waited_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    await scene.link.call("HSET", "{tw}:nodes", "n1", "5 1")
    transport_of(scene.link).abort()
    scene.start()
    await rounds(scene, lambda: not scene.nodes.seen)
    assert await leased(scene) == 0


async def test_each_burial_of_a_node_is_said_however_many_there_are(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A warning in the same words is kept back after its third time: each has to be in words of its
    own.
    """
    log.close()  # what a former test set up would have kept back what others said here
    caplog.handler.addFilter(repeats := log.Repeats(ManualClock()))
    try:
        scene.start()
        for boot in range(5, 5 + 2 * log.REPEATS_MAX):
            scene.nodes.seen = [NodeRecord("n1", boot, DEAD_MS)]
            # it is said a moment after the node has been forgotten
            await rounds(scene, lambda boot=boot: f"(boot {boot}) is buried" in caplog.text)
    finally:
        caplog.handler.removeFilter(repeats)


async def test_a_node_is_buried_once_though_a_beat_saw_it_meanwhile(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury = scene.nodes.forget

    async def beat_and_bury(dead: NodeRecord) -> None:
        # of a beat before the burial, read before it
        scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS + 500)]
        await bury(dead)

    monkeypatch.setattr(scene.nodes, "forget", beat_and_bury)
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    scene.start()
    await rounds(scene, lambda: "is buried" in caplog.text)
    for _ in range(5):
        await scene.link.call("PING")
        await scene.clock.advance(BEAT_S)
    assert caplog.text.count("is buried") == 1


async def test_one_that_comes_back_while_others_are_buried_is_spared(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury = scene.nodes.forget

    async def bury_slowly(dead: NodeRecord) -> None:
        scene.nodes.seen = [dead, NodeRecord("n1", 5, 0)]
        await bury(dead)

    monkeypatch.setattr(scene.nodes, "forget", bury_slowly)
    scene.nodes.seen = [NodeRecord("n9", 3, DEAD_MS), NodeRecord("n1", 5, DEAD_MS)]
    scene.start()
    await rounds(scene, lambda: "n9 (boot 3) is buried" in caplog.text)
    for _ in range(5):
        await scene.link.call("PING")
        await scene.clock.advance(BEAT_S)
    assert "node n1" not in caplog.text
    assert await leased(scene) == 30


async def test_a_part_of_the_store_that_is_away_holds_up_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    On a cluster of servers: what lies elsewhere ends, and the node is buried when all of it has.
    """
    script = scene.queues.scripts.run

    async def but_q(name: str, queue: str, shard: int, args: Any, **options: Any) -> Any:
        if name == "queue.reap" and queue == "q":
            raise StoreDown("its server is away")
        return await script(name, queue, shard, args, **options)

    monkeypatch.setattr(scene.queues.scripts, "run", but_q)
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    scene.start()
    await rounds(scene, lambda: caplog.text.count("dead nodes wait: its server is away") > 2)
    assert (await scene.queues.admin.stats("wide"))["leased"] == 0
    assert scene.nodes.seen, "not forgotten before all of its leases have ended"
    monkeypatch.setattr(scene.queues.scripts, "run", script)
    await rounds(scene, lambda: not scene.nodes.seen)
    assert await leased(scene) == 0


async def test_what_goes_wrong_with_one_duty_leaves_it_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_page_done: object) -> int:
        raise Internal("a record of a newer format")

    monkeypatch.setattr(scene.queues.session_expiry, "end_due", refuse)
    scene.nodes.seen = [NodeRecord("n1", 5, DEAD_MS)]
    task = scene.start()
    await rounds(scene, lambda: not scene.nodes.seen)
    assert "could not be ended; tried again" in caplog.text
    assert not task.done()
