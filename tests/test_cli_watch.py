"""Watching a cluster: the rate of refreshes. The rest is in live/test_up.py."""

from __future__ import annotations

from tidewarden.cli.watch import Rate


def test_a_rate_needs_two_looks_and_forgets_old_ones() -> None:
    rate = Rate()
    assert rate.per_s() is None
    rate.add(10.0, 100)
    assert rate.per_s() is None
    rate.add(12.0, 140)
    assert rate.per_s() == 20.0
    for look in range(6):
        rate.add(14.0 + 2 * look, 140)
    assert rate.per_s() == 0.0
    assert rate.total == 140


def test_a_counter_that_began_anew_is_no_negative_rate() -> None:
    rate = Rate()
    rate.add(10.0, 100)
    rate.add(12.0, 3)
    assert rate.per_s() is None
