"""Registrations: boots that grow, signs of life, who is dead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.cluster.registrations import MakeNodes
from support.inspect import clock_of, link_of, scripts_of, waiting_at
from support.manual_clock import ManualClock

from tidewarden.cluster import registration as module
from tidewarden.cluster.registration import DEAD_MS, LEFT_MS, NodeRecord, Registration, dead_nodes
from tidewarden.errors import Stale, StoreDown
from tidewarden.node.status import SILENT_S_MAX, Status


async def test_a_boot_is_greater_than_any_before(nodes: MakeNodes) -> None:
    n0, holders = await nodes()
    await n0.register()
    first = n0.boot
    assert first > 1_700_000_000_000
    assert holders == [n0.holder] == [f"n0.{first}"]
    again, _ = await nodes()
    await again.register()
    assert again.boot > first
    await again.register()
    assert again.boot > first + 1


async def test_a_boot_grows_although_the_stores_clock_stepped_back(
    nodes: MakeNodes, valkey: Any
) -> None:
    n0, _ = await nodes()
    far = 4_000_000_000_000
    await link_of(n0).call("HSET", "{tw}:nodes", "n0", f"{far} {far}")
    await n0.register()
    assert n0.boot == far + 1
    await link_of(n0).call("DEL", "{tw}:nodes")  # and although the store forgot it
    await n0.register()
    assert n0.boot == far + 2


async def test_beats_show_the_others_and_how_old_they_are(nodes: MakeNodes) -> None:
    n0, _ = await nodes("n0")
    n1, holders = await nodes("n1")
    await n0.register()
    await n1.register()
    await n0.beat()
    assert {seen.node: seen.boot for seen in n0.seen} == {"n0": n0.boot, "n1": n1.boot}
    assert all(0 <= seen.age_ms < 5000 for seen in n0.seen)
    assert holders == [n1.holder]
    run = scripts_of(n0).run(
        link_of(n0), "cluster.beat", ["{tw}:nodes"], [n0.boot + 10**6, "n0", n0.boot]
    )
    now_ms, flat = await run
    ages = dict(zip(flat[::3], flat[2::3], strict=True))
    assert now_ms == n0.boot + 10**6
    assert ages[b"n0"] == 0
    assert 10**6 - 5000 < ages[b"n1"] <= 10**6


async def test_one_that_was_buried_or_replaced_is_stale_and_registers_again(
    nodes: MakeNodes,
) -> None:
    n0, holders = await nodes()
    await n0.register()
    other, _ = await nodes()
    await other.register()
    with pytest.raises(
        Stale, match=rf"n0\.{n0.boot} is not registered any more; stored is {other.boot}"
    ):
        await n0.beat()
    await n0.register()
    assert n0.boot > other.boot
    assert holders == [
        f"n0.{n0.boot}" for n0.boot in holders and [int(h.split(".")[1]) for h in holders]
    ]
    await n0.forget(NodeRecord("n0", n0.boot, 0))
    with pytest.raises(Stale, match="stored is 0"):
        await n0.beat()


async def test_burying_spares_a_newer_boot(nodes: MakeNodes) -> None:
    n0, _ = await nodes("n0")
    n1, _ = await nodes("n1")
    await n0.register()
    old = n0.boot
    await n0.register()
    await n1.forget(NodeRecord("n0", old, 5000))
    await n0.beat()
    await n1.forget(NodeRecord("none", 1, 5000))


def test_dead_are_those_old_at_the_store_and_not_heard_by_raft() -> None:
    old, young = DEAD_MS, DEAD_MS - 1
    seen = [NodeRecord("n0", 1, old), NodeRecord("n1", 1, old), NodeRecord("n2", 1, old), NodeRecord("n3", 1, young)]  # fmt: skip
    heard = {"n0": 9e9, "n1": 9e9, "n2": 0.1, "n3": 9e9}
    assert dead_nodes(seen, "n0", heard.__getitem__) == [seen[1]], (
        "not itself, not one that either still hears"
    )


async def test_how_many_live(nodes: MakeNodes) -> None:
    n0, n1, n2 = [(await nodes(name))[0] for name in ("n0", "n1", "n2")]
    assert n0.living() == 1, "not heard yet"
    for each in (n0, n1, n2, n0):
        await each.beat()
    assert n0.living() == 3
    gone = [
        NodeRecord("n1", 1, DEAD_MS),
        NodeRecord("n2/1", 1, 0),
        NodeRecord("n2", 1, 0),
        NodeRecord("n0", 1, 0),
    ]
    n0.seen = gone
    assert n0.living() == 2, "a node's further processes are no nodes"


def test_a_nodes_further_processes_are_dead_with_it() -> None:
    seen = [NodeRecord(name, 1, DEAD_MS) for name in ("n0/1", "n1/1", "n1/2", "n2/1")]
    assert dead_nodes(seen, "n0", {"n1": 9e9, "n2": 0.1}.__getitem__) == seen[1:3]


async def test_the_loop_beats_and_registers_again_when_it_was_buried(
    nodes: MakeNodes, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    n0, holders = await nodes()
    clock: ManualClock = clock_of(n0)
    await n0.register()
    task = asyncio.create_task(n0.run())

    async def round_of_the_clock() -> None:
        await clock.advance(module.BEAT_S)
        await eventually(lambda: n0.turned_at == clock.monotonic())

    for _ in range(3):
        await round_of_the_clock()
    assert holders == [f"n0.{n0.boot}"]
    await n0.forget(NodeRecord("n0", n0.boot, 0))
    await round_of_the_clock()
    await eventually(lambda: len(holders) == 2)
    assert holders[1] == n0.holder
    assert "registering again, what this node held is lost" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_registering_that_failed_is_made_up_for_and_announced(
    nodes: MakeNodes, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Between STALE and registering again the store goes away: the node must not go on under a holder
    nobody was told of.
    """
    n0, holders = await nodes()
    await n0.register()
    real, down = scripts_of(n0).run, [True]

    def run(link: Any, name: str, keys: Any, args: Any) -> Any:
        if down[0] and name == "cluster.register":
            future = asyncio.get_running_loop().create_future()
            future.set_exception(StoreDown("away"))
            return future
        return real(link, name, keys, args)

    monkeypatch.setattr(n0, "_scripts", type("Away", (), {"run": staticmethod(run)}))
    await link_of(n0).call("DEL", "{tw}:nodes")
    clock: ManualClock = clock_of(n0)
    task = asyncio.create_task(n0.run())
    for _ in range(5):
        await clock.advance(module.BEAT_S)
        await link_of(n0).call("PING")
    assert len(holders) == 1
    down[0] = False
    for _ in range(5):
        await clock.advance(module.BEAT_S)
        await link_of(n0).call("PING")
    assert holders[1:] == [n0.holder]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def beats(n0: Registration, count: int) -> dict[str, int]:
    """So many further beats of n0's, half a second apart; how long it has found each silent, ms."""
    for _ in range(count):
        await clock_of(n0).advance(module.BEAT_S)  # type: ignore[attr-defined]
        await n0.beat()
    return {seen.node: seen.age_ms for seen in n0.seen}


@pytest.mark.parametrize("step_ms", [-3_600_000, 0, 3_600_000])
async def test_the_silent_are_found_although_the_stores_clock_was_stepped(
    nodes: MakeNodes, step_ms: int
) -> None:
    """
    What somebody said before a step lies an hour behind, or ahead: neither makes him dead, nor
    alive.
    """
    n0, _ = await nodes("n0")
    await n0.register()
    now_ms = n0.boot
    for name in ("n1", "n2"):
        await link_of(n0).call("HSET", "{tw}:nodes", name, f"5 {now_ms - step_ms}")
    assert max((await beats(n0, 1)).values()) < DEAD_MS, "after one look nobody can tell"
    assert max((await beats(n0, 2)).values()) < DEAD_MS
    await link_of(n0).call("HSET", "{tw}:nodes", "n2", f"5 {now_ms + 1}")
    ages = await beats(n0, 3)
    assert ages["n1"] >= DEAD_MS > ages["n2"]
    assert [dead.node for dead in dead_nodes(n0.seen, "n0", lambda _: 9e9)] == ["n1"]


@pytest.mark.thorough
@pytest.mark.parametrize("away", ["the store", "this process"])
async def test_nobody_is_taken_for_dead_who_could_not_say_anything(
    nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """
    The store comes back after a minute, or this process goes on: its own beat is the first, the
    others' come yet.
    """
    n0, _ = await nodes("n0")
    n1, _ = await nodes("n1")
    await n0.register()
    await n1.register()
    await beats(n0, 3)
    if away == "the store":
        with monkeypatch.context() as patch:
            patch.setattr(scripts_of(n0), "run", _failing)
            with pytest.raises(StoreDown):
                await n0.beat()
    await clock_of(n0).advance(60)  # type: ignore[attr-defined]
    await n0.beat()
    assert dead_nodes(n0.seen, "n0", lambda _: 9e9) == []
    while n1.boot >= 1000 * int((await link_of(n1).call("TIME"))[0]):
        await asyncio.sleep(0.05)  # what is said in the same moment of the store's is nothing new
    await n1.beat()
    assert (await beats(n0, 1))["n1"] < DEAD_MS
    assert (await beats(n0, 4))["n1"] >= DEAD_MS


def _failing(*_: object) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(StoreDown("away"))
    return future


async def test_a_node_that_was_buried_comes_back_above_that_boot_although_the_clock_was_set_back(
    nodes: MakeNodes,
) -> None:
    """Below it the shards would refuse all its takes, until the clock has come so far again."""
    n0, _ = await nodes("n0")
    far = 4_000_000_000_000
    await link_of(n0).call("HSET", "{tw}:nodes", "n1", f"{far} {far}")
    await n0.forget(NodeRecord("n1", far, DEAD_MS))
    assert await link_of(n0).call("HGET", "{tw}:nodes", "n1") is None
    n1, _ = await nodes("n1")
    await n1.register()
    assert n1.boot == far + 1


async def test_one_that_the_shards_refuse_registers_anew_although_it_was_never_buried(
    nodes: MakeNodes, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Whoever had marked its boot dead ended before the burial; it beats, so nobody buries it any
    more.
    """
    n0, holders = await nodes()
    await n0.register()
    first = n0.holder
    for other in ("n0.1 was declared dead; so be it", f"{first} is behind", "RECUT"):
        n0.refused(Stale(other))
    await n0.beat()
    n0.refused(Stale(f"{first} was declared dead; the node has to register again"))
    task = asyncio.create_task(n0.run())
    await eventually(lambda: len(holders) == 2)
    calls = link_of(n0).calls
    while link_of(n0).calls < calls + 3:  # it goes on to beat
        await link_of(n0).call("PING")
        await clock_of(n0).advance(module.BEAT_S)  # type: ignore[attr-defined]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert holders == [first, n0.holder], "once"
    assert f"{first} was declared dead, and is registered yet; registering again" in caplog.text


def test_a_further_process_that_its_node_starts_no_more_is_dead_in_the_end() -> None:
    """The node has come back with fewer of them, before it was found dead."""
    here, left, young = (
        NodeRecord("n1", 2, 0),
        NodeRecord("n1/3", 1, LEFT_MS),
        NodeRecord("n1/2", 1, LEFT_MS - 1),
    )
    mine = NodeRecord("n0/1", 1, LEFT_MS)
    assert dead_nodes([here, left, young], "n0", lambda _: 0.1) == [left]
    assert dead_nodes([NodeRecord("n0", 2, 0), mine], "n0", lambda _: 0.0) == [mine], (
        "the leader's own likewise"
    )
    silent = NodeRecord("n1", 2, LEFT_MS)
    assert dead_nodes([silent, left], "n0", lambda _: 0.1) == [], (
        "it may be cut off from the store, and all of it live"
    )


def test_a_further_process_is_not_dead_before_its_node() -> None:
    """
    One of a worker that stands still for some seconds: Raft hears no worker, and its node would
    know it if it had died.
    """
    here, front = NodeRecord("n1", 2, DEAD_MS - 1), NodeRecord("n1/1", 1, DEAD_MS)
    assert dead_nodes([here, front], "n0", lambda _: 9e9) == []
    gone = NodeRecord("n1", 2, DEAD_MS)
    assert dead_nodes([gone, front], "n0", lambda _: 9e9) == [gone, front]
    assert dead_nodes([front], "n0", lambda _: 9e9) == [front], "its node was buried before"


async def test_where_a_node_is_reached_is_told_with_its_registration(nodes: MakeNodes) -> None:
    n0, _ = await nodes("n0")
    n1, _ = await nodes("n1")
    n0.address = "10.0.0.5:7420"
    await n0.register()
    await n1.register()
    assert n1.addresses == {"n0": "10.0.0.5:7420"}
    n0.address = "[::1]:7430"
    await n0.register()
    await n1.beat()
    assert n1.addresses == {"n0": "[::1]:7430"}
    await n1.forget(NodeRecord("n0", n0.boot - 1, 0))  # an older one
    await n1.beat()
    assert n1.addresses == {"n0": "[::1]:7430"}
    await n1.forget(NodeRecord("n0", n0.boot, 0))
    await n1.beat()
    assert n1.addresses == {}
    n0.address = ""
    await n0.register()
    await n1.beat()
    assert n1.addresses == {}


async def test_a_store_that_refuses_for_long_is_no_reason_to_end_a_process(
    nodes: MakeNodes, eventually: Any
) -> None:
    n0, _ = await nodes("n0")
    clock: ManualClock = clock_of(n0)
    await n0.register()
    raft = SimpleNamespace(status=lambda: {"tick_age_s": 0.0})
    health: Any = SimpleNamespace(clock=clock, nodes=n0, raft=raft)
    await link_of(n0).call("DEL", "{tw}:nodes")
    await link_of(n0).call("SET", "{tw}:nodes", "of another type")
    task = asyncio.create_task(n0.run())
    for _ in range(5):
        await eventually(lambda: clock.monotonic() == n0.turned_at and not waiting_at(link_of(n0)))
        await clock.advance(SILENT_S_MAX / 4)
    await eventually(lambda: clock.monotonic() == n0.turned_at)
    assert clock.monotonic() - n0.beat_at > SILENT_S_MAX
    assert Status.dead(health) == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(SILENT_S_MAX + 1)
    assert "has not come round for 31 s" in Status.dead(health)
    await link_of(n0).call("DEL", "{tw}:nodes")


RUBBISH = [b"", b"x", b"\xff\x00", b"5", b"x 5", b"5 x", b"1.5 2", b"nan nan"]


@pytest.mark.parametrize("value", RUBBISH)
async def test_a_registration_that_nobody_can_read_keeps_no_other_node(
    nodes: MakeNodes, value: bytes
) -> None:
    """
    All read all: an error here, and no node could say that it lives. Its own node, if there is one,
    registers anew.
    """
    (n0, _), (n1, _) = await nodes("n0"), await nodes("n1")
    for one in (n0, n1):
        await one.register()
    await link_of(n0).call("HSET", "{tw}:nodes", "ghost", value)
    await link_of(n0).call("HSET", "{tw}:nodes", b"\xff", "1 2")
    await link_of(n0).call("HSET", "{tw}:nodes:at", b"\xff", b"\xff")
    await link_of(n0).call("HSET", "{tw}:nodes", "n1", value)
    await link_of(n0).call("HSET", "{tw}:nodes:boots", "n1", value)
    await n0.beat()
    assert {seen.node for seen in n0.seen} == {"n0"}
    boot = n1.boot
    with pytest.raises(Stale):
        await n1.beat()
    await n1.register()
    assert n1.boot > boot
    await n0.beat()
    assert {seen.node for seen in n0.seen} == {"n0", "n1"}


@pytest.mark.parametrize("value", [*RUBBISH, b"1e999"])
async def test_a_fence_that_nobody_can_read_is_none(nodes: MakeNodes, value: bytes) -> None:
    """Raft's epochs only grow, and each shard keeps its own: whoever claims next has it."""
    n0, _ = await nodes("n0")
    await link_of(n0).call("HSET", "{tw}:fence", "epoch", value, "holder", value)
    assert await scripts_of(n0).run(link_of(n0), "cluster.claim", ["{tw}:fence"], [6, "n0.1"]) == 1
    assert await link_of(n0).call("HGET", "{tw}:fence", "epoch") == b"6"
