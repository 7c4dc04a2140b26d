"""Registrations: boots that grow, signs of life, who is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_servers import ClusterSet

from tidewarden.clock import ManualClock, SystemClock
from tidewarden.cluster import nodes as module
from tidewarden.cluster.nodes import DEAD_MS, Nodes, Registration, dead_nodes
from tidewarden.errors import Stale, StoreDown
from tidewarden.health import SILENT_S_MAX, Health
from tidewarden.queue.registry import SCRIPT_ROOMS, SHARED
from tidewarden.store import Scripts
from tidewarden.store.primaries import Primaries
from tidewarden.store.slots import slot_of
from tidewarden.store.topology import Topology

MakeNodes = Callable[..., Awaitable[tuple[Nodes, list[str]]]]


@pytest.fixture
async def nodes(node: Any) -> MakeNodes:
    """``await nodes("n0")`` gives a node's registration and the holders it announced."""

    async def make(name: str = "n0") -> tuple[Nodes, list[str]]:
        n = await node(name)
        holders: list[str] = []
        return Nodes("tw", name, n.link, n.scripts, ManualClock(), holders.append), holders

    return make


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


async def test_a_boot_grows_although_the_stores_clock_stepped_back(nodes: MakeNodes, valkey: Any) -> None:
    n0, _ = await nodes()
    far = 4_000_000_000_000
    await n0._link.call("HSET", "{tw}:nodes", "n0", f"{far} {far}")
    await n0.register()
    assert n0.boot == far + 1
    await n0._link.call("DEL", "{tw}:nodes")  # and although the store forgot it
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
    run = n0._scripts.run(n0._link, "cluster.beat", ["{tw}:nodes"], [n0.boot + 10**6, "n0", n0.boot, 1])
    _, now_ms, flat = await run
    ages = dict(zip(flat[::3], flat[2::3], strict=True))
    assert now_ms == n0.boot + 10**6
    assert ages[b"n0"] == 0
    assert 10**6 - 5000 < ages[b"n1"] <= 10**6


async def test_one_that_was_buried_or_replaced_is_stale_and_registers_again(nodes: MakeNodes) -> None:
    n0, holders = await nodes()
    await n0.register()
    other, _ = await nodes()
    await other.register()
    with pytest.raises(Stale, match=rf"n0\.{n0.boot} is not registered any more; stored is {other.boot}"):
        await n0.beat()
    await n0.register()
    assert n0.boot > other.boot
    assert holders == [f"n0.{n0.boot}" for n0.boot in (holders and [int(h.split(".")[1]) for h in holders])]
    await n0.bury(Registration("n0", n0.boot, 0))
    with pytest.raises(Stale, match="stored is 0"):
        await n0.beat()


async def test_burying_spares_a_newer_boot(nodes: MakeNodes) -> None:
    n0, _ = await nodes("n0")
    n1, _ = await nodes("n1")
    await n0.register()
    old = n0.boot
    await n0.register()
    await n1.bury(Registration("n0", old, 5000))
    await n0.beat()
    await n1.bury(Registration("none", 1, 5000))


def test_dead_are_those_old_at_the_store_and_not_heard_by_raft() -> None:
    old, young = DEAD_MS, DEAD_MS - 1
    seen = [Registration("n0", 1, old), Registration("n1", 1, old), Registration("n2", 1, old), Registration("n3", 1, young)]  # fmt: skip
    heard = {"n0": 9e9, "n1": 9e9, "n2": 0.1, "n3": 9e9}
    assert dead_nodes(seen, "n0", heard.__getitem__) == [seen[1]], "not itself, not one that either still hears"


async def test_how_many_live(nodes: MakeNodes) -> None:
    n0, n1, n2 = [(await nodes(name))[0] for name in ("n0", "n1", "n2")]
    assert n0.living() == 1, "not heard yet"
    for each in (n0, n1, n2, n0):
        await each.beat()
    assert n0.living() == 3
    gone = [
        Registration("n1", 1, DEAD_MS),
        Registration("n2/1", 1, 0),
        Registration("n2", 1, 0),
        Registration("n0", 1, 0),
    ]
    n0.seen = gone
    assert n0.living() == 2, "a node's further processes are no nodes"


def test_a_nodes_further_processes_are_dead_with_it() -> None:
    seen = [Registration(name, 1, DEAD_MS) for name in ("n0/1", "n1/1", "n1/2", "n2/1")]
    assert dead_nodes(seen, "n0", {"n1": 9e9, "n2": 0.1}.__getitem__) == seen[1:3]


async def test_the_loop_beats_and_registers_again_when_it_was_buried(
    nodes: MakeNodes, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    n0, holders = await nodes()
    clock: ManualClock = n0._clock
    await n0.register()
    task = asyncio.create_task(n0.run())

    async def round_of_the_clock() -> None:
        calls = n0._link.calls
        await clock.advance(module.BEAT_S)
        await eventually(lambda: n0._link.calls > calls and not n0._link._waiting)

    for _ in range(3):
        await round_of_the_clock()
    assert holders == [f"n0.{n0.boot}"]
    await n0.bury(Registration("n0", n0.boot, 0))
    await round_of_the_clock()
    await eventually(lambda: len(holders) == 2)
    assert holders[1] == n0.holder
    assert "registering again, what this node held is lost" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_registering_that_failed_is_made_up_for_and_announced(
    nodes: MakeNodes, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between STALE and registering again the store goes away: the node must not go on under a holder nobody was told of."""
    n0, holders = await nodes()
    await n0.register()
    real, down = n0._scripts.run, [True]

    def run(link: Any, name: str, keys: Any, args: Any) -> Any:
        if down[0] and args[2] == 0:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(StoreDown("away"))
            return future
        return real(link, name, keys, args)

    monkeypatch.setattr(n0, "_scripts", type("Away", (), {"run": staticmethod(run)}))
    await n0._link.call("DEL", "{tw}:nodes")
    clock: ManualClock = n0._clock
    task = asyncio.create_task(n0.run())
    for _ in range(5):
        await clock.advance(module.BEAT_S)
        await n0._link.call("PING")
    assert len(holders) == 1
    down[0] = False
    for _ in range(5):
        await clock.advance(module.BEAT_S)
        await n0._link.call("PING")
    assert holders[1:] == [n0.holder]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
    await n1.bury(Registration("n0", n0.boot - 1, 0))  # an older one
    await n1.beat()
    assert n1.addresses == {"n0": "[::1]:7430"}
    await n1.bury(Registration("n0", n0.boot, 0))
    await n1.beat()
    assert n1.addresses == {}
    n0.address = ""
    await n0.register()
    await n1.beat()
    assert n1.addresses == {}


async def test_an_address_that_the_store_has_lost_is_told_again(nodes: MakeNodes) -> None:
    n0, _ = await nodes("n0")
    n1, _ = await nodes("n1")
    n0.address = "10.0.0.1:7420"
    for each in (n0, n1):
        await each.register()
    assert n1.addresses == {"n0": "10.0.0.1:7420"}
    await n0._link.call("DEL", "{tw}:nodes:at")
    await n1.beat()
    assert n1.addresses == {}
    await n0.beat()
    await n1.bury(Registration("n1", 0, 0))
    await n1.beat()
    assert n1.addresses == n0.addresses == {"n0": "10.0.0.1:7420"}
    await n1.bury(Registration("n0", n0.boot, 0))
    await n1.beat()
    assert n1.addresses == {}
    n0.address = ""
    await n0._link.call("HSET", "{tw}:nodes:at", "n0", "of another time")
    await n0.register()
    assert await n0._link.call("HGETALL", "{tw}:nodes:at") == []


@pytest.mark.live
async def test_beats_go_on_while_the_keys_of_their_slot_move_one_by_one(three_primaries: ClusterSet) -> None:
    slot = slot_of("{tidewarden}")
    source = three_primaries.owner(slot)
    target = next(port for port in three_primaries.ports if port != source)
    auth = ["AUTH", three_primaries.password] if three_primaries.password else []

    def move(key: str) -> None:
        three_primaries.say(source, "MIGRATE", "127.0.0.1", target, "", 0, 5000, *auth, "KEYS", key)

    clock, scripts = SystemClock(), Scripts(SHARED, SCRIPT_ROOMS, plain=("tidewarden.cluster",))
    topology = Topology(three_primaries.url(), "x", clock)
    route = Primaries(topology, "x", clock, on_up=scripts.load_commands)
    await route.start(wait_s=60)
    try:
        n0 = Nodes("tidewarden", "n0", route, scripts, clock, lambda _: None)
        for first, then in (("nodes", "nodes:at"), ("nodes:at", "nodes")):
            n0.address = "10.0.0.1:7420"
            await n0.register()
            three_primaries.open_slot(slot, source, target)
            move(f"{{tidewarden}}:{first}")
            await n0.beat()
            n0.address = "10.0.0.2:7420"
            await n0.register()
            move(f"{{tidewarden}}:{then}")
            three_primaries.move_keys(slot, source, target)
            three_primaries.close_slot(slot, source, target)
            await n0.beat()
            assert n0.addresses == {"n0": "10.0.0.2:7420"}
            assert [seen.node for seen in n0.seen] == ["n0"]
            source, target = target, source
    finally:
        await route.stop()


async def test_what_was_away_from_all_tells_nobody_that_others_are_dead(nodes: MakeNodes) -> None:
    n0, _ = await nodes("n0")
    clock: ManualClock = n0._clock
    await n0.register()
    assert n0.steady_s() > 1000, "nothing is known against it"
    await clock.advance(module.PAUSE_S)
    await n0.beat()
    assert n0.steady_s() > 1000
    await clock.advance(module.PAUSE_S + 0.1)
    await n0.beat()
    assert n0.steady_s() == 0
    for _ in range(4):
        await clock.advance(module.BEAT_S)
        await n0.beat()
    assert n0.steady_s() * 1000 == pytest.approx(DEAD_MS)


async def test_a_store_that_refuses_for_long_is_no_reason_to_end_a_process(nodes: MakeNodes, eventually: Any) -> None:
    n0, _ = await nodes("n0")
    clock: ManualClock = n0._clock
    await n0.register()
    raft = SimpleNamespace(status=lambda: {"tick_age_s": 0.0})
    health: Any = SimpleNamespace(clock=clock, nodes=n0, raft=raft)
    await n0._link.call("DEL", "{tw}:nodes")
    await n0._link.call("SET", "{tw}:nodes", "of another type")
    task = asyncio.create_task(n0.run())
    for _ in range(5):
        await eventually(lambda: clock.monotonic() == n0.turned_at and not n0._link._waiting)
        await clock.advance(SILENT_S_MAX / 4)
    await eventually(lambda: clock.monotonic() == n0.turned_at)
    assert clock.monotonic() - n0.beat_at > SILENT_S_MAX
    assert Health.dead(health) == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(SILENT_S_MAX + 1)
    assert "has not come round for 31 s" in Health.dead(health)
    await n0._link.call("DEL", "{tw}:nodes")
