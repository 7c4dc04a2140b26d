"""One account whose row nobody can read: the others of the same script go on, and an answer for it is kept."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.tokens.rows import Row

RAWS = (b"", b"\x01", b"\x02" + bytes(80), b"\xff" * 90, b"\x01" + bytes(40))
NAMES = ("before", "it", "after")


def row(desk: Any, generation: int = 1) -> bytes:
    mark = b"m%07d" % generation
    return Row(1, generation, desk.now, desk.now + 10_000, desk.now, mark, mark, refresh=b"sealed").pack()


def each(*words: Any, names: tuple[str, ...] = NAMES) -> list[Any]:
    """The arguments of a verb for every account."""
    return [word for name in names for word in (name, *words)]


def put(desk: Any) -> None:
    desk.client.flushdb()
    if desk.views:
        desk.set_view(1)
    args = each(0, 0, row(desk), desk.now, desk.now + 10_000)
    assert desk.run("tokens.put", *args) == [1, 1, 1]


@pytest.mark.parametrize("raw", RAWS)
def test_a_row_that_nobody_can_read_harms_no_other_account(desk: Any, raw: bytes) -> None:
    put(desk)
    leases = {taken.id: taken.lease for taken in desk.take(10)}
    desk.client.hset(f"{desk.prefix}:accounts", "it", raw)
    intents = desk.run("tokens.intent", *(word for name in NAMES for word in (name, leases[name], 1000)))
    assert [one[0] for one in intents] == [b"OK", b"NOTHELD", b"OK"]
    stored = each(1, 1, row(desk, 2), desk.now + 5000, desk.now + 10_000, b"")
    assert desk.run("tokens.stored", *stored) == [b"STORED", b"SPARE", b"STORED"]
    assert desk.client.hget(f"{desk.prefix}:account_spares", "it") == row(desk, 2), "a pair is never thrown away"
    assert desk.run("tokens.refresh", *each(1, 0, 0)) == [b"QUEUED", b"GONE", b"QUEUED"]
    assert sorted(one.id for one in desk.take(10)) == ["after", "before"]
    (cursor, _, *shown) = desk.run("tokens.page", 0, 10, "all")
    assert (cursor, sorted(one[0] for one in shown)) == (b"0", [b"after", b"before"])
    assert desk.run("tokens.put", *each(1, 2, row(desk, 3), desk.now, desk.now + 10_000)) == [1, 0, 1]
    _, _, problems = desk.run("queue.check", "accounts", "0", 100, 1)
    assert [(kind, name) for kind, name, *_ in problems] == [(b"unreadable task, set aside", b"it")]
    assert desk.run("tokens.delete", *NAMES) == [1, 1, 1]
    assert desk.run("queue.check", "accounts", "0", 100, 0)[2] == []
    desk.audit()


@pytest.mark.parametrize("raw", RAWS)
def test_it_is_taken_out_of_the_way_before_anybody_asks_for_it(desk: Any, raw: bytes) -> None:
    put(desk)
    desk.client.hset(f"{desk.prefix}:accounts", "it", raw)
    assert sorted(one.id for one in desk.take(10)) == ["after", "before"]
    shown = desk.peek("it")
    assert (shown["state"], shown["reason"]) == (b"buried", b"unreadable")
    assert desk.run("tokens.delete", "it") == [1]
    desk.audit()


def test_an_intent_that_nobody_can_read_is_over(desk: Any) -> None:
    put(desk)
    for raw in (b"", b"x", b"\xff" * 35):
        desk.client.hset(f"{desk.prefix}:account_intents", "it", raw)
        leases = {taken.id: taken.lease for taken in desk.take(10)}
        intents = desk.run("tokens.intent", *(word for name in NAMES for word in (name, leases[name], 1000)))
        assert [one[0] for one in intents] == [b"OK"] * 3
        done = [w for name in NAMES for w in (name, leases[name], "hold", 0, b"", "keep", "")]
        assert desk.run("tokens.failed", *done) == [1, 1, 1]
    desk.audit()
