"""peek.lua: a task as it lies, and pages that go on whatever happens to the tasks on them."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg


def walk(desk: Any, state: str, count: int, between: Any = None) -> list[str]:
    cursor, seen = b"", []
    while True:
        rows, cursor = desk.run("queue.peek", state, count, cursor)
        seen += [row[0].decode() for row in rows]
        if not cursor:
            return seen
        assert len(rows) == count
        if between:
            between(rows)


def fill(desk: Any, state: str, total: int) -> list[str]:
    """
    Tasks in one state over several priorities, holders and equal times; their ids in the order of
    the pages.
    """
    names = [f"t{n:02}" for n in range(total)]
    for n, name in enumerate(names):
        if state == "delayed":
            desk.put(name, delay_ms=1000 + n // 4)
        else:
            desk.put(name, priority=(5, 50, 99)[n * 3 // total] if state == "ready" else 50)
        if state in ("leased", "buried"):
            row = desk.take_one(holder=f"n{n * 3 // total}.1", lease_ms=1000 + n // 4)
            if state == "buried":
                desk.end(row, "bury")
                desk.now += n % 2
    return names


@pytest.mark.parametrize("state", ["delayed", "ready", "leased", "buried"])
@pytest.mark.parametrize("count", [1, 4, 7, 24, 25, 1000])
def test_pages_show_every_task_once(desk: Any, state: str, count: int) -> None:
    names = fill(desk, state, 24)
    before = desk.digest()
    assert walk(desk, state, count) == names
    assert desk.digest() == before, "looking changes nothing"


@pytest.mark.parametrize("state", ["delayed", "ready", "leased", "buried"])
def test_pages_go_on_while_tasks_vanish(desk: Any, state: str) -> None:
    names = fill(desk, state, 24)

    def vanish(rows: list[Any]) -> None:
        for row in rows[-1:]:
            desk.run("queue.delete", row[0], 0, 1)

    assert walk(desk, state, 5, vanish) == names


def test_pages_go_on_when_a_whole_priority_or_holder_vanishes(desk: Any) -> None:
    fill(desk, "ready", 24)
    rows, cursor = desk.run("queue.peek", "ready", 5, "")
    desk.take(8)  # all of priority 5
    assert desk.record("pris") in ("50 99", "5 50 99")
    desk.take(1)
    assert desk.record("pris") == "50 99"
    rows, _ = desk.run("queue.peek", "ready", 100, cursor)
    assert [row[0] for row in rows] == [f"t{n:02}".encode() for n in range(9, 24)]


def test_a_task_as_it_lies(desk: Any) -> None:
    desk.put("a", b"x", delay_ms=5, within_ms=9, priority=1, lease_ms=7, attempts=3, backoff_ms=2)
    assert desk.peek("a") == {
        "id": b"a",
        "state": b"delayed",
        "payload": b"x",
        "priority": 1,
        "due_ms": desk.now + 5,
        "deadline_ms": desk.now + 9,
        "attempts": 0,
        "losses": 0,
        "lease": 0,
        "at_ms": desk.now + 5,
        "holder": b"",
        "reason": b"",
        "lease_ms": 7,
        "attempts_max": 3,
        "backoff_ms": 2,
        "expires_ms": 0,
        "history": [],
        "lane": b"",
        "trace": b"",
    }
    row = desk.take_one(task_id="a")
    shown = desk.peek("a")
    assert (shown["state"], shown["lease"], shown["at_ms"], shown["holder"]) == (
        b"leased",
        row.lease,
        desk.now + 7,
        b"n0.1",
    )


@pytest.mark.parametrize(
    ("state", "cursor"),
    [
        ("", ""),
        ("none", ""),
        ("READY", ""),
        ("ready", "x"),
        ("ready", "delayed 5 a"),
        ("delayed", "ready:5 5 a"),
        ("leased", "leased:n0.1 x a"),
        ("ready", "ready:50 1..2 a"),
        ("delayed", "delayed 1.2.3 a"),
        ("delayed", f"delayed {'9' * 400} a"),
    ],
)
def test_a_state_or_cursor_that_is_none(desk: Any, state: str, cursor: str) -> None:
    desk.put("a")
    with pytest.raises(BadArg):
        desk.run("queue.peek", state, 5, cursor)
