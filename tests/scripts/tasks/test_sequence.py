"""Numbered calls run once and in their order, whatever is sent again, late or out of order."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg, Error

OWN = ""  # the options of a put whose id is the node's


def put(desk: Any, serial: str, *ids: str, options: str = OWN) -> list[Any]:
    args = [arg for task_id in ids for arg in (task_id, options, b"x")]
    return list(desk.run("queue.put", *args, holder=f"{desk.holder}#{serial}"))


def ack(desk: Any, serial: str, row: Any) -> list[Any]:
    holder = f"{desk.holder}#{serial}"
    return list(desk.run("queue.ack", row.id, row.lease, b"", holder=holder))


def test_a_put_that_is_sent_again_is_not_put_again_though_it_is_done(desk: Any) -> None:
    """An id of ours leaves no tombstone."""
    assert put(desk, "7.1", "a") == [1]
    desk.ack(desk.take_one())
    before = desk.digest()
    with pytest.raises(Error, match=r"^APPLIED 0"):
        put(desk, "7.1", "a")
    assert desk.digest() == before
    assert put(desk, "7.2", "b") == [1]
    assert desk.ids() == ["b"]
    desk.audit()


def test_a_call_whose_predecessor_did_not_run_does_nothing(desk: Any) -> None:
    assert put(desk, "7.1", "a") == [1]
    before = desk.digest()
    with pytest.raises(Error, match=r"^GAP 7"):
        put(desk, "7.3", "c")
    assert desk.digest() == before
    assert put(desk, "7.2", "b") == [1]
    assert put(desk, "7.3", "c") == [1]
    with pytest.raises(Error, match=r"^APPLIED 3"):
        put(desk, "7.1", "a")
    assert desk.ids() == ["a", "b", "c"]


def test_a_stream_begins_with_one_and_ends_with_the_next(desk: Any) -> None:
    with pytest.raises(Error, match=r"^GAP 0"):
        put(desk, "7.2", "a")
    assert put(desk, "7.1", "a") == [1]
    assert put(desk, "9.1", "b") == [1]
    for late in ("7.1", "7.2", "8.1", "9.3", "10.2"):
        with pytest.raises(Error, match=r"^GAP 9"):
            put(desk, late, "c")
    with pytest.raises(Error, match=r"^APPLIED"):
        put(desk, "9.1", "c")
    assert desk.ids() == ["a", "b"]


def test_each_node_has_a_sequence_of_its_own_over_its_boots(desk: Any) -> None:
    assert put(desk, "7.1", "a") == [1]
    desk.holder = "n1.4"
    assert put(desk, "5.1", "b") == [1]
    desk.holder = "n0.2"
    with pytest.raises(Error, match=r"^APPLIED 0"):
        put(desk, "7.1", "a")
    assert put(desk, "7.2", "c") == [1]
    assert desk.ids() == ["a", "b", "c"]


def test_it_says_whether_a_put_or_an_end_was_refused(desk: Any) -> None:
    desk.configure(capacity=1)
    assert put(desk, "7.1", "a", "b") == [1, b"FULL"]
    with pytest.raises(Error, match=r"^APPLIED 1"):
        put(desk, "7.1", "a", "b")
    row = desk.take_one()
    assert ack(desk, "7.2", row) == [1]
    assert ack(desk, "7.3", row) == [0]
    with pytest.raises(Error, match=r"^APPLIED 2"):
        ack(desk, "7.3", row)


def test_a_batch_is_one_call(desk: Any) -> None:
    def batch() -> list[Any]:
        holder = f"{desk.holder}#7.1"
        parts = ("put", 3, "a", OWN, b"1", "take", 5, 200, 1, 0, 0, "")
        return list(desk.run("queue.batch", *parts, holder=holder))

    puts, takes = batch()
    assert puts == [1]
    assert [row[0] for row in takes[0]] == [b"a"]
    before = desk.digest()
    with pytest.raises(Error, match=r"^APPLIED 0"):
        batch()
    assert desk.digest() == before
    desk.audit()


def test_a_part_that_was_refused_is_told(desk: Any) -> None:
    holder = f"{desk.holder}#7.1"
    args = ("put", 3, "b", "rubbish", b"1", "ack", 3, "a", 5, b"")
    puts, _ = desk.run("queue.batch", *args, holder=holder)
    assert str(puts).startswith("BADARG")
    with pytest.raises(Error, match=r"^APPLIED 3"):
        desk.run("queue.batch", *args, holder=holder)


def test_what_is_refused_has_used_no_number(desk: Any) -> None:
    with pytest.raises(BadArg):
        put(desk, "7.1", "a", options="rubbish")
    assert put(desk, "7.1", "a") == [1]


def test_what_changes_nothing_uses_its_number(desk: Any) -> None:
    desk.put("a")
    kept = "0 0 0 0 50 0 0 0 0 keep"
    assert put(desk, "7.1", "a", options=kept) == [0]
    assert put(desk, "7.2", "b") == [1]


def test_what_a_dead_node_sent_does_not_run_when_it_sends_it_again(desk: Any) -> None:
    """It may only have been cut off. Its numbers go, and a floor stays."""
    assert put(desk, "7.1", "a") == [1]
    desk.ack(desk.take_one())
    desk.run("queue.reap", 1, "n0", 1, 100, 1, holder="n1.1")
    assert (desk.record("by:n0"), desk.record("at:n0")) == ("", "")
    desk.holder = "n0.2"
    for late in ("7.1", "7.2", "6.1", "9.2"):
        with pytest.raises(Error, match=r"^GAP 8"):  # none is taken for a stream that ran nothing
            put(desk, late, "a")
    assert put(desk, "9.1", "b") == [1]
    assert desk.ids() == ["b"]
    desk.audit()


def test_a_node_that_came_back_keeps_the_numbers_of_its_former_boots(desk: Any) -> None:
    """Each leader ends those of all nodes once, whatever they have under way."""
    assert put(desk, "7.1", "a") == [1]
    desk.ack(desk.take_one())
    desk.run("queue.reap", 1, "n0", 0, 100, 0, holder="n1.1")
    with pytest.raises(Error, match=r"^APPLIED 0"):
        put(desk, "7.1", "a")
    assert desk.ids() == []


@pytest.mark.parametrize(("new", "lease", "said"), [(0, 1, 1), (1, 0, 2), (0, 0, 3), (1, 1, 0)])
def test_of_a_batch_it_says_which_part_had_another_answer(
    desk: Any, new: int, lease: int, said: int
) -> None:
    desk.put("a")
    desk.put("there")
    row = desk.take_one()
    kept = "0 0 0 0 50 0 0 0 0 keep"
    args = ("put", 3, "new" if new else "there", kept, b"1")
    args += ("ack", 3, row.id, row.lease if lease else row.lease + 9, b"")
    assert desk.run("queue.batch", *args, holder="n0.1#7.1") == [[new], [lease]]
    with pytest.raises(Error, match=rf"^APPLIED {said}"):
        desk.run("queue.batch", *args, holder="n0.1#7.1")
