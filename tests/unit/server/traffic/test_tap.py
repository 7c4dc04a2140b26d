"""Taps show what they were asked for, in bounded room, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.server.traffic.recorder import Recorder
from tidewarden.server.traffic.tap import LINES_MAX, Tap, TapFilter, Taps


def put(recorder: Recorder, queue: bytes = b"mails", user: str = "app", failed: str = "") -> None:
    recorder.note(user, "Q.PUT", queue, "10.0.0.1", 100, 20, failed, 0.000_25)


def shown(tap: Tap) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tap.take()]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(ManualClock())


def opened(recorder: Recorder, **wanted: Any) -> Tap:
    return recorder.taps.begin(TapFilter(**wanted), lambda: None)


def test_a_line_says_who_asked_what_of_which_name(recorder: Recorder) -> None:
    tap = opened(recorder)
    put(recorder, failed="FULL")
    (line,) = shown(tap)
    assert line.pop("at_ms") > 0
    assert line == {
        "user": "app",
        "verb": "Q.PUT",
        "name": "mails",
        "peer": "10.0.0.1",
        "bytes_in": 100,
        "bytes_out": 20,
        "error": "FULL",
        "us": 250,
    }


def test_it_shows_one_user_one_queue_or_every_nth(recorder: Recorder) -> None:
    of_anna, of_mails = opened(recorder, user="anna"), opened(recorder, queue="mails")
    third = opened(recorder, one_in=3)
    for number in range(9):
        put(recorder, b"mails" if number % 2 else b"bills", "anna" if number < 4 else "bob")
    assert [line["user"] for line in shown(of_anna)] == ["anna"] * 4
    assert [line["name"] for line in shown(of_mails)] == ["mails"] * 4
    assert (len(shown(third)), third.matched) == (3, 9)


def test_a_reader_that_does_not_read_loses_lines_and_is_told(recorder: Recorder) -> None:
    tap = opened(recorder)
    for _ in range(LINES_MAX + 7):
        put(recorder)
    assert (len(tap.lines), tap.dropped, tap.matched) == (LINES_MAX, 7, LINES_MAX + 7)


def test_an_ended_tap_is_shown_nothing(recorder: Recorder) -> None:
    tap = opened(recorder)
    recorder.taps.end(tap)
    put(recorder)
    assert (shown(tap), tap.matched) == ([], 0)


def test_further_processes_show_what_the_first_asks_for(recorder: Recorder) -> None:
    further = Recorder(ManualClock())

    def spread(taps: Sequence[tuple[int, TapFilter]]) -> None:
        further.taps.follow(taps, lambda: None)

    recorder.taps.spread = spread
    tap = opened(recorder, one_in=2)
    for _ in range(5):
        put(further, b"far")
        for news in further.taps.news(10):
            recorder.taps.hear(news)
    put(recorder, b"near")
    assert [line["name"] for line in shown(tap)] == ["far", "far", "far", "near"]
    assert tap.matched == 6
    recorder.taps.end(tap)
    put(further)
    assert further.taps.news(10) == []


def test_news_of_a_tap_that_has_ended_is_nothing(recorder: Recorder) -> None:
    other = Taps(ManualClock())
    other.follow([(99, TapFilter())], lambda: None)
    other.open[99].add("{}")
    other.open[99].matched = 1
    for news in other.news(5):
        recorder.taps.hear(news)
    assert not recorder.taps.open
