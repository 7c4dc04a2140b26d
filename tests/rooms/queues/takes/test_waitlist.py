"""
How many waiting takes are tried for what becomes ready, and that none of them is forgotten:
counted, not timed.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.inspect import shards_of
from support.queues.parked_takes import LONG_MS, Asked, lose, many, parked, wait_in

from tidewarden.queue import TaskSpec
from tidewarden.queue.shards.waitlist import TRIES_MAX, Tries, Waitlist


class Bell:
    """A waiting take that is tried; each try is answered by hand."""

    def __init__(self, *, task_id: str = "", count: int = 1) -> None:
        self.task_id = task_id
        self.count = count
        self.free = True
        self.tried: list[bool] = []
        self.later = 0
        self.tries: Tries | None = None

    def try_shard(self, shard: Any, tries: Tries, *, more: bool) -> None:
        self.free = False
        self.tried.append(more)
        self.tries = tries

    def try_later(self, shard: Any) -> None:
        self.later += 1

    def stop_waiting(self) -> None:
        raise AssertionError

    def answer(self, found: bool | None) -> None:
        assert self.tries is not None
        self.free, tries, self.tries = True, self.tries, None
        tries.tried(self, found)


@pytest.fixture
async def shard() -> Any:
    made = SimpleNamespace(wakes=0)
    made.waiters = Waitlist(made)

    def wake() -> None:
        made.wakes += 1
        made.waiters.wake()

    made.wake = wake
    return made


def wait(shard: Any, count: int, **options: Any) -> list[Bell]:
    bells = [Bell(**options) for _ in range(count)]
    shard.waiters.parked.update(dict.fromkeys(bells))
    return bells


def asked(bells: list[Bell]) -> list[int]:
    """The places of those who are asked now."""
    return [place for place, bell in enumerate(bells) if bell.tries is not None]


async def test_one_is_tried_and_twice_as_many_while_all_find_something(shard: Any) -> None:
    bells = wait(shard, 60)
    shard.wake()
    first = 0
    for size in (1, 2, 4, 8, TRIES_MAX, TRIES_MAX):
        assert asked(bells) == list(range(first, first + size)), "the oldest"
        first += size
        shard.wakes += 1  # their answer says that there is more
        for place in asked(bells):
            del shard.waiters.parked[bells[place]]
            bells[place].answer(found=True)
    assert all(more for bell in bells[:47] for more in bell.tried)


async def test_that_there_is_more_starts_with_one_again_when_one_found_nothing(shard: Any) -> None:
    bells = wait(shard, 10)
    shard.wake()
    shard.wakes += 1
    bells[0].answer(found=True)
    assert asked(bells) == [0, 1]
    shard.wakes += 1
    bells[0].answer(found=True)
    bells[1].answer(found=False)
    assert asked(bells) == [0]


async def test_nobody_else_is_tried_when_nothing_is_left(shard: Any) -> None:
    bells = wait(shard, 10)
    shard.wake()
    bells[0].answer(found=True)
    assert asked(bells) == []
    shard.wake()
    bells[0].answer(found=False)
    assert asked(bells) == []


async def test_a_wake_up_while_they_are_tried_is_not_lost(shard: Any) -> None:
    bells = wait(shard, 3)
    shard.wake()
    shard.wake()
    assert asked(bells) == [0]
    bells[0].answer(found=False)
    assert asked(bells) == [0]


async def test_busy_ones_look_by_themselves_and_those_who_want_one_task_do_not_count(
    shard: Any,
) -> None:
    named, (busy,), others = wait(shard, 40, task_id="a"), wait(shard, 1), wait(shard, 2)
    busy.free = False
    shard.wake()
    assert len(asked(named)) == 40
    assert (asked(others), busy.later, busy.tried) == ([0], 1, [])
    for bell in named:
        bell.answer(found=False)
    shard.wakes += 1
    others[0].answer(found=True)
    assert asked(others) == [0, 1], "that the named found nothing does not count"


async def test_the_last_one_is_told_that_nobody_else_waits(shard: Any) -> None:
    (bell,) = wait(shard, 1)
    shard.wake()
    assert bell.tried == [False]


async def test_a_round_that_failed_comes_again(shard: Any, eventually: Any) -> None:
    bells = wait(shard, 3)
    shard.wake()
    del shard.waiters.parked[bells[0]]
    bells[0].answer(None)
    assert asked(bells) == []
    await eventually(lambda: asked(bells) == [1])


async def test_when_none_is_left_no_round_follows(shard: Any) -> None:
    (bell,) = wait(shard, 1)
    shard.wake()
    shard.wakes += 1
    shard.waiters.parked.clear()
    bell.answer(found=True)
    assert bell.tried == [False]


@pytest.mark.parametrize("count", [1, 50])
async def test_a_put_on_another_node_makes_one_take_ask_in_one_call(
    node: Any, eventually: Any, asked_of: Asked, count: int
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    takes = await many(eventually, n1, count)
    await n0.queues.catalog.shard_count("q")
    asked_of.clear()
    for number in range(min(count, 5)):
        await n0.queues.put("q", TaskSpec(id=f"a{number}"))
        assert [task.id for task in await takes[number]] == [f"a{number}"], "the oldest waiter"
        assert (asked_of.calls(n0), asked_of.takes(n0)) == (number + 1, 0)
        assert (asked_of.calls(n1), asked_of.takes(n1)) == (number + 1, number + 1)
    n1.queues.end_waits()


async def test_a_burst_on_another_node_is_asked_for_in_rounds_that_grow(
    node: Any, eventually: Any, asked_of: Asked
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    takes = await many(eventually, n1, 100)
    await n0.queues.catalog.shard_count("q")
    asked_of.clear()
    await asyncio.gather(
        *(n0.queues.put("q", TaskSpec(id=f"t{number:03}")) for number in range(100))
    )
    found = [task.id for take in takes for task in await take]
    assert found == [f"t{number:03}" for number in range(100)], "oldest waiters first"
    assert asked_of.takes(n1) == 100, "none in vain"
    assert asked_of.calls(n1) == 5 + 5, "1, 2, 4, 8, 16, then 16 each, and the rest"


@pytest.mark.parametrize("order", ["bands", "edf"])
async def test_who_asks_beside_others_that_wait_leaves_the_node_registered(
    node: Any, eventually: Any, order: str
) -> None:
    """A take that comes first to a task, which those who wait were to be woken for."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"order": order})
    await n1.queues.catalog.shard_count("q")
    # Who waits while a node hears of another order ends empty, and asks again.
    await eventually(lambda: n1.queues.catalog.settings["q"] == n0.queues.catalog.settings["q"])
    takes = await many(eventually, n1, 3)
    (shard,) = shards_of(n1.queues, "q")
    woken, shard.wake = shard.wake, lambda: None  # its message is not heard yet
    await n0.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await n1.queues.take(n1.queues.open_session(), ["q"])] == ["a"]
    assert await n1.link.call("HGET", "{tw:q:0}:shard", "waiting") == b"n1.1"
    shard.wake = woken
    await n0.queues.put("q", TaskSpec(id="b"))
    assert [task.id for task in await takes[0]] == ["b"]
    n1.queues.end_waits()


async def test_a_try_that_fails_leaves_nobody_asleep(
    node: Any, eventually: Any, monkeypatch: Any
) -> None:
    """The first that is woken meets a lost connection: the others have to be tried all the same."""
    n0, n1 = await node("n0"), await node("n1")
    takes = await many(eventually, n1, 5)
    await n0.queues.catalog.shard_count("q")
    lose(monkeypatch, n1, {"queue.take"})
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=f"a{number}")) for number in range(5)))
    found = await asyncio.gather(*takes)
    assert sorted(task.id for (task,) in found) == [f"a{number}" for number in range(5)]


async def test_a_woken_take_of_two_queues_is_tried_there_and_the_next_one_as_well(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session = n1.queues.open_session()
    await n1.queues.catalog.shard_count("p")
    both = n1.queues.take(session, ["p", "q"], wait_ms=LONG_MS)
    await parked(eventually, n1.queues, 1, "p")
    _, single = await wait_in(eventually, n1)
    await asyncio.gather(
        n0.queues.put("p", TaskSpec(id="p1")), n0.queues.put("q", TaskSpec(id="q1"))
    )
    assert [task.id for task in await both] in (["p1"], ["q1"])
    if both.result()[0].id == "q1":
        await n0.queues.put("q", TaskSpec(id="q2"))
    assert [task.queue for task in await single] == ["q"]


@pytest.mark.parametrize("queues", [["q"], ["q", "p"]])
async def test_who_waits_for_one_task_alone_does_not_ask_for_ever(
    node: Any, eventually: Any, asked_of: Asked, queues: list[str]
) -> None:
    n0 = await node("n0")
    for queue in queues:
        await n0.queues.put(queue, TaskSpec(id="other"))
    take = n0.queues.take(n0.queues.open_session(), queues, wait_ms=LONG_MS, task_id="a")
    for queue in queues:
        await parked(eventually, n0.queues, 1, queue)
    asked_of.clear()
    await n0.queues.put("q", TaskSpec(id="another"))
    await n0.link.call("PING")
    await n0.link.call("PING")
    assert asked_of.calls(n0) <= 2, "the put, and the take that was woken by it"
    await n0.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await take] == ["a"]


def test_a_take_of_a_node_with_others_stays_registered_or_says_that_there_is_more(
    desk: Any,
) -> None:
    """By the third argument of a take, 3."""
    for task in "abc":
        desk.put(task)
    assert len(desk.run("queue.take", 200, 2, 0, "3", "")[0]) == 2
    assert (desk.woke, desk.record("waiting")) == (True, ""), "there is more"
    assert len(desk.run("queue.take", 200, 1, 0, "3", "")[0]) == 1
    assert (desk.woke, desk.record("waiting")) == (False, desk.holder), "that was the last one"
    assert desk.run("queue.take", 200, 1, 0, "3", "") == [[]]
    assert (desk.woke, desk.record("waiting")) == (False, desk.holder)


def test_which_tasks_were_the_last_is_seen_whatever_priorities_there_are(desk: Any) -> None:
    desk.put("a", priority=10)
    desk.put("b", priority=20)
    assert len(desk.run("queue.take", 200, 1, 0, "3", "")[0]) == 1
    assert desk.woke, "another priority may have some"
    assert len(desk.run("queue.take", 200, 1, 0, "3", "")[0]) == 1
    assert not desk.woke
    desk.put("c", priority=10)
    assert len(desk.run("queue.take", 200, 1, 0, "3", "")[0]) == 1
    assert desk.woke, "it is not known that the other has none"
    assert desk.run("queue.take", 200, 1, 0, "3", "") == [[]]
    assert not desk.woke


def test_a_named_take_says_nothing_of_the_others(desk: Any) -> None:
    desk.put("a")
    desk.put("b")
    assert len(desk.run("queue.take", 200, 1, 0, "3", "a")[0]) == 1
    assert (desk.woke, desk.record("waiting")) == (False, "")
