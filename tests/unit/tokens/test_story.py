"""Times and numbers as people read them."""

from __future__ import annotations

import pytest

from tidewarden.tokens.limits.client_record import ClientRecord
from tidewarden.tokens.why.story import ClientSeen, count, span, when


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.4, "0 s"), (1, "1 s"), (59.6, "1 min"), (90, "1 min 30 s"), (3600, "1 h"), (3601, "1 h"), (3660, "1 h 1 min"),
        (86_400, "1 d"), (190_000, "2 d 4 h"), (400_000_000, "4629 d 15 h"), (-5, "0 s"),
    ],
)  # fmt: skip
def test_a_length_of_time(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_a_time_is_absolute_and_relative() -> None:
    now_ms = 1_795_000_000_000
    assert when(now_ms + 120_000, now_ms) == "2026-11-18 11:08:40 UTC (in 2 min)"
    assert when(now_ms - 7_260_000, now_ms) == "2026-11-18 09:05:40 UTC (2 h 1 min ago)"
    assert when(now_ms + 400, now_ms) == "2026-11-18 11:06:40 UTC (now)"


def test_counts() -> None:
    assert [count(number, "account") for number in (0, 1, 2000)] == [
        "0 accounts",
        "1 account",
        "2,000 accounts",
    ]


def test_a_records_times_are_unix_times_for_people() -> None:
    seen = ClientSeen(ClientRecord(), 5_000, 1_000_000)
    assert (seen.unix(4_000), seen.unix(0), seen.now_ms) == (1_004_000, 0, 1_005_000)
