"""
Decides when nobody is given up, for accounts that were well fail by more than a few. Pure.

Too many accounts that were well fail, so the provider may be the cause. Pure.

"Usual" is a share by the day, learnt slowly, capped, and not while a quarantine lasts. It ends when
some of those that failed are well again and no more follow, or when an operator says so; never by
time alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden.config.error_classes import Kind

from . import hold
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
"""Accounts that had failed, and are well again, by which a quarantine begins to end …"""
SAMPLE_SHARE = 0.5
"""… if they are so many of those that were asked of late."""
SAMPLE_MAX = 5
ROUSED_MS, SAMPLE_SHARE_MIN = 60_000, 0.25
"""
Within so long whoever failed has been tried anew: if fewer of them are well, it has not come to an
end.
"""
CALM_MS = KEPT_MS
"""It is over when so long nobody else failed so."""


def usual_share(record: ClientRecord) -> float:
    """The share of healthy accounts that are refused on a usual day, at most :data:`USUAL_MAX`."""
    answered = PRIOR[0] + record.usual_well + record.usual_refused
    return min(USUAL_MAX, (PRIOR[1] + record.usual_refused) / answered)


def learn(record: ClientRecord, gone: list[Bucket], clock_ms: int) -> None:
    """
    Count past failures as usual, unless they are from a quarantine.

    Older ones count half after each day.
    """
    if record.quarantine is not None or not gone:
        return
    past = total(gone)
    fade = 0.5 ** (max(0, clock_ms - record.usual_ms) / DAY_MS) if record.usual_ms else 0.0
    record.usual_well = record.usual_well * fade + past.ok
    record.usual_refused = record.usual_refused * fade + past.refused + past.proven_client
    record.usual_ms = clock_ms


def jump(record: ClientRecord, clock_ms: int) -> Quarantine | None:
    """
    Return the quarantine that the evidence calls for.

    It is called for when that many accounts that were well fail, and are not well again by
    themselves.
    """
    seen = within(record.buckets, max(record.opened_ms, clock_ms - KEPT_MS))
    usual = usual_share(record)
    all_refused = hold.share_of(record, "client", clock_ms, hold.SHARED_LEAST) is not None
    # Else that is the hold's matter, in a moment.
    client = 0 if all_refused else seen.proven_client
    for kind, failed, bound in (
        ("refused", seen.refused + client - seen.accepted, max(SHARE_MIN, TIMES * usual)),
        ("erring", seen.proven_erring - seen.mended, SHARE_MIN),
    ):
        if kind == "erring" and hold.share_of(record, kind, clock_ms, hold.SHARED_LEAST):
            continue  # Likewise.
        share = failed / max(1, failed + seen.ok)
        if failed >= HANDFUL and share > bound:
            return Quarantine(clock_ms, failed, share, usual, kind=kind)
    return None


def judge(
    record: ClientRecord, told: Bucket, words: Mapping[Kind, tuple[str, str]], clock_ms: int
) -> None:
    """
    Begin or end a quarantine, by what a node tells now, which is already in the record's buckets.

    ``words``: class and brief of the last failure, by kind.
    """
    found = record.quarantine
    if found is not None:
        _sample(record, found, told, clock_ms)
        return
    begun = jump(record, clock_ms) if record.hold is None else None
    if record.released_ms:
        if _release_over(record, clock_ms):
            record.released_ms = 0
        return
    if begun is not None and (told.refused or told.proven_client or told.proven_erring):
        kind: Kind = "erring" if begun.kind == "erring" else "refused"
        said = words.get(kind) or words.get("client") or ("", "")
        begun.outcome, begun.brief = said
        record.quarantine = begun


def _release_over(record: ClientRecord, clock_ms: int) -> bool:
    """
    Whether a release has done its work.

    Refusals are as usual, among those that were refused before, too.

    Only what was answered since then counts, and for as long as is judged by: those that were
    refused have to be asked again first.
    """
    lasts_ms = clock_ms - record.released_ms
    seen = within(record.buckets, clock_ms - KEPT_MS)
    refused = seen.refused + seen.proven_client + seen.refused_again
    usual = refused <= max(SHARE_MIN, TIMES * usual_share(record)) * (refused + seen.ok)
    return lasts_ms > RELEASED_MS or (lasts_ms >= KEPT_MS and seen.ok >= HANDFUL and usual)


def _sample(record: ClientRecord, found: Quarantine, told: Bucket, clock_ms: int) -> None:
    failed, again = told.refused + told.proven_client, told.refused_again
    accepted = told.accepted
    if found.kind == "erring":
        failed, again, accepted = told.proven_erring, told.erring_again, told.mended
    found.refused += failed
    found.accepted += accepted
    found.sampled += accepted + again
    if found.by_operator:
        return
    if found.ending_ms:
        lasts_ms = clock_ms - found.ending_ms
        few = found.sampled >= SAMPLE_MAX and found.accepted < SAMPLE_SHARE_MIN * found.sampled
        if (jump(record, clock_ms) is not None and failed) or (lasts_ms < ROUSED_MS and few):
            # It goes on: told once, it is not told anew.
            found.ending_ms, found.accepted, found.sampled = 0, 0, 0
        elif lasts_ms >= CALM_MS:
            record.quarantine = None
            rouse(record, clock_ms)  # Who was refused once more before it was over waits for long.
    elif found.accepted >= SAMPLE and found.accepted >= SAMPLE_SHARE * found.sampled:
        found.ending_ms, found.accepted, found.sampled = clock_ms, 0, 0
        rouse(record, clock_ms)
    elif found.sampled > SAMPLE_MAX:  # The last few count: it may have been over, and begun anew.
        found.accepted, found.sampled = found.accepted * SAMPLE_MAX / found.sampled, SAMPLE_MAX


def rouse(record: ClientRecord, clock_ms: int) -> None:
    """Have whoever failed tried anew; what was met so far is no evidence of another incident."""
    record.rouse_ms = clock_ms
    record.buckets = [
        Bucket(one.since_ms, one.ok, one.limited, one.others) for one in record.buckets
    ]


def release(record: ClientRecord, clock_ms: int) -> None:
    """
    End a quarantine because an operator says that the refusals are right.

    Each account is asked once more, and given up if it is refused.
    """
    record.quarantine = None
    record.released_ms = clock_ms
    rouse(record, clock_ms)
