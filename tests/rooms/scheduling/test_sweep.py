"""
The leader's sweep on a real store: what other nodes put is made ready in time, and idle it costs
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from support.inspect import waiting_at

from tidewarden.clock import SystemClock
from tidewarden.errors import BadArg, Internal, Stale
from tidewarden.queue import TaskSpec
from tidewarden.scheduler import sweep as module
from tidewarden.scheduler.sweep import Sweep


@contextlib.asynccontextmanager
async def sweeping(node: Any) -> AsyncIterator[Any]:
    """A node that sweeps, as the daemon wires it."""
    n0 = await node("n0")
    fired: list[tuple[Any, ...]] = []

    async def fire(*args: Any) -> int:
        fired.append(args)
        return -1

    def run(queue: str, shard: int, args: list[int]) -> Awaitable[Any]:
        return n0.queues.scripts.run_on(n0.link, "queue.sweep", queue, shard, args)

    n0.sweep = Sweep(n0.queues, SystemClock(), fire, run)
    n0.queues.catalog.on_next = n0.sweep.expect
    n0.task = asyncio.create_task(n0.sweep.run(1, n0.queues.catalog.holder))
    yield n0
    n0.task.cancel()
    await asyncio.gather(n0.task, return_exceptions=True)


@pytest.fixture
async def leader(node: Any) -> Any:
    async with sweeping(node) as made:
        yield made


@pytest.mark.parametrize("shards", [1, 8])
async def test_what_another_node_puts_is_made_ready_in_time(
    leader: Any, node: Any, eventually: Any, shards: int
) -> None:
    n1 = await node("n1")
    await n1.queues.admin.configure("q", {"shards": shards})
    await asyncio.gather(
        *(n1.queues.put("q", TaskSpec(id=f"t{n}", delay_ms=20 + n)) for n in range(20))
    )
    await eventually(lambda: leader.sweep.moved == 20)
    stats = await n1.queues.admin.stats("q")
    assert (stats["ready"], stats["delayed"]) == (20, 0)


@pytest.mark.parametrize(
    ("name", "settings"), [("bad", b"{"), ("bad", b'{"shards":"x"}'), (b"\xff", b"{}")]
)
async def test_a_queue_whose_settings_nobody_can_read_holds_up_no_other(
    node: Any, eventually: Any, name: Any, settings: bytes
) -> None:
    n1 = await node("n1")
    await n1.queues.put("q", TaskSpec(id="a", delay_ms=20))
    await n1.link.call("HSET", "{tw}:queues", name, settings)
    async with sweeping(node) as leader:
        await eventually(lambda: leader.sweep.moved == 1)
        assert not leader.task.done()
    with pytest.raises((Internal, BadArg)):
        await n1.queues.put("bad" if name == "bad" else "\udcff", TaskSpec(id="b"))
    assert {"q"} <= set(await n1.queues.catalog.names()) <= {"q", "bad"}
    if name == "bad":
        assert (await n1.queues.consistency.check("bad"))["found"] == {"unreadable settings": 1}


async def test_leases_end_and_attempts_are_counted_without_any_consumer(
    leader: Any, node: Any, eventually: Any
) -> None:
    n1 = await node("n1")
    await n1.queues.put("q", TaskSpec(id="a", attempts=1))
    await n1.queues.take(n1.queues.open_session(), ["q"], lease_ms=20)
    await eventually(lambda: leader.sweep.moved == 1)
    assert (await n1.queues.admin.peek("q", "a"))["state"] == "buried"


async def test_what_it_makes_ready_wakes_those_who_wait_at_the_leader(
    leader: Any, node: Any, eventually: Any
) -> None:
    n1 = await node("n1")
    await n1.queues.put("q", TaskSpec(id="a", delay_ms=50))
    take = leader.queues.take(leader.queues.open_session(), ["q"], wait_ms=60_000)
    assert [task.id for task in await take] == ["a"]


async def test_a_newer_leader_ends_it(leader: Any, node: Any, eventually: Any) -> None:
    n1 = await node("n1")
    await n1.queues.put("q", TaskSpec(id="a", delay_ms=80))
    await eventually(lambda: leader.sweep.rounds)
    await n1.queues.scripts.run("queue.sweep", "q", 0, [2, 10])
    leader.sweep.expect("q", 0, 0)
    with pytest.raises(Stale, match=r"epoch 2 held by n1\.1"):
        await leader.task


async def test_idle_costs_nothing(leader: Any, node: Any, eventually: Any) -> None:
    n1 = await node("n1")
    await n1.queues.admin.configure("q", {"shards": 4})
    await n1.queues.put("q", TaskSpec(delay_ms=10**6))
    await eventually(lambda: leader.sweep.rounds >= 4)
    await eventually(lambda: not waiting_at(leader.link))
    loop = asyncio.get_running_loop()
    quiet = loop.time() + 0.05
    await eventually(lambda: loop.time() > quiet)
    calls, rounds = leader.link.calls, leader.sweep.rounds
    end = loop.time() + 0.15
    await eventually(lambda: loop.time() > end)
    assert (leader.link.calls, leader.sweep.rounds) == (calls, rounds)
    assert module.MOVED_MAX == 500


async def test_a_queue_that_is_dropped_while_all_are_looked_at_stops_no_sweep(
    leader: Any, node: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leader.queues.put("gone", TaskSpec())
    await leader.queues.dropped.drop("gone", force=True)

    async def names() -> list[str]:
        return ["gone", "q"]

    monkeypatch.setattr(leader.queues.catalog, "names", names)
    await leader.sweep.expect_all()
    await leader.queues.put("q", TaskSpec(delay_ms=20))
    await eventually(lambda: leader.sweep.moved == 1)
    assert not leader.task.done()
