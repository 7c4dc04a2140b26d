"""
Decides what all nodes together may send for a client: nothing, or how many a second. Pure.

**A hold** is the circuit breaker of Nygard (Release It!, 2007), with two differences: it opens by
the share of *different healthy accounts* that fail alike, and what probes is an account that was
well. See ``docs/decisions/0025-client-limits.md``.

**A rate** shrinks when the *share* of 429 passes a bound: a few are some accounts' own limits and
delay those alone. It becomes what was answered otherwise (the goodput), a little less, and grows by
the cubic function of CUBIC (RFC 9438, 4.2): fast towards what was borne last, slowly about it,
faster and faster beyond, until it is forgotten. The AWS SDKs' adaptive retry does likewise. Where
next to nothing was answered well the rate shows no bound: it doubles with each good second (slow
start, RFC 9438, 4.10) until too many answers are 429 again.
"""

from __future__ import annotations

import math

from tidewarden.config.error_classes import Kind

from .answer_counts import Bucket, Told, total, within
from .client_record import ClientRecord, Hold, Rate

HOLD_WINDOWS_MS = (4_000, 30_000)
"""
The times over which a hold is judged: the last moment if many answers come, else a longer one.
"""
HELD_SHARE = 0.8
ROW_MS = 600_000
"""Failures in a row that began longer ago than that say nothing of now."""
LEAST: dict[Kind, int] = {"client": 5, "erring": 10}
"""The least number of witnesses that met the same failure."""
SHARED_LEAST = 3
"""So many witnesses make a failure a shared one, although a hold needs more."""
CHANCE = 1e-4
"""
The probability below which so many failures are no chance at a provider that fails now and then …
"""
USUAL_MAX, USUAL_PRIOR = 0.7, 30
"""
… whose usual share of failures is at most the first, so that an outage after an outage is held,
too, and begins with so many good answers.
"""
PAUSE_MS = 2_000
PAUSE_GROWTH = 1.5
PROBES = 3
"""So many probes by different accounts fail before the pause grows."""
PAUSE_MAX_MS = {"client": 3_000, "erring": 15_000}
LONG_MS = 900_000
"""After so long a client that is refused is asked more rarely: nobody is mending it just now."""
PAUSE_MAX_LONG_MS = {"client": 30_000, "erring": 15_000}
NAMED_MS = 60_000
"""
A time to wait that an answer names counts for all accounts up to this length, and up to twice that
after each probe that fails.
"""
UNSENT_MS = 500
ROUSED_APART_MS = 300_000
CALM_MS = 15_000
"""An incident is over when nothing was held for so long."""

LIMITED_SHARE = 0.05
HANDFUL = 6
HANDFUL_RATED = 2
"""While there is a rate, so few 429 show that it is too high: the provider is known to limit us."""
FEW, WINDOW_FEW_MS = 20, 20_000
"""So few answers give no rate: those of a longer time are counted."""
ANSWERS_A_SECOND = 3.0
"""
Growth by time counts at most so many answers a second: if few come, the bound is learnt slowly.
"""
RATED_ANSWERS = 40
"""A rate is judged by at least so many answers: at two a second five seconds tell little."""
BETA = 0.9
RATE_GROWTH = 0.001
"""
The growth, a part of the peak for each cubed second: it is back there after 4.6 s, and a quarter
beyond after 11 s.
"""
PER_SECOND_MIN, PER_SECOND_MAX = 0.2, 100_000.0
SLOW_START_SHARE = 0.1
"""A rate begins with slow start if no larger share of the answers was good."""
RATE_FORGET = 2.0
RATE_FORGET_MS = 5_000
"""
A rate is forgotten at so many times its peak, if it has granted all requests for so long: before, a
backlog would go at once.
"""
USED = 1.25
"""
A rate grows to at most so many times the answers of late: unused room shows nothing (RFC 7661).
"""
APART_MS = 1_000
"""
Milliseconds between two times that a rate shrinks: requests under way at the first are answered by
then.
"""
RATE_WINDOW_MS = 5_000
REST_SHARE = 0.95
REST_MS = 60_000
"""
The first rest of all requests, however long a time the answers name; it doubles when they say so
again afterwards. If little is sent, some accounts' own limits are all that is answered.
"""


# --- holds


def share_of(
    record: ClientRecord, kind: str, clock_ms: int, least: int, untold: Bucket | None = None
) -> tuple[int, int] | None:
    """
    Return how many witnesses met that kind, and of how many; None: too few, or not nearly all.

    All are those of the last moment or, where little comes, those since an account was refreshed
    well, or refused: a provider that refuses a grant is at work, and such an answer to a probe
    would end a hold. ``untold``: what a node has met with in the last moment and has not told yet.
    """
    in_a_row = record.in_a_row.get(kind, 0) if clock_ms - record.row_ms < ROW_MS else 0
    in_a_row += getattr(untold, kind) if untold is not None else 0
    if in_a_row >= least and not (untold is not None and untold.served):
        return in_a_row, in_a_row
    for window_ms in HOLD_WINDOWS_MS:
        seen = within(record.buckets, max(record.opened_ms, clock_ms - window_ms))
        if untold is not None:
            seen.add(untold)
        failed = getattr(seen, kind)
        asked = failed + seen.served
        if failed >= least and failed >= HELD_SHARE * asked:
            return failed, asked
    return None


def called_for(
    record: ClientRecord, kind: Kind, clock_ms: int, untold: Bucket | None = None
) -> tuple[int, int] | None:
    """
    Return how many witnesses met that kind, and of how many, if all requests are to be held for it.

    Where a part of the answers is of that kind for hours, as behind a balancer with one bad server,
    as many in a row come by chance: there it takes more of them. The bound is Chernoff's (Annals of
    Mathematical Statistics 23, 1952).
    """
    found = share_of(record, kind, clock_ms, LEAST[kind], untold)
    if found is None:
        return None
    before_ms = clock_ms - HOLD_WINDOWS_MS[-1]
    if record.in_a_row.get(kind):
        before_ms = min(before_ms, record.row_ms)
    before = total(bucket for bucket in record.buckets if bucket.since_ms < before_ms)
    usually = getattr(before, kind)
    usual = min(USUAL_MAX, usually / (usually + before.served + USUAL_PRIOR))
    failed, asked = found
    share = failed / asked
    exponent = share * math.log(share / usual) if usual else math.inf
    if share < 1:
        exponent += (1 - share) * math.log((1 - share) / (1 - usual))
    return found if math.exp(-asked * exponent) <= CHANCE else None


def pause_ms(kind: str, probes: int, held_ms: int) -> int:
    """Return the milliseconds until the next probe, by how many failed and how old the hold is."""
    most = PAUSE_MAX_LONG_MS if held_ms > LONG_MS else PAUSE_MAX_MS
    longest = most.get(kind, most["erring"])  # Of another version, perhaps.
    return min(longest, int(PAUSE_MS * PAUSE_GROWTH ** min(20, probes // PROBES)))


def judge_hold(record: ClientRecord, told: Told, clock_ms: int) -> None:
    """
    Begin a hold where the evidence says so; end one that an answer has shown to be over.

    What was answered well before the last moment may have come before the hold.
    """
    if record.hold is not None:
        if told.recent.ok:
            end_hold(record, clock_ms)
        return
    counted = told.counted
    for kind in LEAST:
        found = called_for(record, kind, clock_ms) if getattr(counted, kind) else None
        if found is not None:
            outcome, brief = told.words.get(kind, ("", ""))
            named_ms = min(told.error_wait_ms, NAMED_MS) if kind == "erring" else 0
            wait_ms = max(named_ms, pause_ms(kind, 0, 0))
            record.hold = Hold(kind, clock_ms, clock_ms + wait_ms, 0, "", 0, outcome, brief, *found)
            if not record.well_ms or _proven(record, kind, clock_ms):
                record.incident_ms = record.incident_ms or clock_ms
            return


def _proven(record: ClientRecord, kind: Kind, clock_ms: int) -> bool:
    """
    Return whether accounts that were refreshed well before are among those that fail just now.

    Some that are imported with a fault of their own come in a row, and are no incident of the
    provider before the hold's probe has failed, too.
    """
    since_ms = clock_ms - HOLD_WINDOWS_MS[-1]
    if record.in_a_row.get(kind):
        since_ms = min(since_ms, record.row_ms)
    seen = within(record.buckets, max(record.opened_ms, since_ms))
    return bool(getattr(seen, f"proven_{kind}"))


def claimable(record: ClientRecord, clock_ms: int) -> bool:
    """
    Return whether this node may claim the next probe.

    It may when all requests are held, the time has come, and no other node has claimed the probe.
    """
    hold = record.hold
    if hold is None or hold.until_ms > clock_ms:
        return False
    return not (hold.claim and hold.claim_ms > clock_ms)


def claim(record: ClientRecord, node: str, clock_ms: int, lasts_ms: int) -> bool:
    """Claim the next probe for a node; False: see :func:`claimable`."""
    if not claimable(record, clock_ms) or record.hold is None:
        return False
    record.hold.claim, record.hold.claim_ms = node, clock_ms + lasts_ms
    return True


def probe_ended(record: ClientRecord, told: Told, clock_ms: int) -> None:
    """
    Note that a node's probe has its answer, or was not sent: another may follow a moment later.
    """
    hold = record.hold
    if hold is not None and told.probe is not None:
        if told.probe:
            end_hold(record, clock_ms)
            return
        hold.probes += 1
        record.incident_ms = record.incident_ms or clock_ms
        hold.claim, hold.claim_ms = "", 0
        named_ms = max(told.wait_ms, told.error_wait_ms)
        wait_ms = min(named_ms, NAMED_MS << min(hold.probes, 20))
        paused_ms = pause_ms(hold.kind, hold.probes, clock_ms - hold.since_ms)
        hold.until_ms = clock_ms + max(wait_ms, paused_ms)
    if hold is not None and told.unclaim and hold.claim == told.node:
        hold.claim, hold.claim_ms, hold.until_ms = "", 0, max(hold.until_ms, clock_ms + UNSENT_MS)


def shows_well(record: ClientRecord, kind: Kind) -> bool:
    """Return whether a probe's answer shows that the reason for the hold is gone."""
    hold = record.hold
    if hold is None or kind == "ok":
        return True
    if hold.kind == "client":
        return kind in ("limited", "refused", "other")
    return hold.kind == "erring" and kind not in ("erring", "silent")


def suspected(record: ClientRecord, untold: Bucket, clock_ms: int) -> bool:
    """
    Return whether the answers a node has not reported yet would hold all requests, or slow them.
    """
    if too_many(untold.limited, untold.answered):
        return True
    return record.hold is None and any(
        getattr(untold, kind) and called_for(record, kind, clock_ms, untold) for kind in LEAST
    )


def end_hold(record: ClientRecord, clock_ms: int) -> None:
    """
    End the hold: all go on.

    Accounts that failed meanwhile are tried again, but not each time where holds come and go.
    """
    if clock_ms - record.roused_ms >= ROUSED_APART_MS:
        record.rouse_ms = clock_ms
    record.hold = None
    record.in_a_row.clear()
    record.opened_ms = clock_ms


# --- rates


def judge_rate(record: ClientRecord, told: Told, clock_ms: int) -> None:
    """Shrink the rate, let it grow, or forget it, by what a node tells of the last moment."""
    recent = told.recent
    if recent.answered > recent.limited:
        record.rests = 0
    if recent.limited and _rest(record, told, clock_ms):
        return
    rate = record.rate
    if rate is None:
        seen = within(record.buckets, max(record.opened_ms, clock_ms - RATE_WINDOW_MS))
        if recent.limited and too_many(seen.limited, seen.answered):
            record.rate = _shrunk(told.goodput, seen, clock_ms)
        return
    rate.answered += recent.answered
    rate.limited += recent.limited
    rate.since_shrunk += recent.answered
    if told.short:
        rate.short_ms = clock_ms
    apart = clock_ms - rate.shrunk_ms >= APART_MS
    if apart and too_many(rate.limited, rate.answered, HANDFUL_RATED):
        well = (rate.answered - rate.limited) * 1000 / max(250, clock_ms - rate.meter_ms)
        if rate.answered < FEW:
            seen = within(record.buckets, clock_ms - WINDOW_FEW_MS)
            well = max(well, (seen.answered - seen.limited) * 1000 / WINDOW_FEW_MS)
        seen = within(record.buckets, clock_ms - RATE_WINDOW_MS)
        record.rate = _shrunk(min(well, rate.per_second), seen, clock_ms)
        return
    if clock_ms - rate.meter_ms >= RATE_WINDOW_MS and rate.answered >= RATED_ANSWERS:
        rate.meter_ms, rate.answered, rate.limited = clock_ms, 0, 0
    _grow(record, rate, clock_ms)


def _grow(record: ClientRecord, rate: Rate, clock_ms: int) -> None:
    """Let it grow by the time that has passed; forget it when it holds nothing back any more."""
    if rate.doubled_ms:
        if _double(rate, clock_ms):
            record.rate = None
        return
    back_s = ((1 - BETA) / RATE_GROWTH) ** (1 / 3)
    passed_s = max(0, clock_ms - rate.shrunk_ms) / 1000
    passed_s = min(passed_s, rate.since_shrunk / ANSWERS_A_SECOND)
    seen = within(record.buckets, clock_ms - RATE_WINDOW_MS)
    used = USED * (seen.answered - seen.limited) * 1000 / RATE_WINDOW_MS
    target = rate.peak * (1 + RATE_GROWTH * (passed_s - back_s) ** 3)
    rate.per_second = max(rate.per_second, min(target, max(used, PER_SECOND_MIN, rate.peak)))
    if target >= RATE_FORGET * rate.peak and clock_ms - rate.short_ms >= RATE_FORGET_MS:
        record.rate = None


def _double(rate: Rate, clock_ms: int) -> bool:
    """
    Double a rate that shows no bound, if next to good answers alone came for a second or longer.

    Returns whether it holds nothing back any more.
    """
    if clock_ms - rate.doubled_ms < APART_MS or not rate.answered:
        return False
    if rate.limited <= LIMITED_SHARE * rate.answered:
        rate.per_second = min(PER_SECOND_MAX, 2 * rate.per_second)
        rate.peak = max(rate.peak, rate.per_second / 2)
    rate.doubled_ms = rate.meter_ms = clock_ms
    rate.answered = rate.limited = 0
    return clock_ms - rate.short_ms >= RATE_FORGET_MS


def too_many(limited: int, answered: int, least: int = HANDFUL) -> bool:
    """Return whether so many 429 among so many answers exceed a few accounts' own limits."""
    return limited >= least and limited > LIMITED_SHARE * answered


def _shrunk(goodput: float, seen: Bucket, clock_ms: int) -> Rate:
    peak = max(PER_SECOND_MIN, goodput)
    boundless = seen.answered - seen.limited <= SLOW_START_SHARE * seen.answered
    boundless = boundless or peak <= PER_SECOND_MIN
    rate = Rate(max(PER_SECOND_MIN, BETA * peak), peak, clock_ms, clock_ms, short_ms=clock_ms)
    rate.doubled_ms = clock_ms if boundless else 0
    return rate


def _rest(record: ClientRecord, told: Told, clock_ms: int) -> bool:
    """Rest for as long as the provider says, where every answer of late is a 429 that says so."""
    since_ms = max(record.opened_ms, record.rest_ms, clock_ms - RATE_WINDOW_MS)
    seen = within(record.buckets, since_ms)
    if not told.wait_ms or seen.limited < HANDFUL or seen.limited < REST_SHARE * seen.answered:
        return False
    if clock_ms < record.rest_ms:
        return True  # It was under way when the rest began.
    record.rest_ms = clock_ms + min(told.wait_ms, REST_MS << min(record.rests, 20))
    _, record.rest_brief = told.words.get("limited", ("", ""))
    record.rests += 1
    return True
