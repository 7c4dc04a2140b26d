"""What a cron line means, against the traps of APScheduler's own reading of it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tidewarden.errors import BadArg
from tidewarden.scheduler import cron

SUNDAY = datetime(2026, 11, 22)  # midnight at the start of a Sunday


def weekdays(field: str) -> str:
    """
    The days on which a midnight schedule with this weekday field ticks, Sunday first: ``S.T...S``.
    """
    line = cron.parse(f"0 0 * * {field}")
    days = (SUNDAY + timedelta(days=offset) for offset in range(7))
    return "".join(
        letter if line.next_wall(day) == day else "."
        for letter, day in zip("SMTWTFS", days, strict=True)
    )


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("*", "SMTWTFS"),
        ("0", "S......"),
        ("7", "S......"),
        ("1", ".M....."),
        ("6", "......S"),
        ("sun", "S......"),
        ("MON", ".M....."),
        ("1-5", ".MTWTF."),
        ("mon-fri", ".MTWTF."),
        ("0-6", "SMTWTFS"),
        ("1-7", "SMTWTFS"),
        ("0-7", "SMTWTFS"),
        ("5-7", "S....FS"),
        ("6-7", "S.....S"),
        ("7-7", "S......"),
        ("7-2", "SMT...."),
        ("fri-mon", "SM...FS"),
        ("5-1", "SM...FS"),
        ("sat-sun", "S.....S"),
        ("6-0", "S.....S"),
        ("0,6", "S.....S"),
        ("mon,3,fri-7", "SM.W.FS"),
        ("*/2", "S.T.T.S"),
        ("1-5/2", ".M.W.F."),
        ("1/3", ".M..T.."),
        ("1-7/2", "SM.W.F."),
        ("fri-tue/2", "S.T..F."),
    ],
)
def test_weekdays_count_from_sunday(field: str, days: str) -> None:
    """0 and 7 are Sunday, in lists, ranges, steps and wrap-arounds."""
    assert weekdays(field) == days


@pytest.mark.parametrize("alias", cron.ALIASES)
def test_an_alias_is_its_line(alias: str) -> None:
    """``@daily`` and its kind, which from_crontab refuses."""
    start = datetime(2026, 3, 4, 5, 6, 7)
    expected = cron.parse(cron.ALIASES[alias]).next_wall(start)
    assert (
        cron.parse(alias).next_wall(start) == cron.parse(alias.upper()).next_wall(start) == expected
    )


def test_weekly_is_sunday() -> None:
    assert cron.parse("@weekly").next_wall(SUNDAY - timedelta(minutes=1)) == SUNDAY


def test_two_restricted_day_fields_are_joined_by_or() -> None:
    """As in cron(5): ``0 0 1 * fri`` is the first of the month and every Friday."""
    line = cron.parse("0 0 1 * fri")
    walls, wall = [], datetime(2026, 11, 22)
    for _ in range(3):
        found = line.next_wall(wall)
        assert found is not None
        walls.append(found.day)
        wall = found + timedelta(minutes=1)
    assert walls == [27, 1, 4]


def test_a_starred_day_field_is_joined_by_and() -> None:
    """As in cron(5): a day field that begins with a star narrows the other."""
    found = cron.parse("0 0 */2 * mon").next_wall(datetime(2026, 11, 22))
    assert found == datetime(2026, 11, 23)
    assert cron.parse("0 0 */2 * mon").next_wall(datetime(2026, 11, 24)) == datetime(2026, 12, 7)


def test_other_fields_know_names_lists_ranges_and_steps() -> None:
    line = cron.parse("5,50-59/3 */6 1 feb-APR,12 *")
    assert line.next_wall(datetime(2026, 5, 1)) == datetime(2026, 12, 1, 0, 5)
    assert line.next_wall(datetime(2026, 12, 1, 0, 6)) == datetime(2026, 12, 1, 0, 50)
    assert line.next_wall(datetime(2026, 12, 1, 0, 57)) == datetime(2026, 12, 1, 0, 59)
    assert cron.parse("50/3 * * * *").next_wall(datetime(2026, 5, 1, 0, 57)) == datetime(
        2026, 5, 1, 0, 59
    )


def test_the_leap_day_comes_even_over_2100() -> None:
    assert cron.parse("0 0 29 2 *").next_wall(datetime(2096, 3, 1)) == datetime(2104, 2, 29)


@pytest.mark.parametrize("line", ["0 0 31 2 *", "0 0 30 feb *", "0 0 31 4,6,9,11 *"])
def test_a_day_that_never_comes_has_no_next(line: str) -> None:
    assert cron.parse(line).next_wall(datetime(2026, 1, 1)) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("0 0 12 * * 2026", "6 fields"),
        ("@reboot", "@hourly"),
        ("60 * * * *", "minute '60'"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "weekday '8'"),
        ("* * * * funday", "funday"),
        ("* * L * *", "day of month 'L'"),
        ("* * * * 5#2", "weekday '5#2'"),
        ("*/0 * * * *", "step"),
        ("*/ * * * *", "step"),
        ("*/60 * * * *", "step"),
        ("5- * * * *", "minute '5-'"),
        ("-5 * * * *", "minute '-5'"),
        ("1,,2 * * * *", "minute ''"),
        ("* 22-2 * * *", "22-23,0-2"),
        ("* * * oct-feb *", "10-12,1-2"),
        ("１ * * * *", "minute"),
        ("* " * 200, "characters"),
    ],
)
def test_a_wrong_line_says_what_is_wrong(line: str, words: str) -> None:
    with pytest.raises(BadArg) as caught:
        cron.parse(line)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "name", ["Mars/Phobos", "", "America", "../../etc/passwd", "/etc/localtime", "\0", "é"]
)
def test_an_unknown_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadArg, match="IANA"):
        cron.zone(name)
