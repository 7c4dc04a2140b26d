"""put.lua: ids, modes, tombstones, times, and duplicates inside one batch."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg, TooBig


def test_an_id_that_is_there_is_kept(desk: Any) -> None:
    assert desk.put("a", b"first") == 1
    assert desk.put("a", b"second", priority=1) == 0
    assert (desk.peek("a")["payload"], desk.peek("a")["priority"]) == (b"first", 50)


def test_an_id_that_is_there_is_refused(desk: Any) -> None:
    assert desk.put("a", b"first", if_exists="fail") == 1
    assert desk.put("a", b"second", if_exists="fail") == b"EXISTS"
    assert desk.peek("a")["payload"] == b"first"


def test_an_id_that_is_there_is_replaced_in_whatever_state(desk: Any) -> None:
    desk.put("a", b"1", delay_ms=1000)
    assert desk.put("a", b"2", priority=3, if_exists="replace") == 1
    assert (desk.state("a"), desk.peek("a")["payload"], desk.peek("a")["priority"]) == (
        "ready",
        b"2",
        3,
    )
    assert desk.put("a", b"3", delay_ms=1000, if_exists="replace") == 1
    assert desk.state("a") == "delayed"
    desk.now += 1000
    desk.end(desk.take_one(), "bury", reason="bad")
    assert desk.put("a", b"4", if_exists="replace") == 1
    assert (desk.state("a"), desk.peek("a")["attempts"], desk.peek("a")["reason"]) == (
        "ready",
        0,
        b"",
    )


def test_a_leased_task_is_not_replaced_by_a_put(desk: Any) -> None:
    desk.put("a", b"1")
    row = desk.take_one()
    assert desk.put("a", b"2", if_exists="replace") == b"NOTHELD"
    assert desk.put("a", b"2") == 0
    assert desk.ack(row) == [1]


@pytest.mark.parametrize(("mode", "reply"), [("keep", 0), ("fail", b"EXISTS"), ("replace", 1)])
def test_a_finished_id_leaves_a_tombstone_that_answers_as_a_live_one(
    desk: Any, mode: str, reply: Any
) -> None:
    desk.put("a")
    row = desk.take_one()
    assert desk.ack(row) == [1]
    assert desk.put("a", b"again", if_exists=mode) == reply
    assert desk.state("a") == ("ready" if mode == "replace" else "")
    assert 0 < desk.client.pttl(f"{desk.prefix}:done:a") <= 60_000


def test_the_same_ack_is_answered_the_same_while_the_tombstone_lasts(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one()
    assert desk.ack(row) == [1]
    assert desk.ack(row, (row.id, row.lease + 1)) == [1, 0]
    desk.client.delete(f"{desk.prefix}:done:a")  # as its time-out does
    assert desk.ack(row) == [0]
    assert desk.put("a") == 1


def test_no_tombstone_when_the_queue_wants_none(desk: Any) -> None:
    desk.configure(dedup_ms=0)
    desk.put("a")
    row = desk.take_one()
    assert desk.ack(row) == [1]
    assert desk.ack(row) == [0]
    assert desk.put("a") == 1


def test_an_id_of_ours_leaves_no_tombstone(desk: Any) -> None:
    desk.put("ours", own=True)
    desk.put("oursToo", own=True, priority=3)
    for row in desk.take(2):
        assert desk.ack(row) == [1]
    assert desk.client.keys("*done*") == []


def test_duplicates_inside_one_batch(desk: Any) -> None:
    replies = desk.put_all(
        ("a", b"1", {}),
        ("a", b"2", {}),
        ("a", b"3", {"if_exists": "fail"}),
        ("a", b"4", {"if_exists": "replace"}),
        ("b", b"5", {"delay_ms": 10}),
        ("b", b"6", {}),
    )
    assert replies == [1, 0, b"EXISTS", b"EXISTS", 1, 0]
    assert (desk.peek("a")["payload"], desk.peek("b")["payload"]) == (b"1", b"5")
    assert desk.counts() == {"delayed": 1, "ready": 1, "leased": 0, "buried": 0}


def test_replaced_twice_in_one_batch(desk: Any) -> None:
    desk.put("a", b"0")
    again = {"if_exists": "replace"}
    assert desk.put_all(
        ("a", b"1", again | {"delay_ms": 5}), ("a", b"2", again), ("a", b"3", {})
    ) == [1, 1, 0]
    assert (desk.peek("a")["payload"], desk.state("a")) == (b"2", "ready")


def test_a_large_batch_in_one_script(desk: Any) -> None:
    assert (
        desk.put_all(
            *((f"t{n:04}", b"x", {"delay_ms": n % 2, "priority": n % 3}) for n in range(2500))
        )
        == [1] * 2500
    )
    assert desk.counts() == {"delayed": 1250, "ready": 1250, "leased": 0, "buried": 0}


def test_due_by_delay_and_at(desk: Any) -> None:
    desk.put("in", delay_ms=1000)
    desk.put("at", at_ms=desk.now + 1000)
    desk.put("past", at_ms=desk.now - 1)
    desk.put("now", delay_ms=0)
    assert desk.counts() == {"delayed": 2, "ready": 2, "leased": 0, "buried": 0}
    assert desk.next_ms == desk.now + 1000
    assert desk.ids() == ["past", "now"]
    desk.now += 999
    assert desk.ids() == []
    desk.now += 1
    assert sorted(desk.ids()) == ["at", "in"]


def test_deadlines(desk: Any) -> None:
    now = desk.now
    for name, fields, deadline in (
        ("none", {}, now),
        ("delayed", {"delay_ms": 70}, now + 70),
        ("deadline", {"deadline_ms": now + 5}, now + 5),
        ("within", {"within_ms": 6}, now + 6),
        ("both", {"delay_ms": 100, "within_ms": 50}, now + 50),
        ("zero", {"deadline_ms": 0}, 0),
    ):
        desk.put(name, **fields)
        assert desk.peek(name)["deadline_ms"] == deadline, name


def test_every_field_is_stored(desk: Any) -> None:
    desk.put(
        "a",
        b"\x00\xff",
        delay_ms=5,
        deadline_ms=2**42 - 1,
        priority=99,
        lease_ms=2**31,
        attempts=65_535,
        backoff_ms=2**31,
    )
    shown = desk.peek("a")
    assert (shown["payload"], shown["due_ms"], shown["deadline_ms"]) == (
        b"\x00\xff",
        desk.now + 5,
        2**42 - 1,
    )
    assert (shown["priority"], shown["lease_ms"], shown["attempts_max"], shown["backoff_ms"]) == (
        99,
        2**31,
        65_535,
        2**31,
    )


@pytest.mark.parametrize("payload", [b"", b"x", b"\x00" * 100, bytes(range(256)), b"y" * 100_000])
def test_any_payload_comes_back(desk: Any, payload: bytes) -> None:
    desk.put("a", payload)
    desk.put("b", payload, delay_ms=1, within_ms=5, lease_ms=7, attempts=9, backoff_ms=11)
    desk.now += 1
    assert [row.payload for row in desk.take(2)] == [payload, payload]


def test_next_ms_is_the_earliest_that_happens(desk: Any) -> None:
    desk.put("a")
    assert desk.next_ms == -1
    assert desk.woke
    desk.put("b", delay_ms=5000)
    assert desk.next_ms == desk.now + 5000
    assert not desk.woke
    desk.put("c", delay_ms=3000)
    assert desk.next_ms == desk.now + 3000
    desk.take_one(lease_ms=2000)
    assert desk.next_ms == desk.now + 2000


def test_a_refusal_says_what_is_wrong_and_nothing_of_the_server(desk: Any) -> None:
    """
    Servers word a script's errors each in its own way; what a caller reads does not depend on it.
    """
    with pytest.raises(BadArg) as caught:
        desk.run("queue.put", "a", "rubbish", "x")
    assert str(caught.value) == "the options of a do not parse: rubbish"
    with pytest.raises(TooBig) as big:
        desk.run("queue.take", 200, *(1000, 0, 0, "") * 5)
    assert str(big.value) == "one script takes at most 4000 tasks"
