"""
Reckons the rate of a client that is answered 429: what is answered well, and a little more. Pure.

A rate shrinks when the *share* of 429 passes a bound: a few are some accounts' own limits and delay
those alone. It becomes what was answered otherwise (the goodput), a little less, and grows by the
cubic function of CUBIC (RFC 9438, 4.2): fast towards what was borne last, slowly about it, faster
and faster beyond, until it is forgotten. The AWS SDKs' adaptive retry does likewise. Where next to
nothing was answered well the rate shows no bound: it doubles with each good second (slow start, RFC
9438, 4.10) until too many answers are 429 again.
"""

from __future__ import annotations

from .client_record import ClientRecord, Rate
from .evidence import Bucket, within

SHARE = 0.05
HANDFUL = 6
HANDFUL_RATED = 2
"""
While there is a rate the provider is known to limit us: it takes fewer to show that the rate is too
high again.
"""
FEW, WINDOW_FEW_MS = 20, 20_000
"""Of so few answers no rate is reckoned: those of a longer time count."""
ANSWERS_A_SECOND = 3.0
"""
Growth by time counts no faster than this many answers a second: where few come, what is borne is
not known so soon.
"""
ANSWERS = 40
"""
What is judged by, at least, while there is a rate: at two requests a second five seconds tell
little.
"""
BETA = 0.9
GROWTH = 0.001
"""
Of the peak, for each cubed second: back at the peak after 4.6 s, a quarter beyond it after 11 s.
"""
PER_SECOND_MIN, PER_SECOND_MAX = 0.2, 100_000.0
SLOW_START_SHARE = 0.1
"""A rate begins so where no more of the answers than that were good ones."""
FORGET = 2.0
FORGET_MS = 5_000
"""
Times the peak at which the rate is forgotten, if so long it has granted all that was asked for: a
backlog would go at once.
"""
USED = 1.25
"""
It grows to so many times what was answered of late at most: what is not used shows nothing (RFC
7661).
"""
APART_MS = 1_000
"""Between two times that it shrinks: what was under way at the first is answered by then."""
WINDOW_MS = 5_000
REST_SHARE = 0.95
REST_MS = 60_000
"""
All rest so long at first, however long the answers name, and twice as long when it was over and
they say so again: where little is sent, some accounts' own limits are all that is answered.
"""


def judge(
    record: ClientRecord,
    told: Bucket,
    goodput: float,
    wait_ms: int,
    brief: str,
    clock_ms: int,
    *,
    short: bool = False,
) -> None:
    """
    Shrink the rate, let it grow, or forget it, by what a node tells now.

    Args:
        told: this node's answers since it told last, already in the record's buckets.
        goodput: answers a second but 429 that all nodes seem to get, by this one's.
        wait_ms: the shortest time that a 429 named; 0: one named none.
        short: whether the rate granted this node less than it asked for.
    """
    if told.answered > told.limited:
        record.rests = 0
    if told.limited and _rest(record, wait_ms, brief, clock_ms):
        return
    rate = record.rate
    if rate is None:
        seen = within(record.buckets, max(record.opened_ms, clock_ms - WINDOW_MS))
        if told.limited and too_many(seen.limited, seen.answered):
            record.rate = _shrunk(goodput, seen, clock_ms)
        return
    rate.answered += told.answered
    rate.limited += told.limited
    rate.since_shrunk += told.answered
    if short:
        rate.short_ms = clock_ms
    if (
        too_many(rate.limited, rate.answered, HANDFUL_RATED)
        and clock_ms - rate.shrunk_ms >= APART_MS
    ):
        well = (rate.answered - rate.limited) * 1000 / max(250, clock_ms - rate.meter_ms)
        if rate.answered < FEW:
            seen = within(record.buckets, clock_ms - WINDOW_FEW_MS)
            well = max(well, (seen.answered - seen.limited) * 1000 / WINDOW_FEW_MS)
        seen = within(record.buckets, clock_ms - WINDOW_MS)
        record.rate = _shrunk(min(well, rate.per_second), seen, clock_ms)
        return
    if clock_ms - rate.meter_ms >= WINDOW_MS and rate.answered >= ANSWERS:
        rate.meter_ms, rate.answered, rate.limited = clock_ms, 0, 0
    grow(record, clock_ms)


def grow(record: ClientRecord, clock_ms: int) -> None:
    """
    Let the rate grow by the time that has passed; forget it when it holds nothing back any more.
    """
    rate = record.rate
    if rate is None:
        return
    if rate.doubled_ms:
        if _double(rate, clock_ms):
            record.rate = None
        return
    back_s = ((1 - BETA) / GROWTH) ** (1 / 3)
    passed_s = max(0, clock_ms - rate.shrunk_ms) / 1000
    passed_s = min(passed_s, rate.since_shrunk / ANSWERS_A_SECOND)
    seen = within(record.buckets, clock_ms - WINDOW_MS)
    used = USED * (seen.answered - seen.limited) * 1000 / WINDOW_MS
    target = rate.peak * (1 + GROWTH * (passed_s - back_s) ** 3)
    rate.per_second = max(rate.per_second, min(target, max(used, PER_SECOND_MIN, rate.peak)))
    if target >= FORGET * rate.peak and clock_ms - rate.short_ms >= FORGET_MS:
        record.rate = None


def _double(rate: Rate, clock_ms: int) -> bool:
    """
    Double a rate that shows no bound, if next to good answers alone came for a second or longer.

    Returns whether it holds nothing back any more.
    """
    if clock_ms - rate.doubled_ms < APART_MS or not rate.answered:
        return False
    if rate.limited <= SHARE * rate.answered:
        rate.per_second = min(PER_SECOND_MAX, 2 * rate.per_second)
        rate.peak = max(rate.peak, rate.per_second / 2)
    rate.doubled_ms = rate.meter_ms = clock_ms
    rate.answered = rate.limited = 0
    return clock_ms - rate.short_ms >= FORGET_MS


def too_many(limited: int, answered: int, least: int = HANDFUL) -> bool:
    """Whether so many 429 among so many answers are more than some accounts' own limits."""
    return limited >= least and limited > SHARE * answered


def _shrunk(goodput: float, seen: Bucket, clock_ms: int) -> Rate:
    peak = max(PER_SECOND_MIN, goodput)
    boundless = seen.answered - seen.limited <= SLOW_START_SHARE * seen.answered
    boundless = boundless or peak <= PER_SECOND_MIN
    return Rate(
        max(PER_SECOND_MIN, BETA * peak),
        peak,
        clock_ms,
        clock_ms,
        short_ms=clock_ms,
        doubled_ms=clock_ms if boundless else 0,
    )


def _rest(record: ClientRecord, wait_ms: int, brief: str, clock_ms: int) -> bool:
    """
    Leave the provider alone for as long as it says, where every answer of late is a 429 that says
    so.
    """
    seen = within(record.buckets, max(record.opened_ms, record.rest_ms, clock_ms - WINDOW_MS))
    if not wait_ms or seen.limited < HANDFUL or seen.limited < REST_SHARE * seen.answered:
        return False
    if clock_ms < record.rest_ms:
        return True  # It was under way when the rest began.
    record.rest_ms, record.rest_brief = (
        clock_ms + min(wait_ms, REST_MS << min(record.rests, 20)),
        brief,
    )
    record.rests += 1
    return True
