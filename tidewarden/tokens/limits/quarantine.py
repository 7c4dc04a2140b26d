"""
When nobody is given up: refusals of accounts that were well have jumped, so that something may be the matter with the provider. Pure.

"Usual" is a share by the day, learnt slowly, capped, and not while a quarantine lasts. It ends when some of those that were refused
are accepted again, or when an operator says so; never by time alone.
"""

from __future__ import annotations

from .client_record import ClientRecord, Quarantine
from .evidence import KEPT_MS, Bucket, total, within

HANDFUL = 6
SHARE_MIN = 0.1
TIMES = 5.0
USUAL_MAX = 0.05
PRIOR = (50.0, 1.0)
"""Answers and refusals that a client nobody knows yet is taken to have had: 2 %."""
DAY_MS = 86_400_000
RELEASED_MS = DAY_MS
"""A release lasts so long at most: what is refused then is another matter."""
SAMPLE = 3
"""Accounts that were refused, and accepted again, by which a quarantine is over …"""
SAMPLE_SHARE = 0.5
"""… if they are so many of those that were asked of late."""
SAMPLE_MAX = 10


def usual_share(record: ClientRecord) -> float:
    """The share of healthy accounts that are refused on a usual day, at most :data:`USUAL_MAX`."""
    answered = PRIOR[0] + record.usual_well + record.usual_refused
    return min(USUAL_MAX, (PRIOR[1] + record.usual_refused) / answered)


def learn(record: ClientRecord, gone: list[Bucket], clock_ms: int) -> None:
    """Count what is past as usual, unless it is from a quarantine; what was before counts half after each day."""
    if record.quarantine is not None or not gone:
        return
    past = total(gone)
    fade = 0.5 ** (max(0, clock_ms - record.usual_ms) / DAY_MS) if record.usual_ms else 0.0
    record.usual_well = record.usual_well * fade + past.ok
    record.usual_refused = record.usual_refused * fade + past.refused + past.client
    record.usual_ms = clock_ms


def judge(record: ClientRecord, told: Bucket, words: tuple[str, str], clock_ms: int) -> None:
    """Begin or end a quarantine, by what a node tells now, which is already in the record's buckets."""
    if record.quarantine is not None:
        _sample(record, told, clock_ms)
        return
    seen = within(record.buckets, clock_ms - KEPT_MS)
    refused = seen.refused + seen.client
    share = refused / max(1, refused + seen.ok)
    usual = usual_share(record)
    jumped = refused >= HANDFUL and share > max(SHARE_MIN, TIMES * usual)
    if record.released_ms:
        if _release_over(record, clock_ms):
            record.released_ms = 0
        return
    if jumped and (told.refused or told.client) and record.hold is None:
        record.quarantine = Quarantine(clock_ms, refused, share, usual, *words)


def _release_over(record: ClientRecord, clock_ms: int) -> bool:
    """
    Whether a release has done its work: refusals are as usual, among those that were refused before, too.

    Only what was answered since then counts, and for as long as is judged by: those that were refused
    have to be asked again first.
    """
    lasts_ms = clock_ms - record.released_ms
    seen = within(record.buckets, clock_ms - KEPT_MS)
    refused = seen.refused + seen.client + seen.refused_again
    usual = refused <= max(SHARE_MIN, TIMES * usual_share(record)) * (refused + seen.ok)
    return lasts_ms > RELEASED_MS or (lasts_ms >= KEPT_MS and seen.ok >= HANDFUL and usual)


def _sample(record: ClientRecord, told: Bucket, clock_ms: int) -> None:
    found = record.quarantine
    assert found is not None
    found.refused += told.refused + told.client
    found.accepted += told.accepted
    found.sampled += told.accepted + told.refused_again
    if found.accepted >= SAMPLE and found.accepted >= SAMPLE_SHARE * found.sampled and not found.by_operator:
        end(record, clock_ms)
    elif found.sampled > SAMPLE_MAX:  # The last few count: it may have been over, and begun anew.
        found.accepted, found.sampled = found.accepted // 2, found.sampled // 2


def end(record: ClientRecord, clock_ms: int) -> None:
    """End it: whoever failed meanwhile is asked anew."""
    record.quarantine = None
    record.rouse_ms = clock_ms
    record.buckets = [Bucket(one.since_ms, one.ok, one.limited, one.others, one.erring) for one in record.buckets]
    # What was refused in the incident is no evidence of another.


def release(record: ClientRecord, clock_ms: int) -> None:
    """An operator says that the refusals are true: each account is asked once more, and given up if it is refused."""
    end(record, clock_ms)
    record.released_ms = clock_ms
