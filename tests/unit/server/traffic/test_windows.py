"""The last minute forgets, the time since the start does not."""

from __future__ import annotations

from tidewarden.server.traffic.tables import Tables
from tidewarden.server.traffic.windows import Windows


def one(name: str, requests: int = 1) -> Tables:
    tables = Tables()
    tables.add("app", "Q.PUT", name, "here", (requests, 0, 0, 0, 0))
    return tables


def names(windows: Windows, over: str, now: float) -> dict[str, int]:
    table, _ = windows.seen(over, "queue", now)  # type: ignore[arg-type]
    return {key[1]: sums[0] for key, sums, _ in table.entries()}


def test_the_last_minute_has_sixty_to_seventy_seconds() -> None:
    windows = Windows(100.0)
    for second in range(300):
        now = 101.0 + second
        windows.add(one("mails"), now)
        table, seconds = windows.seen("minute", "queue", now)
        assert table.totals[0] in (round(seconds), round(seconds) + 1)
        assert min(second + 1, 60) <= seconds <= 72
        assert windows.seen("start", "queue", now)[0].totals[0] == second + 1
        assert windows.seen("start", "queue", now)[1] == second + 1


def test_what_has_ended_is_forgotten_after_a_minute() -> None:
    windows = Windows(0.0)
    windows.add(one("old", 5), 1.0)
    for second in range(2, 80):
        windows.add(one("new"), float(second))
    assert names(windows, "minute", 80.0).keys() == {"new"}
    assert names(windows, "start", 80.0) == {"old": 5, "new": 78}


def test_before_anything_was_counted_there_is_nothing() -> None:
    table, seconds = Windows(5.0).seen("minute", "user", 7.5)
    assert len(table) == 0
    assert seconds == 2.5
