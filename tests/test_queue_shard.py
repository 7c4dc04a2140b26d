"""One shard's batches, timers and wake-ups, and who is told what through the store."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidewarden.errors import BadArg, Internal, StoreDown
from tidewarden.queue.placing import prefix_of, split_prefix
from tidewarden.queue.shard import FLYING_MAX, ITEMS_MAX, Shard
from tidewarden.queue.waiters import Tries
from tidewarden.store.link import ReplyError


@pytest.mark.parametrize("queue", ["q", "a:b", "a/b.c-d_e", "_tokens:p:c", "x" * 200])
def test_a_prefix_and_its_parts(queue: str) -> None:
    assert prefix_of("tw", "q", 3) == "{tw:q:3}"
    assert split_prefix(prefix_of("tw", queue, 12)) == ("tw", queue, 12)


class Bell:
    """A waiting take that finds nothing."""

    named = False
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

    def send(self, link: Any, name: str, keys: Any, args: Any, receiver: Any) -> None:
        self.calls.append((name, tuple(args), receiver))


@pytest.fixture
async def told() -> Told:
    return Told()


@pytest.fixture
async def shard(told: Told) -> Shard:
    def on_next(shard: Shard, delay_ms: int) -> None:
        shard.nexts.append(delay_ms)

    made = Shard(SimpleNamespace(refused=lambda message: None), told, ("{tw:q:0}",), lambda: "n0.1", on_next)
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


async def test_one_verb_alone_is_its_own_script(shard: Shard, told: Told) -> None:
    shard.ack("c", 5)
    await turn()
    assert [(name, args) for name, args, _ in told.calls] == [("queue.ack", (0, "n0.1", "c", 5, b""))]


async def test_while_enough_calls_are_under_way_items_gather(shard: Shard, told: Told) -> None:
    for n in range(FLYING_MAX + 3):
        shard.ack(f"t{n}", n)
        await turn()
    assert len(told.calls) == FLYING_MAX
    told.calls[1][2].set_result([7, -1, 0, [1]])
    await turn()
    assert len(told.calls) == FLYING_MAX + 1
    assert told.calls[-1][1] == (0, "n0.1", *(x for n in range(FLYING_MAX, FLYING_MAX + 3) for x in (f"t{n}", n, b"")))
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
    assert [(name, args[0]) for name, args, _ in told.calls] == [("queue.put", 0), ("queue.stats", 5)]
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
    assert shard._timer is None
    shard.park(bell)
    assert shard._timer is not None
    shard.expect(10**6)
    await eventually(lambda: bell.tried == 1)  # the earlier one still fires
    shard.park(bell)
    shard.unpark(bell)
    assert shard._timer is None
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


async def test_a_reply_that_was_on_its_way_takes_no_message_back(shard: Shard, told: Told) -> None:
    """Netflix/dyno-queues#58 is such a wait: the message came on one connection before the older reply on the other."""
    bell = Bell()
    future = shard.run("queue.stats", ())
    shard.told(20)
    told.calls[-1][2].set_result([1000, 3_601_000, 0, []])
    await future
    shard.park(bell)
    async with asyncio.timeout(10):
        while not bell.tried:
            await asyncio.sleep(0.005)
    await turn()
    shard.heard(1100, 3_601_000, woke=False)
    shard.told(40)
    shard.told(10**6)
    shard.heard(1100, -1, woke=False)
    async with asyncio.timeout(10):
        while bell.tried < 2:
            await asyncio.sleep(0.005)
    shard.unpark(bell)
