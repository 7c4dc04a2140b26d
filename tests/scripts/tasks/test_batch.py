"""
Several verbs' items in one script call: each part answers for itself, the record is written once.
"""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg


def batch(desk: Any, *parts: tuple[Any, ...]) -> list[Any]:
    """Each part is its verb and arguments."""
    return list(
        desk.run("queue.batch", *(x for verb, *args in parts for x in (verb, len(args), *args)))
    )


def test_each_part_answers_as_its_verb_alone_would(desk: Any) -> None:
    desk.put_all(("held", b"h", {}), ("old", b"o", {}))
    held = desk.take_one()
    assert held.id == "held"
    puts, acks, takes = batch(
        desk,
        ("put", "new", "", b"n", "old", "0 0 0 0 50 0 0 0 0 keep", b"x"),
        ("ack", held.id, held.lease, b"", "old", 77, b""),
        ("take", 200, 1, 0, 0, "", 5, 0, 1, "", 1, 0, 1, ""),
    )
    assert puts == [1, 0]
    assert acks == [1, 0]
    assert [[row[0] for row in rows] for rows in takes] == [[b"new"], [b"old"], []] or [
        [row[0] for row in rows] for rows in takes
    ] == [[b"old"], [b"new"], []]
    assert desk.record("waiting") == desk.holder, "the take that found nothing is noted"
    assert desk.counts() == {"delayed": 0, "ready": 0, "leased": 2, "buried": 0}
    desk.audit()


def test_a_refused_part_takes_no_other_with_it(desk: Any) -> None:
    puts, acks, takes = batch(
        desk, ("put", "a", "", b"1"), ("ack", "a", "not a number", b""), ("take", 200, 1, 0, 0, "")
    )
    assert puts == [1]
    assert str(acks).startswith("BADARG lease is not an integer")
    assert [row[0] for row in takes[0]] == [b"a"]
    desk.audit()
    puts, takes = batch(desk, ("put", "b", "rubbish", b"1"), ("take", 200, 1, 0, 0, ""))
    assert str(puts).startswith("BADARG the options of b")
    assert takes == [[]]
    (takes,) = batch(desk, ("take", 200, 1, 0, 0, ""))
    assert takes == [[]]
    desk.audit()


def test_a_part_may_be_longer_than_lua_unpacks(desk: Any) -> None:
    ids = [f"a{n}" for n in range(1500)]
    puts, acks = batch(
        desk, ("put", *(x for name in ids for x in (name, "", b"1"))), ("ack", "a0", 1, b"")
    )
    assert (puts, acks) == ([1] * 1500, [0])
    assert desk.counts() == {"delayed": 0, "ready": 1500, "leased": 0, "buried": 0}


def test_a_lane_that_ends_and_goes_on_in_one_call_is_counted(desk: Any) -> None:
    desk.put("first", lane="l")
    held = desk.take_one()
    desk.put("second", lane="l", delay_ms=10)
    desk.now += 10
    acks, takes = batch(desk, ("ack", held.id, held.lease, b""), ("take", 200, 1, 0, 0, ""))
    assert (acks, [row[0] for row in takes[0]]) == ([1], [b"second"])
    desk.audit()
    desk.put("third", lane="l")
    assert desk.take() == []


def test_on_a_full_store_the_put_alone_is_refused(desk: Any) -> None:
    desk.put_all(("a", b"", {}), ("b", b"", {}))
    held = desk.take_one()
    noted = [desk.record(name) for name in ("puts", "alarm")]
    desk.client.config_set("maxmemory", "1")
    try:
        puts, acks, takes = batch(
            desk,
            ("put", "c", "0 0 0 0 7 0 0 0 0 keep", b"x", "d", "1 5 0 0 7 0 0 0 0 keep", b"x"),
            ("ack", held.id, held.lease, b""),
            ("take", 200, 2, 0, 0, ""),
        )
        assert "maxmemory" in str(puts)
        assert acks == [1]
        assert [row[0] for row in takes[0]] == [b"b"]
        puts, takes = batch(desk, ("put", "c", "", b"x"), ("take", 200, 2, 0, 1, ""))
        assert "maxmemory" in str(puts)
        assert takes == [[]]
        assert desk.record("waiting") == desk.holder
    finally:
        desk.client.config_set("maxmemory", "0")
    assert [desk.record(name) for name in ("puts", "alarm")] == noted
    assert desk.state("c") == ""
    desk.audit()


@pytest.mark.parametrize(
    "args",
    [
        ("put",),
        ("put", "x"),
        ("put", 0),
        ("put", 4, "a", "", b""),
        ("steal", 3, "a", "", b""),
        ("ack", 3, "a", 1, b"", "put", 3, "a", "", b""),
    ],
)
def test_a_batch_that_does_not_parse_changes_nothing(desk: Any, args: tuple[Any, ...]) -> None:
    before = desk.digest()
    with pytest.raises(BadArg, match="batch"):
        desk.run("queue.batch", *args)
    assert desk.digest() == before
