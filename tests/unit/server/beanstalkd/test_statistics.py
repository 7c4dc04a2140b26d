"""What a tube and a job are said to be."""

from __future__ import annotations

import pytest

from tidewarden.server.beanstalkd.statistics import seconds_left


@pytest.mark.parametrize(
    ("left_ms", "seconds"),
    [(60_000, 59), (59_999, 59), (59_000, 58), (1, 0), (0, 0), (-5, 0)],
)
def test_of_the_time_that_is_left_whole_seconds_are_told_of_which_some_has_passed(
    left_ms: int, seconds: int
) -> None:
    assert seconds_left(left_ms) == seconds
