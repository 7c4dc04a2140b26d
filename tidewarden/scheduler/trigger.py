"""
The ticks of a schedule: its three kinds, the next tick after a time, and missed ticks.

Pure: times come in and go out as unix milliseconds. EVERY and AT are integer arithmetic of our own,
because APScheduler's interval trigger computes in floating-point seconds and drifts off the
millisecond; CRON is in :mod:`tidewarden.scheduler.cron`.

**When the clocks change.** An hour field of ``*`` follows the running hour: the hour that is
missing in spring has no ticks, the doubled one of autumn has them twice. Any other hour field names
times of the wall clock: one that is missing comes as much later as the clocks jumped (02:30 at
03:30), one that is doubled counts the first time only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from tidewarden.errors import BadArg, Field

from . import cron

Kind = Literal["cron", "every", "at"]
Catchup = Literal["none", "one", "all"]

CATCHUPS: tuple[Catchup, ...] = ("none", "one", "all")
TIME_MS_MAX = 2**42 - 1  # every time on the wire is below 2^42
EVERY_MS_MIN = 10  # each tick is a script call of the sweep's
DAY_MS = 86_400_000
EVERY_MS_MAX = 366 * DAY_MS
# A tick is *missed* when it is this late. A sweep is always a little late, and a new leader needs a
# moment; without this, CATCHUP none would drop what nobody would call missed.
MISSED_MS = 5_000

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  wall times are naive on purpose
_MS = timedelta(milliseconds=1)
_SHIFT = timedelta(hours=3)  # no zone moves its clocks further, but for changes of the date line
_SHIFT_MS = 3 * 3_600_000


@dataclass(frozen=True, slots=True)
class Spec:
    """
    Is a schedule's trigger, validated.

    It is made by :meth:`cron`, :meth:`every`, :meth:`at` or :func:`parse`, which validate.

    ``expr`` and ``zone`` belong to cron, ``every_ms`` and ``anchor_ms`` to every (ticks lie at
    ``anchor_ms + n · every_ms``; the anchor is the store's time at the put, stored with the
    schedule), ``at_ms`` to at.
    """

    kind: Kind
    expr: str = ""
    zone: str = "UTC"
    every_ms: int = 0
    at_ms: int = 0
    anchor_ms: int = 0
    catchup: Catchup = "one"

    @classmethod
    def cron(cls, expr: str, zone: str = "UTC", catchup: str = "one") -> Spec:
        """Make a spec that ticks whenever the clocks of ``zone`` match ``expr``. Raises: BadArg."""
        cron.parse(expr)
        cron.zone(zone)
        return cls("cron", expr=" ".join(expr.split()), zone=zone, catchup=_catchup(catchup))

    @classmethod
    def every(cls, every_ms: int, catchup: str = "one") -> Spec:
        """
        Make a spec that ticks each ``every_ms`` milliseconds, first that long after its put.

        Raises: BadArg.
        """
        if not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
            raise BadArg(
                Field("every_ms"),
                f" is {every_ms}; milliseconds from {EVERY_MS_MIN} to {EVERY_MS_MAX} are allowed",
            )
        return cls("every", every_ms=every_ms, catchup=_catchup(catchup))

    @classmethod
    def at(cls, at_ms: int, catchup: str = "one") -> Spec:
        """Make a spec that ticks once, at ``at_ms`` (unix), and is gone then. Raises: BadArg."""
        if not 0 <= at_ms <= TIME_MS_MAX:
            allowed = f"unix milliseconds from 0 to {TIME_MS_MAX} are allowed"
            raise BadArg(Field("at_ms"), f" is {at_ms}; {allowed}")
        return cls("at", at_ms=at_ms, catchup=_catchup(catchup))

    def anchored(self, anchor_ms: int) -> Spec:
        """Return this spec as put at ``anchor_ms``; only an interval remembers it."""
        return replace(self, anchor_ms=anchor_ms) if self.kind == "every" else self

    @property
    def per_day(self) -> int:
        """Return how often it ticks on a day on which it ticks."""
        match self.kind:
            case "cron":
                return cron.parse(self.expr).per_day
            case "every":
                return max(1, DAY_MS // self.every_ms)
            case "at":
                return 1

    def words(self) -> list[str]:
        """
        Return the words of ``S.PUT`` that :func:`parse` reads back; the anchor is not among them.
        """
        match self.kind:
            case "cron":
                head = ["CRON", self.expr, "TZ", self.zone]
            case "every":
                head = ["EVERY", str(self.every_ms)]
            case "at":
                head = ["AT", str(self.at_ms)]
        return [*head, "CATCHUP", self.catchup]


def parse(words: Sequence[str]) -> tuple[Spec, int]:
    """
    Read a trigger from the start of ``words``.

    Its form: ``{CRON expr [TZ zone] | EVERY ms | AT unix_ms} [CATCHUP none|one|all]``.

    Words of the protocol may be in either case; TZ and CATCHUP may come in any order.

    Returns: the spec, and how many words it took; what follows is the caller's.
    Raises: BadArg.
    """
    kind = words[0].upper() if words else ""
    if kind not in ("CRON", "EVERY", "AT"):
        found = repr(words[0]) if words else "nothing"
        raise BadArg(f"a schedule begins with CRON expr, EVERY ms or AT unix_ms; found {found}")
    if len(words) < 2:
        raise BadArg(f"{kind} needs a value")
    options: dict[str, str] = {}
    used = 2
    while used < len(words) and words[used].upper() in ("TZ", "CATCHUP"):
        option = words[used].upper()
        if option in options:
            raise BadArg(f"{option} is given twice")
        if used + 1 == len(words):
            raise BadArg(f"{option} needs a value")
        options[option] = words[used + 1]
        used += 2
    catchup = options.get("CATCHUP", "one")
    if kind == "CRON":
        return Spec.cron(words[1], options.get("TZ", "UTC"), catchup), used
    if "TZ" in options:
        raise BadArg(f"TZ belongs to CRON, not to {kind}")
    number = _integer(kind, words[1])
    return (Spec.every(number, catchup) if kind == "EVERY" else Spec.at(number, catchup)), used


def first_tick(spec: Spec, now_ms: int) -> int:
    """
    Return the first tick of a schedule put at ``now_ms``.

    Raises: BadArg: it would never tick.
    """
    tick_ms = next_tick(spec, now_ms)
    if tick_ms is None and spec.kind == "at":
        passed = f" {spec.at_ms} has passed; the store's clock says {now_ms}"
        raise BadArg(Field("at_ms"), passed)
    if tick_ms is None:
        never = f" {spec.expr!r} never comes: the next nine years have no such day"
        raise BadArg(cron.CRON, never)
    return tick_ms


def next_tick(spec: Spec, after_ms: int) -> int | None:
    """
    Return the earliest tick later than ``after_ms``, or None when there is none (any more).

    A schedule's ticks are one fixed set: which one is next depends on ``after_ms`` alone, not on
    what was asked before.
    """
    match spec.kind:
        case "every":
            passed = max(0, (after_ms - spec.anchor_ms) // spec.every_ms)
            tick_ms: int | None = spec.anchor_ms + (passed + 1) * spec.every_ms
        case "at":
            tick_ms = spec.at_ms if spec.at_ms > after_ms else None
        case "cron":
            tick_ms = _next_cron(spec, after_ms)
    return tick_ms if tick_ms is not None and tick_ms <= TIME_MS_MAX else None


def ticks_due(spec: Spec, next_ms: int, now_ms: int, limit: int) -> tuple[list[int], int | None]:
    """
    Return the ticks to put for a stored next tick ``next_ms``, and the next tick after them.

    By CATCHUP: ``none`` puts nothing for a tick more than ``MISSED_MS`` late; ``one`` puts one
    task, named by the earliest tick, for all that were missed; ``all`` puts one for each, at most
    ``limit`` now (the returned next tick is then still due).

    Returns: the ticks to put, oldest first, and the next tick, None when the schedule is over.
    """
    if next_ms > now_ms:
        return [], next_ms
    if spec.catchup != "all":
        missed = now_ms - next_ms > MISSED_MS
        return ([] if missed and spec.catchup == "none" else [next_ms]), next_tick(spec, now_ms)
    ticks: list[int] = []
    tick_ms: int | None = next_ms
    while tick_ms is not None and tick_ms <= now_ms and len(ticks) < limit:
        ticks.append(tick_ms)
        tick_ms = next_tick(spec, tick_ms)
    return ticks, tick_ms


def ticks_to_come(spec: Spec, next_ms: int, now_ms: int) -> Iterator[int]:
    """
    Yield the ticks for which a schedule will put a task, from the stored next one on.

    Of those that were missed it has the earliest alone, or none, as CATCHUP says.
    """
    missed = now_ms - next_ms > MISSED_MS
    tick_ms = next_tick(spec, now_ms) if missed and spec.catchup == "none" else next_ms
    while tick_ms is not None:
        yield tick_ms
        tick_ms = next_tick(spec, max(tick_ms, now_ms))


def _next_cron(spec: Spec, after_ms: int) -> int | None:
    """Do as :func:`next_tick`. The wall clock is asked for matches; here they become instants."""
    expression = cron.parse(spec.expr)
    after_wall = _wall(spec.zone, after_ms)
    wall = expression.next_wall(after_wall + _MS)
    if wall is None:
        return None
    instants = _instants(spec.zone, wall, expression.every_hour)
    jump = max(
        _jump(spec.zone, at_ms)
        for at_ms in (after_ms, _unix_ms(wall.replace(tzinfo=cron.zone(spec.zone))))
    )
    if len(instants) == 1 and not jump:
        return instants[0]
    # Near a change of the clocks wall times and instants run in different orders: look at every
    # match that it may reorder.
    best: int | None = None
    wall = expression.next_wall(after_wall - jump)
    while wall is not None and (best is None or wall <= _wall(spec.zone, best) + jump):
        for instant in _instants(spec.zone, wall, expression.every_hour):
            if instant > after_ms and (best is None or instant < best):
                best = instant
        wall = expression.next_wall(wall + _MS)
    return best


def _wall(zone_name: str, at_ms: int) -> datetime:
    """Return the time that the clocks of the zone show, naive."""
    instant = datetime.fromtimestamp(at_ms // 1000, UTC) + timedelta(milliseconds=at_ms % 1000)
    return instant.astimezone(cron.zone(zone_name)).replace(tzinfo=None)


def _jump(zone_name: str, at_ms: int) -> timedelta:
    """Return how far the clocks move, to either side, within three hours; zero: they do not."""
    before, after = _wall(zone_name, at_ms - _SHIFT_MS), _wall(zone_name, at_ms + _SHIFT_MS)
    return abs(after - before - 2 * _SHIFT)


def _instants(zone_name: str, wall: datetime, every_hour: bool) -> list[int]:
    """
    Return the instants that count for a wall time.

    None or a later one counts where the time is missing, one or both where it is doubled.
    """
    local = wall.replace(tzinfo=cron.zone(zone_name))
    first, second = (_unix_ms(local.replace(fold=fold)) for fold in (0, 1))
    if first == second:
        return [first]
    # Missing: the first reading counts by the clock before the change, so it comes after it.
    if first > second:
        return [] if every_hour else [first]
    return [first, second] if every_hour else [first]


def _unix_ms(local: datetime) -> int:
    return (local.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MS


def _catchup(text: str) -> Catchup:
    if text.lower() not in CATCHUPS:
        raise BadArg(Field("catchup"), f" is {text!r}; allowed are {', '.join(CATCHUPS)}")
    return cast(Catchup, text.lower())


def _integer(what: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16):
        raise BadArg(f"{what} is {text!r}; a whole number of milliseconds is allowed")
    return int(text)
