"""
The leases' clock runs on evenly when the store's steps: at the scripts with explicit times, and as
a node reckons it.
"""

from __future__ import annotations

from typing import Any

from support.manual_clock import ManualClock
from support.queues.desk import START_MS

from tidewarden.queue.shards.lease_clock import STEP_MS, LeaseClock

HOUR_MS = 3_600_000


def sweep(desk: Any) -> Any:
    return desk.run("queue.sweep", 1, 100)[0]


def at(desk: Any, real_ms: int, stepped_ms: int, *, steps: int = 0, lag_ms: int = 0) -> None:
    """
    So much time has passed, the store's clock was stepped so far, and nodes know of so many steps.
    """
    desk.now = START_MS + real_ms + stepped_ms
    desk.stamp = f"~{START_MS + real_ms}" + (f"~{steps}~{lag_ms}" if steps else "")


def test_a_forward_step_ends_no_lease_before_or_after_it_is_known(desk: Any) -> None:
    at(desk, 0, 0)
    desk.put("a")
    row = desk.take_one()
    at(desk, 1000, HOUR_MS)
    assert (sweep(desk), desk.take()) == (0, []), "nothing is certain yet, and nothing ends"
    assert desk.next_ms == desk.now + 200, "nor is it asked for at once again"
    at(desk, 2000, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert (sweep(desk), desk.take()) == (0, [])
    assert desk.next_ms == START_MS + HOUR_MS + 30_000
    at(desk, 29_999, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert sweep(desk) == 0
    assert desk.peek("a")["attempts"] == 1
    at(desk, 30_000, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    again = desk.take_one()
    assert (again.id, again.attempt) == ("a", 2)
    assert again.lease > row.lease
    assert again.lease_end_ms == desk.now + 30_000


def test_while_a_step_is_not_written_down_leases_end_by_what_nodes_know(desk: Any) -> None:
    at(desk, 0, 0)
    desk.put("a")
    desk.take_one()
    at(desk, 29_999, HOUR_MS)
    assert sweep(desk) == 0
    at(desk, 30_199, HOUR_MS)
    assert sweep(desk) == 1


def test_due_tasks_follow_the_stores_clock(desk: Any) -> None:
    at(desk, 0, 0)
    desk.put("later", delay_ms=HOUR_MS)
    at(desk, 1, HOUR_MS)
    assert desk.ids() == ["later"]


def test_leases_of_after_the_step_are_as_long_as_ever(desk: Any) -> None:
    at(desk, 0, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    desk.put("a")
    row = desk.take_one()
    assert desk.peek("a")["at_ms"] == row.lease_end_ms == desk.now + 30_000
    at(desk, 20_000, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert desk.touch(row) == desk.now + 30_000
    at(desk, 49_999, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert sweep(desk) == 0
    at(desk, 50_000, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert sweep(desk) == 1


def test_a_step_back_leaves_numbers_order_and_leases_right(desk: Any) -> None:
    at(desk, 0, 0)
    desk.put("a")
    first = desk.take_one()
    desk.put("due", delay_ms=1000)
    at(desk, 2000, -HOUR_MS)
    assert desk.take() == [], "what is due waits for the clock"
    desk.put("b")
    second = desk.take_one()
    assert (second.id, second.lease > first.lease) == ("b", True)
    at(desk, 3000, -HOUR_MS, steps=1, lag_ms=-HOUR_MS)
    assert sweep(desk) == 0, "a lease of between the step and its being known is not cut short"
    at(desk, 30_000, -HOUR_MS, steps=1, lag_ms=-HOUR_MS)
    assert desk.take_one().id == "a", "nor does one last an hour longer"
    at(desk, 32_000, -HOUR_MS, steps=1, lag_ms=-HOUR_MS)
    assert desk.take_one().id == "b"


def test_a_pause_lasts_as_long_as_was_said(desk: Any) -> None:
    for step_ms in (-HOUR_MS, HOUR_MS):
        at(desk, 0, 0)
        desk.put("a")
        desk.run("queue.pause", 10_000)
        at(desk, 9_999, step_ms, steps=1, lag_ms=step_ms)
        assert desk.take() == []
        assert desk.next_ms == desk.now + 1
        at(desk, 10_000, step_ms, steps=1, lag_ms=step_ms)
        assert desk.ids() == ["a"]
        desk.client.flushall()
        desk.set_view(2)


def test_a_pause_without_an_end_has_none_after_a_step(desk: Any) -> None:
    at(desk, 0, 0)
    desk.put("a")
    desk.run("queue.pause", -1)
    at(desk, HOUR_MS, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert desk.take() == []
    desk.run("queue.pause", 0)
    assert desk.ids() == ["a"]


def test_a_caller_that_knows_of_fewer_steps_changes_nothing(desk: Any) -> None:
    at(desk, 0, HOUR_MS, steps=2, lag_ms=HOUR_MS)
    desk.put("a")
    at(desk, 0, HOUR_MS, steps=1, lag_ms=5)
    desk.take_one()
    assert (desk.record("steps"), desk.record("lag")) == ("2", str(HOUR_MS))


def test_a_lock_is_held_through_a_step(desk: Any) -> None:
    at(desk, 0, 0)
    want = ("name", "mine", 10_000, 1, 0, "")
    fence = desk.run("queue.lock_acquire", *want)[0][0]
    other = ("name", "other", 10_000, 1, 0, "")
    at(desk, 1000, HOUR_MS)
    assert desk.run("queue.lock_acquire", *other)[0][0] == 0
    at(desk, 2000, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert desk.run("queue.lock_acquire", *other)[0][2] == START_MS + HOUR_MS + 10_000
    assert desk.run("queue.lock_renew", "name", fence, 10_000)[0][1] == desk.now + 10_000
    at(desk, 12_000, HOUR_MS, steps=1, lag_ms=HOUR_MS)
    assert desk.run("queue.lock_acquire", *other)[0][0] > fence


def test_a_lane_at_its_rate_goes_on_after_a_step_back(desk: Any) -> None:
    """
    Its next task is due by the rate, no moment of the calendar; also where there are more such
    lanes than one call looks at.
    """
    desk.configure(lane_rate=100)  # one in ten seconds
    lanes = [f"lane-{n}" for n in range(300)]
    at(desk, 0, 0)
    desk.put_all(*((f"{lane}-{n}", b"", {"lane": lane}) for lane in lanes for n in range(2)))
    for _ in range(3):
        desk.ack(*desk.take(100))
    assert desk.take(100) == []
    at(desk, 1000, -HOUR_MS, steps=1, lag_ms=-HOUR_MS)
    while sweep(desk) and desk.next_ms <= desk.now:
        pass
    assert desk.next_ms <= desk.now + 10_000, "its rate holds for no longer than from now on"
    at(desk, 12_000, -HOUR_MS, steps=1, lag_ms=-HOUR_MS)
    taken = [row.id for _ in range(5) for row in desk.take(100)]
    assert sorted(taken) == sorted(f"{lane}-1" for lane in lanes)


async def test_a_node_is_certain_of_a_step_only_beyond_what_its_answers_delay_explains() -> None:
    clock = ManualClock()
    leases = LeaseClock(clock)
    assert leases.stamp("") == 0
    sent = clock.monotonic()
    assert leases.heard(sent, START_MS, 0, 0) == 0
    assert leases.stamp("") == -START_MS
    assert leases.stamp("/3") == f"0~{START_MS}/3"
    sent = clock.monotonic()
    await clock.advance(20)
    # it may have been answered at the beginning, or at the end
    for time_ms in (START_MS, START_MS + 20_000):
        assert leases.heard(sent, time_ms, 0, 0) == 0
    assert leases.heard(clock.monotonic(), START_MS + 20_000 + STEP_MS + 1, 0, 0) == STEP_MS + 1
    assert leases.heard(clock.monotonic(), START_MS + 20_000 - STEP_MS - 1, 0, 0) == -STEP_MS - 1
    assert leases.known_ms() == START_MS + 20_000, (
        "a step that is not written down changes nothing here"
    )
    assert leases.heard(clock.monotonic(), START_MS + 20_000 + HOUR_MS, 1, HOUR_MS) == 0
    assert leases.stamp("") == f"0~{START_MS + 20_000}~1~{HOUR_MS}"


async def test_slow_drift_is_no_step() -> None:
    clock = ManualClock()
    leases = LeaseClock(clock)
    for second in range(200):
        assert leases.heard(clock.monotonic(), START_MS + second * 1100, 0, 0) == 0
        await clock.advance(1)


async def test_a_late_first_answer_says_nothing() -> None:
    clock = ManualClock()
    leases = LeaseClock(clock)
    sent = clock.monotonic()
    await clock.advance(30)
    assert leases.heard(sent, START_MS, 0, 0) == 0
    assert leases.known_ms() == 0
