"""Ticks: specs and their words, both changes of the clocks, and missed ticks."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewarden.errors import BadArg
from tidewarden.scheduler import cron
from tidewarden.scheduler.trigger import (
    MISSED_MS,
    TIME_MS_MAX,
    Spec,
    first_tick,
    next_tick,
    parse,
    ticks_due,
)

BERLIN = "Europe/Berlin"
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def utc_ms(text: str) -> int:
    """Unix ms of an ISO time in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def local_ticks(spec: Spec, start: str, end: str) -> list[str]:
    """
    Every tick after ``start`` (UTC) up to ``end``, as the zone's clocks show it: ``29 03:30+0200``.
    """
    ticks, tick_ms = [], next_tick(spec, utc_ms(start))
    while tick_ms is not None and tick_ms <= utc_ms(end):
        ticks.append(
            datetime.fromtimestamp(tick_ms / 1000, ZoneInfo(spec.zone)).strftime("%d %H:%M%z")
        )
        tick_ms = next_tick(spec, tick_ms)
    return ticks


# --- when the clocks change: Berlin leaps from 02:00 to 03:00 on 29 March 2026 and repeats
# 02:00-03:00 on 25 October ---


def test_a_time_in_the_missing_hour_comes_an_hour_later() -> None:
    """A fixed hour that the clocks skip: 02:30 ticks at 03:30, that day alone."""
    ticks = local_ticks(Spec.cron("30 2 * * *", BERLIN), "2026-03-27T12:00", "2026-03-30T12:00")
    assert ticks == ["28 02:30+0100", "29 03:30+0200", "30 02:30+0200"]


def test_a_time_in_the_doubled_hour_comes_once() -> None:
    """A fixed hour that the clocks repeat: its first passing alone."""
    ticks = local_ticks(Spec.cron("30 2 * * *", BERLIN), "2026-10-23T12:00", "2026-10-26T12:00")
    assert ticks == ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]


def test_every_hour_has_no_ticks_in_the_missing_one() -> None:
    """An hour field of ``*`` follows the running hour: 23 hours in spring's short day."""
    ticks = local_ticks(Spec.cron("15 * * * *", BERLIN), "2026-03-29T00:00", "2026-03-29T03:00")
    assert ticks == ["29 01:15+0100", "29 03:15+0200", "29 04:15+0200"]
    assert (
        len(local_ticks(Spec.cron("@hourly", BERLIN), "2026-03-28T22:59", "2026-03-29T21:59")) == 23
    )


def test_every_hour_ticks_in_both_passings_of_the_doubled_one() -> None:
    """25 hours in autumn's long day."""
    ticks = local_ticks(Spec.cron("15 * * * *", BERLIN), "2026-10-24T23:00", "2026-10-25T03:00")
    assert ticks == ["25 01:15+0200", "25 02:15+0200", "25 02:15+0100", "25 03:15+0100"]
    assert (
        len(local_ticks(Spec.cron("@hourly", BERLIN), "2026-10-24T21:59", "2026-10-25T22:59")) == 25
    )


def test_the_autumn_hour_does_not_repeat_for_ever() -> None:
    """
    The known trap of handing APScheduler a previous time: ticks always move on, through a whole
    year of changes.
    """
    for line in ("30 2 * * *", "*/15 2 * * *", "*/15 * * * *"):
        spec, tick_ms = Spec.cron(line, BERLIN), utc_ms("2026-10-25T00:00")
        for _ in range(40):
            following = next_tick(spec, tick_ms)
            assert following is not None
            assert following > tick_ms
            tick_ms = following
        assert tick_ms > utc_ms("2026-10-25T02:00")


def test_a_monthly_tick_is_not_lost_after_a_change_of_the_clocks() -> None:
    """Asked in March, APScheduler's own arithmetic in the zone answers 1 May."""
    ticks = local_ticks(Spec.cron("0 0 1 * *", BERLIN), "2026-03-15T12:00", "2026-05-02T00:00")
    assert ticks == ["01 00:00+0200", "01 00:00+0200"]


def test_a_missing_midnight_comes_at_one() -> None:
    """Cairo's clocks leap at midnight; APScheduler's own arithmetic drops that day."""
    ticks = local_ticks(Spec.cron("@daily", "Africa/Cairo"), "2026-04-22T12:00", "2026-04-25T12:00")
    assert ticks == ["23 00:00+0200", "24 01:00+0300", "25 00:00+0300"]


def test_a_half_hour_change_keeps_the_rules() -> None:
    """Lord Howe's clocks leap from 02:00 to 02:30 (4 October) and repeat 01:30-02:00 (5 April)."""
    howe = "Australia/Lord_Howe"
    spring = local_ticks(Spec.cron("15 2 * * *", howe), "2026-10-03T00:00", "2026-10-04T20:00")
    assert spring == ["04 02:45+1100", "05 02:15+1100"]
    autumn = local_ticks(Spec.cron("45 * * * *", howe), "2026-04-04T14:00", "2026-04-04T16:00")
    assert autumn == ["05 01:45+1100", "05 01:45+1030"]


@functools.cache
def fires(line: str, wall: datetime) -> bool:
    """
    Whether the wall clock shows a time of the line; most minutes are asked about by many examples.
    """
    return cron.parse(line).next_wall(wall) == wall


def brute_ticks(line: str, zone: str, start_ms: int, hours: int) -> list[int]:
    """
    The ticks of ``start < t <= start + hours`` by the documented rules alone, minute by minute of
    absolute time.
    """
    expression, tz = cron.parse(line), ZoneInfo(zone)
    ticks = set()
    seen: set[datetime] = set()
    previous: datetime | None = None
    begin = start_ms - 4 * HOUR_MS
    for at_ms in range(begin, start_ms + hours * HOUR_MS + 1, MINUTE_MS):
        wall = datetime.fromtimestamp(at_ms / 1000, tz).replace(tzinfo=None)
        if previous is not None and not expression.every_hour:
            skipped = round((wall - previous).total_seconds() / 60) - 1
            # each missing wall minute comes as much later as the clocks jumped
            for minute in range(skipped):
                missing = datetime.fromtimestamp(
                    previous.replace(tzinfo=UTC).timestamp() + 60 * (minute + 1), UTC
                )
                if fires(line, missing.replace(tzinfo=None)):
                    ticks.add(at_ms + minute * MINUTE_MS)
        if (expression.every_hour or wall not in seen) and fires(line, wall):
            ticks.add(at_ms)
        seen.add(wall)
        previous = wall
    return sorted(tick for tick in ticks if start_ms < tick <= start_ms + hours * HOUR_MS)


FIELD = st.sampled_from(["*", "*/7", "0", "15,45", "30", "59"])
HOUR = st.sampled_from(["*", "0", "1", "2", "3", "1-4", "*/2", "2,3", "0-23", "23"])
ZONES = {
    BERLIN: ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Australia/Lord_Howe": ["2026-10-03T15:30", "2026-04-04T15:00"],
    "Africa/Cairo": ["2026-04-23T22:00", "2026-10-29T21:00"],
    "America/St_Johns": ["2026-03-08T05:30", "2026-11-01T04:30"],
    "Europe/Dublin": ["2026-03-29T01:00", "2026-10-25T01:00"],
}


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 3, deadline=None)
@given(
    minute=FIELD,
    hour=HOUR,
    change=st.sampled_from([(zone, at) for zone, changes in ZONES.items() for at in changes]),
    offset_minutes=st.integers(-300, 300),
)
def test_ticks_around_any_change_are_those_of_the_rules(
    minute: str, hour: str, change: tuple[str, str], offset_minutes: int
) -> None:
    """
    From any moment near a change: the next ticks are exactly the documented set, from wherever one
    asks.
    """
    zone, at = change
    spec = Spec.cron(f"{minute} {hour} * * *", zone)
    start_ms = utc_ms(at) + offset_minutes * MINUTE_MS
    expected = brute_ticks(spec.expr, zone, start_ms, 6)
    found, tick_ms = [], next_tick(spec, start_ms)
    while tick_ms is not None and tick_ms <= start_ms + 6 * HOUR_MS:
        found.append(tick_ms)
        tick_ms = next_tick(spec, tick_ms)
    assert found == expected


# --- intervals and single times ---


@given(anchor=st.integers(0, 2**41), every=st.integers(10, 10**10), after=st.integers(0, 2**41))
def test_an_interval_keeps_its_anchor(anchor: int, every: int, after: int) -> None:
    """Ticks lie on the anchor's grid whenever one asks, never at or before the anchor itself."""
    tick_ms = next_tick(Spec.every(every).anchored(anchor), after)
    assert tick_ms is not None
    assert tick_ms > max(after, anchor)
    assert (tick_ms - anchor) % every == 0
    assert tick_ms - every <= max(after, anchor)


def test_a_single_time_ticks_once() -> None:
    spec = Spec.at(5_000)
    assert (next_tick(spec, 4_999), next_tick(spec, 5_000)) == (5_000, None)


def test_no_tick_lies_beyond_the_wire() -> None:
    """Times are below 2^42 ms (the year 2109)."""
    assert next_tick(Spec.every(1000).anchored(TIME_MS_MAX - 500), TIME_MS_MAX - 500) is None


# --- words and refusals ---


@pytest.mark.parametrize(
    ("words", "used"),
    [
        (["CRON", "0 3 * * 1-5", "TZ", BERLIN, "CATCHUP", "all", "mail", "hello"], 6),
        (["cron", "@daily", "catchup", "NONE", "tz", "UTC"], 6),
        (["CRON", "*/5 * * * *", "jobs", "x"], 2),
        (["every", "60000", "catchup", "one", "jobs"], 4),
        (["AT", "1790000000000", "jobs"], 2),
    ],
)
def test_words_are_read_and_written_back(words: list[str], used: int) -> None:
    spec, taken = parse(words)
    assert taken == used
    again = spec.words()
    assert parse(again) == (spec, len(again))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing"),
        (["DAILY", "x"], "'DAILY'"),
        (["CRON"], "needs a value"),
        (["CRON", "0 0 * * *", "TZ"], "TZ needs a value"),
        (["CRON", "0 0 * * *", "TZ", "UTC", "TZ", "UTC"], "twice"),
        (["CRON", "0 0 * * *", "TZ", "Mars/Phobos"], "Mars/Phobos"),
        (["CRON", "0 0 * * *", "CATCHUP", "some"], "none, one, all"),
        (["EVERY", "9"], "from 10"),
        (["EVERY", "-1"], "from 10"),
        (["EVERY", "1.5"], "whole number"),
        (["EVERY", "1e3"], "whole number"),
        (["EVERY", "9" * 17], "whole number"),
        (["EVERY", "1000", "TZ", "UTC"], "belongs to CRON"),
        (["AT", str(2**42)], str(2**42 - 1)),
        (["AT", "soon"], "'soon'"),
    ],
)
def test_wrong_words_say_what_is_wrong(words: list[str], message: str) -> None:
    with pytest.raises(BadArg) as caught:
        parse(words)
    assert message in str(caught.value)


def test_a_schedule_that_never_ticks_is_refused() -> None:
    with pytest.raises(BadArg, match="never comes"):
        first_tick(Spec.cron("0 0 31 2 *"), utc_ms("2026-01-01"))
    with pytest.raises(BadArg, match="has passed"):
        first_tick(Spec.at(1_000), 1_000)


# --- missed ticks ---

SECOND = Spec.every(1_000)  # anchored at 0


@pytest.mark.parametrize("catchup", ["none", "one", "all"])
def test_a_tick_in_time_is_put_under_any_catchup(catchup: str) -> None:
    """A sweep is always some milliseconds late; that is no missed tick."""
    spec = Spec.every(1_000, catchup)
    assert ticks_due(spec, 10_000, 9_999, 100) == ([], 10_000)
    assert ticks_due(spec, 10_000, 10_000, 100) == ([10_000], 11_000)
    assert ticks_due(spec, 10_000, 10_003, 100) == ([10_000], 11_000)


def test_catchup_none_skips_to_the_next_future_tick() -> None:
    spec = Spec.every(1_000, "none")
    assert ticks_due(spec, 10_000, 10_000 + MISSED_MS, 100) == ([10_000], 16_000)
    assert ticks_due(spec, 10_000, 10_001 + MISSED_MS, 100) == ([], 16_000)


def test_catchup_one_puts_one_task_for_all() -> None:
    assert ticks_due(SECOND, 10_000, 99_500, 100) == ([10_000], 100_000)


def test_catchup_all_puts_each_bounded() -> None:
    spec = Spec.every(1_000, "all")
    assert ticks_due(spec, 10_000, 12_500, 100) == ([10_000, 11_000, 12_000], 13_000)
    assert ticks_due(spec, 10_000, 12_500, 2) == ([10_000, 11_000], 12_000)


@pytest.mark.parametrize(("catchup", "ticks"), [("none", []), ("one", [5_000]), ("all", [5_000])])
def test_a_missed_single_time_follows_its_catchup(catchup: str, ticks: list[int]) -> None:
    assert ticks_due(Spec.at(5_000, catchup), 5_000, 60_000, 100) == (ticks, None)


def test_catchup_all_over_the_doubled_hour_puts_a_fixed_time_once() -> None:
    spec = Spec.cron("30 2 * * *", BERLIN, "all")
    start = utc_ms("2026-10-24T00:30")
    ticks, following = ticks_due(spec, start, utc_ms("2026-10-26T12:00"), 100)
    assert ticks == [start, start + 24 * HOUR_MS, start + 49 * HOUR_MS]
    assert following == start + 73 * HOUR_MS
