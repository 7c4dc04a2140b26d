"""The last hour of figures."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from tidewarden.server.console.history import POINTS, History, Ring, add_series, counted


@given(st.lists(st.integers(0, 3 * POINTS), max_size=60), st.randoms(use_true_random=False))
def test_a_ring_is_a_dictionary_that_forgets(steps: list[int], dice: random.Random) -> None:
    ring, known, last = Ring(), dict[int, float](), -1
    for slot in steps:
        number = dice.random()
        ring.put(slot, number)
        if slot > last - POINTS:
            known[slot] = number
            last = max(last, slot)
    for slot in range(3 * POINTS + 2):
        kept = slot in known and last - POINTS < slot <= last
        assert ring.at(slot) == known[slot] if kept else math.isnan(ring.at(slot))


def test_what_was_not_recorded_is_unknown_and_no_zero() -> None:
    history = History()
    for slot, puts in ((1000, 5), (1001, 9), (1003, 12), (1004, 2), (1005, 2)):
        history.put(slot, {"puts": puts, "ready": puts})
    series = history.series(1005, ("ready", "never"), ("puts",))
    assert series["ready"][-7:] == [None, 5, 9, None, 12, 2, 2]
    # a counter that goes back began anew, and nobody knows what it had counted
    assert series["puts"][-7:] == [None, None, 4, None, None, None, 0]
    assert {len(numbers) for numbers in series.values()} == {POINTS}
    assert "never" not in series


def test_growth_and_what_a_counter_counted() -> None:
    ring = Ring()
    for slot, number in ((100, 3.0), (110, 8.0), (112, 2.0), (113, 4.0)):
        ring.put(slot, number)
    assert (ring.growth(113, 900), ring.risen(113, 900)) == (1.0, 5 + 2 + 2)
    assert (ring.growth(113, 10), ring.risen(113, 10)) == (2.0, 2.0)
    assert (ring.growth(5000, 900), ring.risen(5000, 900)) == (0.0, 0.0)


def test_sums_leave_out_what_is_unknown() -> None:
    found: dict[str, list[float | None]] = {}
    for part in ({"puts": [None, 1, 2]}, {"puts": [None, None, 5], "ready": [1, 1, 1]}):
        add_series(found, part)
    assert found == {"puts": [None, 1, 7], "ready": [1, 1, 1]}
    assert counted([math.nan, 1.0, 4.0]) == [None, 3]
