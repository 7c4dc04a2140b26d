"""One shard's batches, timers and wake-ups, and who is told what through the store."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.inspect import store_memory_of, timer_of
from support.queues.desk import queue_scripts
from support.queues.parked_takes import takes_in

from tidewarden.errors import BadArg, Full, Internal, StoreDown
from tidewarden.queue.partitioning import prefix_of, split_prefix
from tidewarden.queue.sessions.session import Session
from tidewarden.queue.shards.shard import FLYING_MAX, ITEMS_MAX, Shard
from tidewarden.queue.shards.waitlist import Tries
from tidewarden.queue.take import Take, TakesUnderWay
from tidewarden.queue.task import TaskSpec
from tidewarden.queue.waits.drain import Drain
from tidewarden.store.connection import ReplyError
from tidewarden.store.scripts.loader import Script


@pytest.mark.parametrize("queue", ["q", "a:b", "a/b.c-d_e", "_tokens:p:c", "x" * 200])
def test_a_prefix_and_its_parts(queue: str) -> None:
    assert prefix_of("tw", "q", 3) == "{tw:q:3}"
    assert split_prefix(prefix_of("tw", queue, 12)) == ("tw", queue, 12)


class Bell:
    """A waiting take that finds nothing."""

    task_id = ""
    count = 1
    free = True

    def __init__(self) -> None:
        self.tried = 0
        self.stopped = False

    def try_shard(self, shard: Shard, tries: Tries, *, more: bool) -> None:
        self.tried += 1
        tries.tried(self, found=False)

    def try_later(self, shard: Shard) -> None:
        raise AssertionError

    def stop_waiting(self) -> None:
        self.stopped = True


class Told:
    """Scripts and link double: each call is kept and answered by hand."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __getitem__(self, name: str) -> Script:
        return queue_scripts()[name]

    def send(self, link: Any, name: str, keys: Any, args: Any, receiver: Any) -> None:
        self.calls.append((name, tuple(args), receiver))


@pytest.fixture
async def told() -> Told:
    return Told()


@pytest.fixture
async def shard(told: Told) -> Shard:
    def on_next(shard: Shard, delay_ms: int) -> None:
        shard.nexts.append(delay_ms)

    made = Shard(
        SimpleNamespace(refused=lambda message: None), told, ("{tw:q:0}",), lambda: "n0.1", on_next
    )
    made.nexts = []
    return made


async def turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_items_of_one_turn_go_out_together_puts_first(shard: Shard, told: Told) -> None:
    took: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shard.take(took, 2, 0, True)
    futures = [took, shard.put("a", "", b"1"), shard.put("b", "", b"2"), shard.ack("c", 5)]
    ended = shard.end("d", 6, "release")
    assert not told.calls
    await turn()
    put, ack, take = ("a", "", b"1", "b", "", b"2"), ("c", 5, b""), (200, 2, 0, 1, "")
    assert [(name, args) for name, args, _ in told.calls] == [
        ("queue.batch", (0, "n0.1", "put", 6, *put, "ack", 3, *ack, "take", 5, *take)),
        ("queue.end", (0, "n0.1", "d", 6, "release", -1, "")),
    ]
    told.calls[0][2].set_result([7, -1, 0, [[1, 0], ReplyError("BADARG the ack"), [["row"]]]])
    assert [await futures[1], await futures[2], await futures[0]] == [1, 0, ["row"]]
    with pytest.raises(BadArg, match="the ack"):
        await futures[3]
    assert shard.now_ms == 7
    assert not ended.done()


async def park(shard: Shard, told: Told, count: int = 1, task_id: str = "") -> list[Take]:
    """Takes that wait, one after the other."""
    loop = asyncio.get_running_loop()
    under_way = TakesUnderWay(Drain())
    takes = [
        Take(under_way, Session(), [shard], loop.time() + 60, loop.create_future())
        for _ in range(4)
    ]
    for take in takes:
        take.start(count, 0, task_id)
    await turn()
    told.calls.pop()[2].set_result([7, -1, 0, [[]] * len(takes)])
    assert list(shard.parked) == takes
    return takes


async def test_who_waits_goes_along_with_a_put_before_those_who_come_now(
    shard: Shard, told: Told
) -> None:
    takes = await park(shard, told)
    came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shard.take(came, 3, 0, 0)
    put = [shard.put(name, "", b"") for name in "ab"]
    await turn()
    (name, args, receiver) = told.calls.pop()
    assert (name, args[-15:]) == ("queue.batch", ("take", 13, 200, *(1, 0, 3, "") * 2, 3, 0, 0, ""))
    row = [b"a", 5, b"", 1, 9, 9]
    receiver.set_result([8, -1, 0, [[1, 1], [[row], [row], []]]])
    assert [await future for future in (*put, came)] == [1, 1, []]
    assert [len(await take.receiver) for take in takes[:2]] == [1, 1]
    await turn()
    assert list(shard.parked) == takes[2:], "the oldest are served"


async def test_who_was_woken_already_counts_among_those_who_go_along(
    shard: Shard, told: Told
) -> None:
    await park(shard, told)
    shard.wake()
    shard.put("a", "", b"")
    await turn()
    assert told.calls[-1][1][-7:] == ("take", 5, 200, 1, 0, 3, "")


@pytest.mark.parametrize(
    ("options", "count", "going"),
    [
        (["", ""], 1, 2),
        ([TaskSpec(delay_ms=5).options(own=True), TaskSpec(at_ms=5).options(own=True)], 1, 0),
        ([TaskSpec(delay_ms=5).options(own=True), TaskSpec(priority=3).options(own=True)], 1, 1),
        ([""] * 9, 1, 4),
        ([""] * 4, 3, 2),
        ([""] * 9, 1000, 1),
    ],
)
async def test_as_many_go_along_as_there_are_tasks_that_are_ready(
    shard: Shard, told: Told, options: list[str], count: int, going: int
) -> None:
    await park(shard, told, count)
    for number, said in enumerate(options):
        shard.put(f"t{number}", said, b"")
    await turn()
    name, args, _ = told.calls[-1]
    assert takes_in(name, args) == going


async def test_nobody_goes_along_while_the_store_is_full(shard: Shard, told: Told) -> None:
    takes = await park(shard, told)
    store_memory_of(shard).full = True
    put = shard.put("a", "", b"")
    await turn()
    assert not told.calls
    assert all(take.free for take in takes)
    with pytest.raises(Full):
        await put


async def test_who_wants_one_task_alone_goes_along_with_that_one(shard: Shard, told: Told) -> None:
    await park(shard, told, task_id="b")
    shard.put("a", "", b"")
    await turn()
    assert told.calls.pop()[0] == "queue.put"
    shard._flying = 0
    shard.put("b", "", b"")
    await turn()
    assert takes_in(*told.calls[-1][:2]) == 1


async def test_nobody_goes_along_again_when_nothing_came_of_it_until_there_is_a_wake_up(
    shard: Shard, told: Told
) -> None:
    await park(shard, told)
    for woke, going in ((0, 1), (0, 0), (1, 0), (0, 1)):
        put = shard.put("a", "", b"")
        await turn()
        name, args, receiver = told.calls.pop()
        assert takes_in(name, args) == going
        parts = [[1], [[]]] if going else [1]
        receiver.set_result([8, -1, woke, parts])
        assert await put == 1
        if woke:
            told.calls.pop()[2].set_result([8, -1, 0, [[]]])
        await turn()


async def test_a_failed_put_is_not_the_failure_of_who_went_along(
    shard: Shard, told: Told, eventually: Any
) -> None:
    takes = await park(shard, told)
    put = shard.put("a", "", b"")
    await turn()
    told.calls.pop()[2].set_exception(Internal("a defect"))
    with pytest.raises(Internal):
        await put
    assert list(shard.parked) == takes, "each in its place"
    await eventually(lambda: told.calls)
    assert takes_in(*told.calls[-1][:2]) == 1, (
        "it looks whether it was that put that made something ready"
    )


async def test_one_verb_alone_is_its_own_script(shard: Shard, told: Told) -> None:
    shard.ack("c", 5)
    await turn()
    assert [(name, args) for name, args, _ in told.calls] == [
        ("queue.ack", (0, "n0.1", "c", 5, b""))
    ]


async def test_while_enough_calls_are_under_way_items_gather(shard: Shard, told: Told) -> None:
    for n in range(FLYING_MAX + 3):
        shard.ack(f"t{n}", n)
        await turn()
    assert len(told.calls) == FLYING_MAX
    told.calls[1][2].set_result([7, -1, 0, [1]])
    await turn()
    assert len(told.calls) == FLYING_MAX + 1
    assert told.calls[-1][1] == (
        0,
        "n0.1",
        *(x for n in range(FLYING_MAX, FLYING_MAX + 3) for x in (f"t{n}", n, b"")),
    )
    told.calls[0][2].set_exception(StoreDown("gone"))
    shard.ack("later", 1)
    await turn()
    assert told.calls[-1][1] == (0, "n0.1", "later", 1, b"")


async def test_a_full_batch_does_not_wait(shard: Shard, told: Told) -> None:
    for n in range(ITEMS_MAX * (FLYING_MAX + 1)):
        shard.ack(f"t{n}", n)
    assert [len(args) for _, args, _ in told.calls] == [2 + 3 * ITEMS_MAX] * (FLYING_MAX + 1)


async def test_a_script_by_itself_goes_after_what_was_batched(shard: Shard, told: Told) -> None:
    shard.put("a", "", b"")
    future = shard.run("queue.stats", (), 5)
    assert [(name, args[0]) for name, args, _ in told.calls] == [
        ("queue.put", 0),
        ("queue.stats", 5),
    ]
    told.calls[1][2].set_result([1, -1, 0, "items"])
    assert await future == "items"


async def test_an_error_is_everybodys(shard: Shard, told: Told) -> None:
    futures = [shard.ack("a", 1), shard.ack("b", 2)]
    futures[0].cancel()
    await turn()
    told.calls[0][2].set_exception(StoreDown("gone"))
    with pytest.raises(StoreDown):
        await futures[1]


async def test_an_answer_of_the_wrong_length_is_our_defect(shard: Shard, told: Told) -> None:
    future = shard.ack("a", 1)
    await turn()
    told.calls[0][2].set_result([1, -1, 0, [1, 1]])
    with pytest.raises(Internal, match="2 items for 1"):
        await future


async def test_the_next_event_is_passed_on_and_never_before_now(shard: Shard, told: Told) -> None:
    for next_ms in (1500, 900, -1):
        shard.run("queue.stats", ())
        told.calls[-1][2].set_result([1000, next_ms, 0, []])
    await turn()
    assert shard.nexts == [500, 0]


async def test_a_timer_runs_only_while_somebody_waits(shard: Shard, eventually: Any) -> None:
    bell = Bell()
    shard.expect(10)
    assert timer_of(shard) is None
    shard.park(bell)
    assert timer_of(shard) is not None
    shard.expect(10**6)
    await eventually(lambda: bell.tried == 1)  # the earlier one still fires
    shard.park(bell)
    shard.unpark(bell)
    assert timer_of(shard) is None
    shard.park(bell)
    shard.expect(5)
    await eventually(lambda: bell.tried == 2)
    shard.unpark(bell)


async def test_nobody_parks_at_a_shard_of_a_queue_that_was_cut_anew(shard: Shard) -> None:
    before, after = Bell(), Bell()
    shard.park(before)
    shard.retire()
    shard.park(after)
    assert before.stopped
    assert after.stopped
    assert after not in shard.parked


async def test_a_later_message_postpones_no_earlier_wake_up(shard: Shard) -> None:
    bell = Bell()
    shard.on_earlier_event(20)
    shard.on_earlier_event(10**6)
    shard.park(bell)
    async with asyncio.timeout(60):
        while not bell.tried:
            await asyncio.sleep(0.005)
    shard.unpark(bell)


async def test_a_reply_that_was_on_its_way_takes_no_message_back(shard: Shard, told: Told) -> None:
    """
    Netflix/dyno-queues#58 is such a wait: the message came on one connection before the older reply
    on the other.
    """
    bell = Bell()
    future = shard.run("queue.stats", ())
    shard.on_earlier_event(20)
    told.calls[-1][2].set_result([1000, 3_601_000, 0, []])
    await future
    shard.park(bell)
    async with asyncio.timeout(10):
        while not bell.tried:
            await asyncio.sleep(0.005)
    await turn()
    shard.on_shard_state(1100, 3_601_000, woke=False)
    shard.on_earlier_event(40)
    shard.on_earlier_event(10**6)
    shard.on_shard_state(1100, -1, woke=False)
    async with asyncio.timeout(10):
        while bell.tried < 2:
            await asyncio.sleep(0.005)
    shard.unpark(bell)


async def test_its_attributes_are_few_enough_to_share_their_names(shard: Shard) -> None:
    """
    CPython shares the names of at most 30 among all objects of a class; else each has a table of
    its own, twice as large as itself.
    """
    assert len(vars(shard)) - len({"nexts"}) <= 30
