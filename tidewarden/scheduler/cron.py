"""
Cron expressions: what a line means, and the next time a wall clock shows it. No clock, no I/O.

APScheduler 3.11's ``CronTrigger`` finds the next match, but it sees only a wall clock, never a time
zone, and only numbers, never cron's own spelling. Its ``from_crontab`` counts Monday as 0, refuses
7, ``@daily``, steps and wrap-arounds of weekdays, and joins day of month and weekday by *and* where
cron joins them by *or*; given a zone, its arithmetic repeats the doubled hour of autumn and passes
over a tick after a change of the clocks (``0 0 1 * *`` in Europe/Berlin, asked in March, answers 1
May).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from tidewarden.errors import BadArg, Field

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EXPR_CHARS_MAX = 256
CRON = Field("cron")
HORIZON_DAYS = 9 * 366  # 29 February is at most eight years away (1896–1904, 2096–2104)

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAY_NAMES)}
# What a field is called, its least and greatest number, the names it knows.
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 7, _WEEKDAYS),
)


class Cron:
    """
    Is one parsed cron expression.

    ``every_hour``: the hour field allows every hour, so ticks follow the running hour. ``per_day``:
    how often it ticks on a day that matches.
    """

    __slots__ = ("_triggers", "every_hour", "per_day")

    def __init__(self, triggers: list[Any], every_hour: bool, per_day: int) -> None:
        self._triggers = triggers
        self.every_hour = every_hour
        self.per_day = per_day

    def next_wall(self, wall: datetime) -> datetime | None:
        """
        Return the first matching wall time at or after ``wall`` (naive).

        None: nine years have none.
        """
        now = wall.replace(tzinfo=UTC)
        horizon = now + timedelta(days=HORIZON_DAYS)
        found = []
        for trigger in self._triggers:
            trigger.end_date = horizon
            # No previous time: with one, the library steps from it and not from `now`.
            tick = trigger.get_next_fire_time(None, now)
            if tick is not None:
                found.append(tick.replace(tzinfo=None))
        return min(found, default=None)


@lru_cache(maxsize=1024)
def parse(expr: str) -> Cron:
    """
    Parse five cron fields or an alias such as ``@daily``.

    Numbers, names of months and weekdays, ``*``, lists, ranges and steps are understood; weekdays
    count from Sunday = 0 (7 is Sunday too) and a range of them may wrap (``fri-mon``). When both
    day fields are restricted either may match, as in every cron.

    Raises: BadArg: names the field, what was found and what is allowed.
    """
    if len(expr) > EXPR_CHARS_MAX:
        raise BadArg(CRON, f" has {len(expr)} characters; at most {EXPR_CHARS_MAX} are allowed")
    text = expr.strip()
    if text.startswith("@"):
        alias = ALIASES.get(text.lower())
        if alias is None:
            raise BadArg(
                CRON, f" {text!r} is not known; allowed are five fields or {' '.join(ALIASES)}"
            )
        text = alias
    words = text.split()
    if len(words) != len(_FIELDS):
        raise BadArg(
            CRON,
            f" {expr!r} has {len(words)} fields; five are needed (minute, hour, day of month,"
            f" month, weekday), or one of {' '.join(ALIASES)}",
        )
    minutes, hours, days, months, weekdays = (
        _field(word, *field) for word, field in zip(words, _FIELDS, strict=True)
    )
    common = {
        "minute": _numbers(minutes, 60),
        "hour": _numbers(hours, 24),
        "month": _numbers(months, 12),
        "timezone": UTC,
    }
    by_day = {"day": _numbers(days, 31)}
    names = "*" if len(weekdays) == 7 else ",".join(_WEEKDAY_NAMES[day] for day in sorted(weekdays))
    by_weekday = {"day_of_week": names}
    if words[2].startswith("*") or words[4].startswith("*"):
        triggers = [CronTrigger(**common, **by_day, **by_weekday)]
    else:
        triggers = [CronTrigger(**common, **by_day), CronTrigger(**common, **by_weekday)]
    return Cron(triggers, every_hour=len(hours) == 24, per_day=len(minutes) * len(hours))


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """Return the time zone of the IANA database named ``name``. Raises: BadArg: there is none."""
    try:
        return ZoneInfo(name)
    # ZoneInfo answers a folder's name ("America") and a path ("../x") in the file system's own
    # ways.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadArg(
            Field("zone", "TZ"),
            f" {name!r} is not a known time zone; allowed are the IANA database's names, such as"
            " Europe/Berlin",
        ) from None


def _numbers(values: frozenset[int], full: int) -> str:
    """Spell a set of numbers as APScheduler does."""
    return "*" if len(values) == full else ",".join(map(str, sorted(values)))


def _field(text: str, what: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    """Return the numbers that one field names; Sunday is always 0."""
    values: set[int] = set()
    for part in text.split(","):
        values.update(_part(part, what, low, high, names))
    if what == "weekday" and 7 in values:
        values.discard(7)
        values.add(0)
    return frozenset(values)


def _part(part: str, what: str, low: int, high: int, names: dict[str, int]) -> list[int]:
    """Return the numbers of ``*``, ``a``, ``a-b``, each with or without ``/step``."""
    span, slash, step_text = part.partition("/")
    step = 1
    if slash:
        if not (step_text.isascii() and step_text.isdigit() and 1 <= int(step_text[:4]) <= high):
            raise BadArg(CRON, f" {what} {part!r} has a step that is not a number from 1 to {high}")
        step = int(step_text)
    # an open range ends on Saturday: 7 would name Sunday twice
    end = 6 if names is _WEEKDAYS else high
    if span == "*":
        return list(range(low, end + 1, step))
    first_text, dash, last_text = span.partition("-")
    first = _value(first_text, part, what, low, high, names)
    if not dash:
        return list(range(first, max(first, end) + 1, step)) if slash else [first]
    last = _value(last_text, part, what, low, high, names)
    if first <= last:
        return list(range(first, last + 1, step))
    if names is _WEEKDAYS:
        start = first % 7  # 7-2 is 0-2
        return [day % 7 for day in range(start, last + (1 if start <= last else 8), step)]
    raise BadArg(
        CRON,
        f" {what} {part!r} runs backwards; write it as two ranges, such as"
        f" {first}-{high},{low}-{last}",
    )


def _value(text: str, part: str, what: str, low: int, high: int, names: dict[str, int]) -> int:
    """Return one number or the number of a name."""
    named = names.get(text.lower())
    if named is not None:
        return named
    if text.isascii() and text.isdigit() and len(text) <= 4 and low <= int(text) <= high:
        return int(text)
    allowed = f"{low}-{high}" + (f", {' '.join(names)}" if names else "")
    raise BadArg(
        CRON,
        f" {what} {part!r} is not understood; allowed are * and {allowed}, with lists, ranges"
        " and steps",
    )
