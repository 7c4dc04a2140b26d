"""
The queue of the sweep's timers: the earliest time of each key, in order, and no more entries than
keys account for.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.growth import entries

from tidewarden.scheduler.timer_queue import SLACK, TimerQueue

KEYS = st.tuples(st.sampled_from("abc"), st.integers(0, 3))


@given(st.lists(st.tuples(KEYS, st.floats(0, 100), st.booleans()), max_size=300))
def test_each_key_has_its_earliest_time_until_it_comes(
    steps: list[tuple[tuple[str, int], float, bool]],
) -> None:
    timers, at = TimerQueue(), dict[tuple[str, int], float]()
    for key, time, pops in steps:
        if pops:
            due = sorted((its, one) for one, its in at.items() if its <= time)[:2]
            assert timers.pop_due(time, 2) == [one for _, one in due]
            for _, one in due:
                del at[one]
        else:
            earlier = time < at.get(key, 1e9)
            at[key] = min(time, at.get(key, 1e9))
            assert timers.set_earlier(key, time) == (earlier and time <= min(at.values()))
        assert timers.next_at() == min(at.values(), default=None)
        assert len(timers) == len(at)
        assert entries(timers) <= 3 * 12 + SLACK
    timers.clear()
    assert (len(timers), timers.next_at(), timers.pop_due(1e9, 9)) == (0, None, [])


def test_a_moment_that_is_hardly_earlier_is_the_same_one() -> None:
    timers = TimerQueue()
    assert timers.set_earlier(("q", 0), 5.0, 0.5)
    assert not timers.set_earlier(("q", 0), 4.6, 0.5)
    assert timers.set_earlier(("q", 0), 4.4, 0.5)
    assert not timers.set_earlier(("q", 1), 4.4 + 1e-9), "not the first"
    assert timers.pop_due(4.5, 64) == [("q", 0), ("q", 1)]
