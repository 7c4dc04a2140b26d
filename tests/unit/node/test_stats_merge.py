"""Figures of several processes as one."""

from __future__ import annotations

from tidewarden.server.stats_merge import add_up, lasting


def test_numbers_are_added_at_every_depth_and_nothing_else_is() -> None:
    first = {"connections": 2, "calls_total": {"PING": 1}, "name": "n0", "age_s": 0.5}
    second = {"connections": 3, "calls_total": {"PING": 4, "ECHO": 1}, "name": "n0/1"}
    assert add_up(first, second, {}) == {
        "connections": 5,
        "calls_total": {"PING": 5, "ECHO": 1},
        "name": "n0",
        "age_s": 0.5,
    }
    assert first["calls_total"] == {"PING": 1}
    assert add_up() == {}


def test_of_a_process_that_ended_its_counters_remain() -> None:
    assert lasting({"connections": 2, "calls_total": {"PING": 1}, "refused_total": 3}) == {
        "calls_total": {"PING": 1},
        "refused_total": 3,
    }
