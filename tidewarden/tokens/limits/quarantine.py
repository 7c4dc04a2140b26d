"""
Decides when nobody is given up, for accounts that were well fail by more than a few. Pure.

What is judged is the share among the last hour's answers, or the last fifty of witnesses, against
what is usual for this client: a part of a provider, a few accounts and a slow fleet have their
incidents, too. "Usual" is learnt slowly, capped, and not while a quarantine lasts. One ends when
some of those that failed are well again and no more follow, or when an operator says so; never by
time alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tidewarden.config.error_classes import Kind

from . import hold
from .client_record import ClientRecord, Quarantine
from .evidence import ANSWERS, FAILED, HOUR_MS, Bucket, judged, still_failing, total, within

SPARE, CLUSTER_SPARE = 2, 1
"""So many accounts that are refused are nothing unusual, however few are asked."""
SHARE_MIN = 0.03
TIMES = 5.0
SIGMAS, CLUSTER_SIGMAS = 4.0, 1.0
"""
Standard deviations (Poisson's) by which refusals must be above the usual: chance alone begins no
quarantine in years. From the second on they are a cluster: too few for a quarantine, and too many
to give them up before a day has passed.
"""
OTHERS_HANDFUL, OTHERS_SHARE_MIN = 6, 0.1
"""The same of errors, and of words that refuse our client: those end no grant."""
SHORT_MS = 600_000
"""So long a time is judged by, too."""
MENDED = 3
"""
If more accounts than that, and more of those that were asked again than not, are well again,
failures come by chance to any account. Their cure is the next try, which a quarantine puts off.
"""
UNPROVEN_HANDFUL = 6
"""Accounts that must be refused where none was ever refreshed well here."""
USUAL_MAX = 0.05
PRIOR = (1000.0, 1.0)
"""Answers and refusals that a client nobody knows yet is taken to have had."""
DAY_MS = 86_400_000
RELEASED_MS, RELEASED_LEAST_MS = DAY_MS, 600_000
"""A release lasts so long at most, for what is refused then is another matter, and at least."""
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
CALM_MS = HOUR_MS
"""It is over when so long nobody else failed so: what recurs within it is one incident."""
SAMPLE_MS, SAMPLE_WELL_MS = 10_000, 2_000
"""Between two accounts that are asked of those it is for, and once one of them is well again."""
SAMPLE_APART_MS = 60_000
"""Between two questions about one of them, where they are few."""
SAMPLE_PART = 360
"""Of its age, from which on a sample is that rare: each ten seconds in its first hour."""


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
    refused = still_failing(gone, 0, ["refused", "proven_client"], "accepted")
    fade = 0.5 ** (max(0, clock_ms - record.usual_ms) / DAY_MS) if record.usual_ms else 0.0
    record.usual_well = record.usual_well * fade + total(gone).ok
    record.usual_refused = record.usual_refused * fade + refused
    record.usual_ms = clock_ms


def jump(record: ClientRecord, clock_ms: int) -> Quarantine | None:
    """
    Return the quarantine that the evidence calls for.

    It is called for when that many accounts that were well fail, and are not well again by
    themselves.
    """
    judged_by, from_ms = judged(record.buckets, record.opened_ms, clock_ms)
    times = [from_ms]
    # Where tokens live for less than an hour, whoever is well is answered several times in it.
    short_ms = max(record.opened_ms, clock_ms - SHORT_MS)
    if within(record.buckets, short_ms).proven >= ANSWERS:
        times.append(short_ms)
    for since_ms in times:
        if (begun := _jump(record, judged_by, since_ms, clock_ms)) is not None:
            return begun
    if record.unproven >= UNPROVEN_HANDFUL:
        usual = usual_share(record)
        return Quarantine(clock_ms, record.unproven, 1.0, usual, kind="unproven")
    return None


def _jump(
    record: ClientRecord, judged_by: Bucket, since_ms: int, clock_ms: int
) -> Quarantine | None:
    """The quarantine that the answers from then on call for."""
    usual, ok = usual_share(record), within(record.buckets, since_ms).ok
    of_client, erring = ["refused", "proven_client"], ["proven_erring"]
    # Else that is the hold's matter, in a moment.
    if hold.share_of(record, "client", clock_ms, hold.SHARED_LEAST) is not None:
        of_client = ["refused"]
    if hold.share_of(record, "erring", clock_ms, hold.SHARED_LEAST) is not None:
        erring = []
    for kind, names, well, again, least, bound in (
        ("refused", ["refused"], "accepted", "refused_again", 0, SHARE_MIN),
        ("refused", of_client, "accepted", "refused_again", OTHERS_HANDFUL, OTHERS_SHARE_MIN),
        ("erring", erring, "mended", "erring_again", OTHERS_HANDFUL, OTHERS_SHARE_MIN),
    ):
        if getattr(judged_by, well) > max(MENDED, getattr(judged_by, again)):
            continue
        failed = still_failing(record.buckets, since_ms, names, well)
        enough = least or _unusual(usual * (failed + ok), SIGMAS) + SPARE
        share = failed / max(1, failed + ok)
        if failed >= enough and share > (bound if kind == "erring" else max(bound, TIMES * usual)):
            return Quarantine(clock_ms, failed, share, usual, kind=kind)
    return None


def _unusual(expected: float, sigmas: float) -> float:
    """So many refusals are more than chance brings about where so many are expected."""
    return expected + sigmas * math.sqrt(expected) + 1e-9


def clustered(record: ClientRecord, clock_ms: int) -> bool:
    """
    Whether more accounts than usual were refused of late, although too few for a quarantine.

    They may be a part of the provider's: what is below the bound of a quarantine is no single
    account's matter for that.
    """
    seen, from_ms = judged(record.buckets, record.opened_ms, clock_ms)
    refused = still_failing(record.buckets, from_ms, ["refused"], "accepted")
    expected = usual_share(record) * (refused + seen.ok)
    return refused > _unusual(expected, CLUSTER_SIGMAS) + CLUSTER_SPARE


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
    if record.released_ms:
        if _release_over(record, clock_ms):
            record.released_ms = 0
        return
    failed = told.refused + told.unproven + told.proven_client + told.proven_erring
    if not failed or record.hold is not None:
        return
    if (begun := jump(record, clock_ms)) is not None:
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
    seen, _ = judged(record.buckets, clock_ms - RELEASED_LEAST_MS, clock_ms)
    refused = seen.refused + seen.proven_client + seen.refused_again
    usual = refused <= max(SHARE_MIN, TIMES * usual_share(record)) * (refused + seen.ok)
    return lasts_ms > RELEASED_MS or (
        lasts_ms >= RELEASED_LEAST_MS and seen.ok >= OTHERS_HANDFUL and usual
    )


def _sample(record: ClientRecord, found: Quarantine, told: Bucket, clock_ms: int) -> None:
    failed, again = told.refused + told.unproven + told.proven_client, told.refused_again
    accepted = told.accepted
    if found.kind == "erring":
        failed, again, accepted = told.proven_erring, told.erring_again, told.mended
    found.refused += failed
    found.recovered += accepted
    found.accepted += accepted
    found.sampled += accepted + again
    if found.by_operator:
        return
    if accepted:
        found.sample_ms = min(found.sample_ms, clock_ms + SAMPLE_WELL_MS)
    if found.kind == "unproven" and record.well_ms:  # It is known now that some are well.
        record.quarantine = None
        rouse(record, clock_ms)
    elif found.ending_ms:
        lasts_ms = clock_ms - found.ending_ms
        few = found.sampled >= SAMPLE_MAX and found.accepted < SAMPLE_SHARE_MIN * found.sampled
        if (jump(record, clock_ms) is not None and failed) or (lasts_ms < ROUSED_MS and few):
            # It goes on: told once, it is not told anew.
            found.ending_ms, found.accepted, found.sampled = 0, 0, 0
        elif lasts_ms >= CALM_MS and jump(record, clock_ms) is None:
            record.quarantine = None
            rouse(record, clock_ms)  # Who was refused once more before it was over waits for long.
    elif _sample_is_well(found):
        found.ending_ms, found.accepted, found.sampled = clock_ms, 0, 0
        rouse(record, clock_ms)
    elif found.sampled > SAMPLE_MAX:  # The last few count: it may have been over, and begun anew.
        found.accepted, found.sampled = found.accepted * SAMPLE_MAX / found.sampled, SAMPLE_MAX


def _sample_is_well(found: Quarantine) -> bool:
    """Whether enough of those that had failed are well again: of the last few, or of all."""
    if found.recovered and found.refused - found.recovered <= SPARE:
        return True
    return found.accepted >= SAMPLE and found.accepted >= SAMPLE_SHARE * found.sampled


def sample_due(record: ClientRecord, clock_ms: int) -> bool:
    """Whether it is time to ask about another account that a quarantine is for."""
    found = record.quarantine
    return found is not None and not found.ending_ms and clock_ms >= found.sample_ms


def claim_sample(record: ClientRecord, clock_ms: int) -> bool:
    """Claim the next question about such an account; False: see :func:`sample_due`."""
    found = record.quarantine
    if found is None or not sample_due(record, clock_ms):
        return False
    found.sample_ms = clock_ms + max(
        SAMPLE_WELL_MS if found.accepted else SAMPLE_MS,
        (clock_ms - found.since_ms) // SAMPLE_PART,
        SAMPLE_APART_MS // max(1, found.refused),
    )
    return True


def rouse(record: ClientRecord, clock_ms: int) -> None:
    """Have whoever failed tried anew; what was met so far is no evidence of another incident."""
    record.rouse_ms = clock_ms
    for bucket in record.buckets:
        for name in FAILED:
            setattr(bucket, name, 0)


def release(record: ClientRecord, clock_ms: int) -> None:
    """
    End a quarantine because an operator says that the refusals are right.

    Each account is asked once more, and given up if it is refused.
    """
    record.quarantine = None
    record.released_ms = clock_ms
    rouse(record, clock_ms)
