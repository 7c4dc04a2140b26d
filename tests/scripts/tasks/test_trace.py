"""The trace context of a put lies in the task's record, and its takers get it."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg
from tidewarden.queue.task import TaskSpec, traceparent

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lane": "l"},
        {"lane": "l" * 200, "ttl_ms": 60_000, "priority": 3},
        {"deadline_ms": 9_000_000_000_000 // 4, "lease_ms": 5, "attempts": 3, "backoff_ms": 7},
    ],
)
def test_takers_get_the_trace_of_the_put(desk: Any, options: dict[str, Any]) -> None:
    desk.put("a", b"x", trace=TRACE, **options)
    seen = desk.peek("a")
    assert traceparent(seen["trace"]) == TRACE
    assert (seen["lane"].decode(), seen["payload"]) == (options.get("lane", ""), b"x")
    row = desk.take_one()
    assert (row.id, row.payload, traceparent(row.trace)) == ("a", b"x", TRACE)
    desk.end(row, "release")
    assert traceparent(desk.take_one().trace) == TRACE  # the next taker's, too


def test_a_task_without_a_trace_costs_nothing(desk: Any) -> None:
    desk.put("a", b"x", lane="l")
    desk.put("b", b"\xff" * 40)
    assert desk.peek("a")["trace"] == b""
    assert [desk.take_one().trace for _ in range(2)] == [b"", b""]


def test_a_replacing_put_has_a_trace_of_its_own(desk: Any) -> None:
    desk.put("a", b"x", trace=TRACE)
    desk.put("a", b"y", if_exists="replace")
    assert desk.peek("a")["trace"] == b""


@pytest.mark.parametrize(
    "wrong",
    [
        TRACE.upper(),
        TRACE[:-1],
        "01" + TRACE[2:],
        "00-" + "0" * 32 + TRACE[35:],
        TRACE[:36] + "0" * 16 + TRACE[52:],
        TRACE + " ",
        "x",
    ],
)
def test_what_is_no_traceparent_is_refused(wrong: str) -> None:
    with pytest.raises(BadArg, match=r"TRACE is .* allowed is a W3C traceparent"):
        TaskSpec(trace=wrong).check(10)
