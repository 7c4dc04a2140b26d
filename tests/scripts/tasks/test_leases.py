"""Leases: their numbers, how they end, attempts, backoff, losses, touching."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import TooBig


def test_a_taken_task_is_all_there(desk: Any) -> None:
    desk.put("a", b"x", within_ms=500)
    row = desk.take_one()
    assert (row.id, row.payload, row.attempt) == ("a", b"x", 1)
    assert row.deadline_ms == desk.now + 500
    assert row.lease_end_ms == desk.now + 30_000
    assert desk.take() == []


def test_the_takes_lease_beats_the_tasks_beats_the_queues(desk: Any) -> None:
    desk.configure(lease_ms=1000)
    desk.put("a")
    desk.put("b", lease_ms=2000)
    desk.put("c", lease_ms=2000)
    ends = [row.lease_end_ms - desk.now for row in (*desk.take(2), *desk.take(1, lease_ms=3000))]
    assert ends == [1000, 2000, 3000]


def test_lease_numbers_only_grow(desk: Any) -> None:
    leases = []
    for n in range(50):
        desk.put(f"a{n}")
        desk.put(f"b{n}")
        leases += [row.lease for row in desk.take(2)]
        if n % 7 == 0:
            desk.now += 3
        if n == 20:
            desk.now -= 10_000  # a clock stepped back
        if n == 30 and desk.views:
            desk.set_view(2)
    assert leases == sorted(set(leases))
    if desk.views:
        assert leases[0] == 2**36 + 1
        assert leases[-1] > 2 * 2**36 > leases[61]


@pytest.mark.parametrize("desk", ["embedded"], indirect=True)
def test_numbers_of_a_new_view_are_greater_than_all_before(desk: Any) -> None:
    """
    What a crash took from the counters cannot come back: a new view starts above whatever was
    given.
    """
    desk.put("a")
    before = desk.take_one()
    desk.client.flushall()  # everything was lost
    desk.set_view(2)
    desk.put("a")
    assert desk.take_one().lease > before.lease


@pytest.mark.parametrize("desk", ["embedded"], indirect=True)
def test_numbers_go_on_above_a_view_that_gave_more_than_its_share(desk: Any) -> None:
    """2^36 of a shard are 79 days at ten thousand a second."""
    desk.put_all(*((f"t{n}", b"", {}) for n in range(5)))
    desk.take_one()
    desk.client.hset(f"{desk.prefix}:shard", "n", 2**36 + 100)
    last = desk.take_one().lease
    for view in (2, 3, 9):
        desk.set_view(view)
        lease = desk.take_one().lease
        assert lease > last
        last = lease
    assert last == 9 * 2**36 + 1


@pytest.mark.parametrize("desk", ["own"], indirect=True)
def test_numbers_on_ones_own_redis_follow_its_clock(desk: Any) -> None:
    desk.put("a")
    desk.put("b")
    assert [row.lease for row in desk.take(2)] == [desk.now * 1000, desk.now * 1000 + 1]
    desk.now += 5
    desk.put("c")
    assert desk.take_one().lease == desk.now * 1000


def test_a_lease_that_ran_out_is_taken_anew_and_the_old_number_is_void(desk: Any) -> None:
    desk.put("a")
    first = desk.take_one(lease_ms=1000)
    desk.now += 999
    assert desk.take() == []
    desk.now += 1
    second = desk.take_one()
    assert (second.attempt, second.lease > first.lease) == (2, True)
    assert desk.peek("a")["reason"] == b"expired"
    assert desk.ack(first) == [0]
    assert (
        desk.end(first, "release")
        == desk.end(first, "fail")
        == desk.end(first, "bury")
        == desk.end(first, "loss")
        == 0
    )
    assert desk.touch(first) == 0
    assert desk.ack(second) == [1]


def test_until_somebody_moves_it_an_overdue_lease_still_counts(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one(lease_ms=1000)
    desk.now += 5000
    assert desk.ack(row) == [1]


def test_the_sweep_ends_leases_and_moves_what_is_due(desk: Any) -> None:
    desk.put("a")
    desk.put("b", delay_ms=500)
    desk.take_one(lease_ms=1000)
    desk.now += 1000
    assert desk.run("queue.sweep", 1, 500) == [2, -1]
    assert desk.woke
    assert desk.next_ms == -1
    assert desk.counts() == {"delayed": 0, "ready": 2, "leased": 0, "buried": 0}
    assert desk.run("queue.sweep", 1, 500) == [0, -1]


def test_a_round_is_bounded_and_says_that_there_is_more(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {"delay_ms": 10}) for n in range(25)))
    desk.now += 10
    assert [desk.run("queue.sweep", 1, 10)[0] for _ in range(2)] == [10, 10]
    assert desk.next_ms <= desk.now
    assert desk.run("queue.sweep", 1, 10)[0] == 5
    assert desk.next_ms == -1


def test_release_gives_the_attempt_back(desk: Any) -> None:
    desk.put("a", attempts=1)
    for _ in range(3):
        row = desk.take_one()
        assert row.attempt == 1
        assert desk.end(row, "release") == 1
    assert desk.counts()["ready"] == 1


def test_release_with_a_delay(desk: Any) -> None:
    desk.put("a")
    assert desk.end(desk.take_one(), "release", delay_ms=700, reason="busy") == 1
    assert desk.state("a") == "delayed"
    assert desk.next_ms == desk.now + 700
    desk.now += 700
    assert desk.take_one().attempt == 1


def test_fail_keeps_the_attempt_and_buries_at_the_limit(desk: Any) -> None:
    desk.put("a", attempts=2)
    assert desk.end(desk.take_one(), "fail", reason="broken") == 1
    assert (desk.state("a"), desk.peek("a")["attempts"], desk.peek("a")["reason"]) == (
        "ready",
        1,
        b"broken",
    )
    row = desk.take_one()
    assert row.attempt == 2
    desk.end(row, "fail", reason="broken again")
    shown = desk.peek("a")
    assert (shown["state"], shown["attempts"], shown["reason"], shown["at_ms"]) == (
        b"buried",
        2,
        b"broken again",
        desk.now,
    )


def test_a_lease_that_ran_out_counts_and_buries_at_the_limit(desk: Any) -> None:
    desk.put("a", attempts=1)
    desk.take_one(lease_ms=10)
    desk.now += 10
    desk.run("queue.sweep", 1, 10)
    assert (desk.state("a"), desk.peek("a")["reason"]) == ("buried", b"expired")


def test_backoff_doubles_up_to_the_cap_with_at_most_a_quarter_on_top(desk: Any) -> None:
    desk.configure(backoff_cap_ms=5000)
    desk.put("a", backoff_ms=1000)
    waits = []
    for _ in range(6):
        desk.end(desk.take_one(), "fail")
        waits.append(desk.peek("a")["at_ms"] - desk.now)
        desk.now += waits[-1]
    for wait, least in zip(waits, (1000, 2000, 4000, 5000, 5000, 5000), strict=True):
        assert least <= wait <= least * 5 / 4


def test_backoff_after_a_lease_ran_out(desk: Any) -> None:
    desk.put("a", backoff_ms=1000)
    desk.take_one(lease_ms=10)
    desk.now += 10
    desk.run("queue.sweep", 1, 10)
    assert desk.state("a") == "delayed"
    assert 1000 <= desk.peek("a")["at_ms"] - desk.now <= 1250


def test_a_crowd_that_fails_together_comes_back_spread(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {"backoff_ms": 10_000}) for n in range(100)))
    for row in desk.take(100):
        desk.end(row, "fail")
    moments = {desk.peek(f"t{n}")["at_ms"] for n in range(100)}
    assert len(moments) > 30
    assert max(moments) - min(moments) > 1000


def test_backoff_of_many_attempts_is_still_a_time(desk: Any) -> None:
    desk.configure(backoff_cap_ms=366 * 86_400_000)
    desk.put("a", backoff_ms=86_400_000)
    for _ in range(40):
        row = desk.take_one(task_id="a")
        assert desk.end(row, "fail") == 1
    assert desk.peek("a")["at_ms"] <= desk.now + 366 * 86_400_000 * 5 / 4


def test_fail_with_a_delay_of_its_own(desk: Any) -> None:
    desk.put("a", backoff_ms=1000)
    desk.end(desk.take_one(), "fail", delay_ms=7)
    assert desk.peek("a")["at_ms"] == desk.now + 7
    desk.now += 7
    desk.end(desk.take_one(), "fail", delay_ms=0)
    assert desk.state("a") == "ready"


def test_a_disconnect_is_a_loss_ready_at_once_with_the_attempt_given_back(desk: Any) -> None:
    desk.put("a", attempts=1, backoff_ms=1000)
    desk.end(desk.take_one(), "loss")
    shown = desk.peek("a")
    assert (shown["state"], shown["attempts"], shown["losses"], shown["reason"]) == (
        b"ready",
        0,
        1,
        b"loss",
    )
    assert desk.take_one().attempt == 1


def test_too_many_losses_bury(desk: Any) -> None:
    desk.configure(losses_max=3)
    desk.put("a")
    for n in range(3):
        assert desk.state("a") == "ready", n
        desk.end(desk.take_one(), "loss")
    assert (desk.state("a"), desk.peek("a")["reason"], desk.peek("a")["losses"]) == (
        "buried",
        b"losses",
        3,
    )


def test_no_limit_of_losses(desk: Any) -> None:
    desk.configure(losses_max=0)
    desk.put("a")
    for _ in range(25):
        desk.end(desk.take_one(), "loss")
    assert (desk.state("a"), desk.peek("a")["losses"]) == ("ready", 25)


def test_bury_and_the_reason_is_cut(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one()
    assert desk.end(row, "bury", reason="r" * 500) == 1
    assert desk.peek("a")["reason"] == b"r" * 240
    assert desk.ack(row) == [0]


def test_touch_runs_on_from_now(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one(lease_ms=1000)
    desk.now += 900
    assert desk.touch(row) == desk.now + 1000
    desk.now += 999
    assert desk.take() == []
    assert desk.touch(row, 5000) == desk.now + 5000
    desk.now += 4999
    assert desk.take() == []
    assert desk.touch(row) == desk.now + 5000  # as it was touched last
    desk.now += 5000
    assert desk.take_one().lease > row.lease


def test_touch_may_shorten_a_lease(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one(lease_ms=60_000)
    assert desk.touch(row, 10) == desk.now + 10
    assert desk.next_ms == desk.now + 10
    desk.now += 10
    assert desk.take_one().attempt == 2


def test_a_task_by_its_id_ready_or_delayed(desk: Any) -> None:
    desk.put("a")
    desk.put("b", delay_ms=5000)
    desk.put("c")
    assert [row.id for row in desk.take(task_id="c")] == ["c"]
    assert [row.id for row in desk.take(task_id="b")] == ["b"]
    assert desk.take(task_id="b") == desk.take(task_id="none") == []
    assert desk.ids() == ["a"]


def test_many_takes_in_one_script_share_what_is_there(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(5)))
    replies = desk.run("queue.take", 200, 2, 0, 0, "", 1, 0, 1, "", 10, 0, 1, "", 1, 0, 1, "")
    assert [[row[0] for row in reply] for reply in replies] == [
        [b"t0", b"t1"],
        [b"t2"],
        [b"t3", b"t4"],
        [],
    ]


@pytest.mark.thorough
def test_one_script_takes_a_bounded_number(desk: Any) -> None:
    with pytest.raises(TooBig):
        desk.run("queue.take", 200, *(1000, 0, 0, "") * 5)
    desk.put_all(*((f"t{n:04}", b"", {}) for n in range(4500)))
    replies = desk.run("queue.take", 200, *(1000, 0, 0, "") * 4)
    assert [len(reply) for reply in replies] == [1000] * 4
    assert desk.counts() == {"delayed": 0, "ready": 500, "leased": 4000, "buried": 0}


def test_acks_are_answered_one_by_one(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(3)))
    one, two, three = desk.take(3)
    assert desk.ack(one, (two.id, 1), one, three, ("none", 5)) == [1, 0, 1, 1, 0]
    assert desk.counts() == {"delayed": 0, "ready": 0, "leased": 1, "buried": 0}


def test_holders_do_not_see_to_whom_a_lease_belongs(desk: Any) -> None:
    """The number is the right: any permitted connection, at whatever node, may use it."""
    desk.put("a")
    row = desk.take_one(holder="n1.7")
    assert desk.run("queue.touch", row.id, row.lease, 0, holder="n2.9")[0] > 0
    assert desk.run("queue.ack", row.id, row.lease, "", holder="n2.9") == [1]


def test_a_crowd_of_leases_that_ran_out_is_ended_in_bounded_parts(desk: Any) -> None:
    """
    So many in one script in all, whatever the number of holders; the rest in the next call, at
    once, and nobody's last.
    """
    holders = [f"n{n}.1" for n in range(6)]
    for holder in holders:
        desk.put_all(*((f"{holder}-{n}", b"", {}) for n in range(20)))
        assert len(desk.take(20, lease_ms=1000, holder=holder)) == 20
    desk.put("due", delay_ms=1000)
    desk.now += 2000
    ended = []
    for _ in range(40):
        moved, _ = desk.run("queue.sweep", 1, 12)
        ended.append(moved)
        if desk.counts()["leased"] == 0 and not desk.counts()["delayed"]:
            break
        assert 0 <= desk.next_ms <= desk.now, "the next call follows at once"
        left = [desk.client.zcard(f"{desk.prefix}:leased:{holder}") for holder in holders]
        assert max(left) - min(left) <= 1 + len(ended), left
    assert max(ended) <= 12
    assert sum(ended) == 121
    assert desk.counts() == {"delayed": 0, "ready": 121, "leased": 0, "buried": 0}


def test_what_is_due_is_not_kept_by_a_crowd_of_leases(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(100)))
    desk.take(100, lease_ms=1000)
    desk.put("due", delay_ms=1000)
    desk.now += 2000
    desk.run("queue.sweep", 1, 8)
    assert desk.state("due") == "ready"


def test_the_queues_attempts_count_for_puts_that_name_none(desk: Any) -> None:
    desk.configure(attempts=2)
    desk.put_all(("a", b"", {}), ("b", b"", {"attempts": 3}))
    for round_number in (1, 2, 3):
        for row in desk.take(10):
            desk.end(row, "fail")
        states = {name: desk.state(name) for name in ("a", "b")}
        assert (
            states
            == {
                1: {"a": "ready", "b": "ready"},
                2: {"a": "buried", "b": "ready"},
                3: {"a": "buried", "b": "buried"},
            }[round_number]
        )
    assert (desk.peek("a")["attempts_max"], desk.peek("b")["attempts_max"]) == (2, 3)


def test_releases_and_losses_are_no_attempts_of_the_queues(desk: Any) -> None:
    desk.configure(attempts=1)
    desk.put("a")
    for _ in range(3):
        desk.end(desk.take_one(), "release")
    assert desk.state("a") == "ready"
    desk.end(desk.take_one(), "fail")
    assert desk.state("a") == "buried"


def test_the_queues_backoff_counts_for_puts_that_name_none(desk: Any) -> None:
    desk.configure(backoff_ms=1000)
    desk.put_all(("a", b"", {}), ("b", b"", {"backoff_ms": 100}))
    for row in desk.take(10):
        desk.end(row, "fail")
    waits = {name: desk.peek(name)["at_ms"] - desk.now for name in ("a", "b")}
    assert 1000 <= waits["a"] <= 1250
    assert 100 <= waits["b"] <= 125
    assert (desk.peek("a")["backoff_ms"], desk.peek("b")["backoff_ms"]) == (1000, 100)
