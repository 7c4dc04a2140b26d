"""
Decides by what a node tells whose matter a client's failures are: holds, rates, quarantines. Pure.

**In a quarantine** nobody is given up, for accounts that were well fail by more than a few. What is
judged is the share among the last hour's answers, or the last fifty of witnesses, against what is
usual for this client: a part of a provider, a few accounts and a slow fleet have their incidents,
too. "Usual" is learnt slowly, capped, and not while a quarantine lasts. One ends when some of those
that failed are well again and no more follow, or when an operator says so; never by time alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from tidewarden.config.error_classes import Kind

from . import throttle
from .answer_counts import (
    ANSWERS,
    FAILED,
    HOUR_MS,
    Bucket,
    Told,
    collect,
    judged,
    still_failing,
    total,
    within,
)
from .client_record import SAMPLE_WELL_MS, ClientEvent, ClientRecord, Quarantine

HEARD_MS = 180_000
"""A node reports trouble that goes on more often than that; older reports are forgotten."""
GONE_MS = 7 * 86_400_000
"""
A node that was reported to be without answers, and has told nothing for so long, is gone for good.
"""


SPARE, CLUSTER_SPARE = 2, 1
"""So many refused accounts are nothing unusual, however few are asked."""
SHARE_MIN = 0.03
TIMES = 5.0
SIGMAS, CLUSTER_SIGMAS = 4.0, 1.0
"""
Standard deviations (Poisson's) by which refusals must be above the usual: chance alone begins no
quarantine in years. From the second on they are a cluster: too few for a quarantine, and too many
to give them up before a day has passed.
"""
OTHERS_HANDFUL, OTHERS_SHARE_MIN = 6, 0.1
"""The same bounds for errors and for refusals of our client, which end no grant."""
SHORT_MS = 600_000
"""The shorter of the two times by which a client is judged."""
MENDED = 3
"""
If more accounts than that, and more of those that were asked again than not, are well again,
failures come by chance to any account. Their cure is the next try, which a quarantine puts off.
"""
UNPROVEN_HANDFUL = 6
"""Accounts that must be refused where none was ever refreshed well here."""
USUAL_MAX = 0.05
PRIOR = (1000.0, 1.0)
"""The answers and refusals that a new client is taken to have had."""
DAY_MS = 86_400_000
RELEASED_MS, RELEASED_LEAST_MS = DAY_MS, 600_000
"""The longest and shortest time of a release: later refusals are another matter."""
SAMPLE = 3
"""Accounts that had failed, and are well again, by which a quarantine begins to end …"""
SAMPLE_SHARE = 0.5
"""… if they are so many of those that were asked of late."""
SAMPLE_MAX = 5
ROUSED_MS, SAMPLE_SHARE_MIN = 60_000, 0.25
"""
Failed accounts have been tried anew within this time; if fewer of them than this share are well,
the incident has not ended.
"""
QUARANTINE_CALM_MS = HOUR_MS
"""
A quarantine is over when no other account has failed for so long; failures that recur within it are
one incident.
"""


@dataclass(frozen=True, slots=True)
class Assessment:
    """Says whose matter a failure is, as the answers to the client's other accounts show it."""

    shared: bool = False
    """
    Many more accounts than usual that were well got the same answer: it is no matter of this
    account.
    """
    quarantined: bool = False
    """Refusals of the client's accounts have jumped: none counts, and no account is given up."""
    told: bool = False
    """
    The client is held back, or an event has told of its trouble: no news that each account fails.
    """
    sampled: bool = False
    """A quarantine goes on, and has its accounts asked one at a time."""
    clustered: bool = False
    """
    More accounts than usual are refused, but too few for a quarantine: it takes a day of refusals
    to give one of them up.
    """
    others: bool = False
    """
    The client has other accounts that are asked; they show nothing if none of them was ever well.
    """
    judged_s: float = math.inf
    """Over how many seconds the answers came by which the client is judged: an hour, or longer."""
    well_ms: int = 0
    """
    When another account of the client was last refreshed well, unix milliseconds; 0: not known.
    """
    released_ms: int = 0
    """
    When an operator declared the refusals to be true, unix milliseconds; 0: none did. The next
    refusal is enough to give up an account that has not been refreshed well since.
    """


ALONE = Assessment()
"""No other account of the client is known."""


def fold(record: ClientRecord, told: Told, clock_ms: int) -> list[ClientEvent]:
    """Change a client's record by a node's report, and return the events that follow."""
    was_quarantined = record.quarantine is not None
    was_incident = bool(record.incident_ms)
    _learn(record, collect(record.buckets, told, clock_ms, record.opened_ms), clock_ms)
    counted = told.counted
    if counted.ok:
        record.well_ms, record.unproven = clock_ms, 0
    elif not record.well_ms:
        record.unproven += counted.unproven
    if counted.served:
        record.in_a_row.clear()
    if told.in_a_row and not record.in_a_row:
        record.row_ms = clock_ms
    for kind, failed in told.in_a_row.items():
        record.in_a_row[kind] = record.in_a_row.get(kind, 0) + failed
    throttle.probe_ended(record, told, clock_ms)
    throttle.judge_hold(record, told, clock_ms)
    throttle.judge_rate(record, told, clock_ms)
    _judge_quarantine(record, told, clock_ms)
    events = _of_nodes(record, told, clock_ms)
    if record.incident_ms and not was_incident and record.hold is not None:
        events.append(ClientEvent("provider.breaker_open", record.hold.said))
    if record.recovering and clock_ms - record.opened_ms >= throttle.CALM_MS:
        record.incident_ms = 0
        events.append(ClientEvent("provider.breaker_closed"))
    if record.quarantine is not None and not was_quarantined:
        events.append(_begun(record.quarantine))
    elif was_quarantined and record.quarantine is None:
        events.append(ClientEvent("provider.quarantine_over"))
    return events


def assess(
    record: ClientRecord, kind: Kind, untold: Bucket, clock_ms: int, lag_ms: int, *, silent: bool
) -> Assessment:
    """
    Return what is known of a client's other accounts when a refresh of one has failed by a kind.

    Args:
        untold: what this node has met with in the last moment and has not told yet.
        lag_ms: how far unix time is ahead of the leases' clock.
        silent: whether others of this node are without an answer, too.
    """
    found = record.quarantine
    if kind in ("erring", "client"):
        shared = any(one is not None and one.kind == kind for one in (record.hold, found))
        least = throttle.SHARED_LEAST
        shared = shared or throttle.share_of(record, kind, clock_ms, least, untold) is not None
    elif kind == "silent":
        shared = silent
    else:
        shared = kind == "limited" and (record.rate is not None or record.rest_ms > clock_ms)
    seen, from_ms = judged(record.buckets, 0, clock_ms)
    return Assessment(
        shared=shared,
        quarantined=found is not None or record.hold is not None,
        told=bool(
            found
            or record.incident_ms
            or (kind == "limited" and shared)
            or any(one.told for one in record.silences.values())
        ),
        sampled=found is not None and not found.ending_ms,
        clustered=clustered(record, clock_ms),
        others=seen.proven + record.unproven > 1,
        judged_s=(clock_ms - from_ms) / 1000,
        well_ms=record.well_ms + lag_ms if record.well_ms else 0,
        released_ms=record.released_ms + lag_ms if record.released_ms else 0,
    )


def set_quarantine(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
    """Begin an operator's quarantine: no account is given up until a release."""
    if record.quarantine is not None:
        record.quarantine.by_operator = True
        return []
    record.released_ms = 0
    record.quarantine = Quarantine(clock_ms, usual_share=usual_share(record), by_operator=True)
    return [_begun(record.quarantine)]


def release(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
    """
    End whatever holds a client back, as an operator asks: quarantine, hold, rest and rate.

    After a quarantine each account is asked once more, and given up if it is refused.
    """
    events = []
    if record.quarantine is not None:
        record.quarantine, record.released_ms = None, clock_ms
        _rouse(record, clock_ms)
        events.append(ClientEvent("provider.quarantine_over"))
    if record.hold is not None:
        throttle.end_hold(record, clock_ms)
    record.rest_ms, record.rests, record.rate = 0, 0, None
    return events


def ask_probe(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
    """Let the next probe go now, as an operator asks."""
    if record.hold is not None:
        record.hold.until_ms = min(record.hold.until_ms, clock_ms)
        record.hold.claim, record.hold.claim_ms = "", 0
    record.rest_ms = min(record.rest_ms, clock_ms)
    return []


def _begun(found: Quarantine) -> ClientEvent:
    return ClientEvent("provider.quarantine_begun", str(round(found.refused_share * 1000)))


def _of_nodes(record: ClientRecord, told: Told, clock_ms: int) -> list[ClientEvent]:
    """Note the trouble that a node meets with and that is no account's, or that it is over."""
    node, silences, events = told.node, record.silences, []
    if told.silence is not None:
        now, old = msgspec.structs.replace(told.silence), silences.get(node)
        if old is not None and clock_ms - old.last_ms < HEARD_MS:  # Of its last boot, perhaps.
            now.since_ms, now.told = min(now.since_ms, old.since_ms), old.told
        if told.silent and not now.told:
            now.told = True
            events.append(ClientEvent("provider.silent", f"{node} {now.outcome} {now.brief}"))
        silences[node] = now
    elif told.answered:
        was = silences.pop(node, None)
        if was is not None and was.told:
            events.append(ClientEvent("provider.answers", node))
        # One node is answered: others whose trouble goes on say so anew, and since when.
        silences = {name: one for name, one in silences.items() if one.told}
    record.silences = {
        name: one
        for name, one in silences.items()
        if clock_ms - one.last_ms <= (GONE_MS if one.told else HEARD_MS)
    }
    return events


# --- quarantines


def usual_share(record: ClientRecord) -> float:
    """Return the share of healthy accounts refused on a usual day, at most :data:`USUAL_MAX`."""
    answered = PRIOR[0] + record.usual_well + record.usual_refused
    return min(USUAL_MAX, (PRIOR[1] + record.usual_refused) / answered)


def _learn(record: ClientRecord, gone: list[Bucket], clock_ms: int) -> None:
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


def _called_for(record: ClientRecord, clock_ms: int) -> Quarantine | None:
    """
    Return the quarantine that the evidence calls for.

    That many accounts that were well fail then, and are not well again by themselves.
    """
    judged_by, from_ms = judged(record.buckets, record.opened_ms, clock_ms)
    times = [from_ms]
    # Where tokens live for less than an hour, whoever is well is answered several times in it.
    short_ms = max(record.opened_ms, clock_ms - SHORT_MS)
    if within(record.buckets, short_ms).proven >= ANSWERS:
        times.append(short_ms)
    for since_ms in times:
        if (begun := _called_for_since(record, judged_by, since_ms, clock_ms)) is not None:
            return begun
    if record.unproven >= UNPROVEN_HANDFUL:
        usual = usual_share(record)
        return Quarantine(clock_ms, record.unproven, 1.0, usual, kind="unproven")
    return None


def _called_for_since(
    record: ClientRecord, judged_by: Bucket, since_ms: int, clock_ms: int
) -> Quarantine | None:
    """Return the quarantine that the answers from then on call for."""
    usual, ok = usual_share(record), within(record.buckets, since_ms).ok
    of_client, erring = ["refused", "proven_client"], ["proven_erring"]
    # Else that is the hold's matter, in a moment.
    if throttle.share_of(record, "client", clock_ms, throttle.SHARED_LEAST) is not None:
        of_client = ["refused"]
    if throttle.share_of(record, "erring", clock_ms, throttle.SHARED_LEAST) is not None:
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
    """Return how many refusals chance may bring about if ``expected`` are usual."""
    return expected + sigmas * math.sqrt(expected) + 1e-9


def clustered(record: ClientRecord, clock_ms: int) -> bool:
    """
    Return whether more accounts than usual were refused lately, though too few for a quarantine.

    They may be part of the provider's trouble, so none of these refusals is taken for its account's
    own.
    """
    seen, from_ms = judged(record.buckets, record.opened_ms, clock_ms)
    refused = still_failing(record.buckets, from_ms, ["refused"], "accepted")
    expected = usual_share(record) * (refused + seen.ok)
    return refused > _unusual(expected, CLUSTER_SIGMAS) + CLUSTER_SPARE


def _judge_quarantine(record: ClientRecord, told: Told, clock_ms: int) -> None:
    """Begin or end a quarantine, by what a node tells, which is already in the record's buckets."""
    counted = told.counted
    found = record.quarantine
    if found is not None:
        _sample(record, found, counted, clock_ms)
        return
    if record.released_ms:
        if _release_over(record, clock_ms):
            record.released_ms = 0
        return
    failed = counted.refused + counted.unproven + counted.proven_client + counted.proven_erring
    if not failed or record.hold is not None:
        return
    if (begun := _called_for(record, clock_ms)) is not None:
        kind: Kind = "erring" if begun.kind == "erring" else "refused"
        said = told.words.get(kind) or told.words.get("client") or ("", "")
        begun.outcome, begun.brief = said
        record.quarantine = begun


def _release_over(record: ClientRecord, clock_ms: int) -> bool:
    """
    Return whether a release has done its work.

    It has when refusals are as usual, also among the accounts that were refused before it. Only
    answers since the release count, over the time by which clients are judged: the accounts that
    were refused have to be asked again first.
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
    # It was set when fewer had failed: among three each is asked once a minute.
    pause_ms = SAMPLE_WELL_MS if accepted else found.sample_pause_ms(clock_ms)
    found.sample_ms = min(found.sample_ms, clock_ms + pause_ms)
    if found.kind == "unproven" and record.well_ms:  # It is known now that some are well.
        record.quarantine = None
        _rouse(record, clock_ms)
    elif found.ending_ms:
        lasts_ms = clock_ms - found.ending_ms
        few = found.sampled >= SAMPLE_MAX and found.accepted < SAMPLE_SHARE_MIN * found.sampled
        if (_called_for(record, clock_ms) is not None and failed) or (lasts_ms < ROUSED_MS and few):
            # It goes on: told once, it is not told anew.
            found.ending_ms, found.accepted, found.sampled = 0, 0, 0
        elif lasts_ms >= QUARANTINE_CALM_MS and _called_for(record, clock_ms) is None:
            record.quarantine = None
            _rouse(record, clock_ms)  # Who was refused once more before it was over waits for long.
    elif _sample_is_well(found):
        found.ending_ms, found.accepted, found.sampled = clock_ms, 0, 0
        _rouse(record, clock_ms)
    elif found.sampled > SAMPLE_MAX:  # The last few count: it may have been over, and begun anew.
        found.accepted, found.sampled = found.accepted * SAMPLE_MAX / found.sampled, SAMPLE_MAX


def _sample_is_well(found: Quarantine) -> bool:
    """Return whether enough accounts that had failed are well again: of the last few, or of all."""
    if found.recovered and found.refused - found.recovered <= SPARE:
        return True
    return found.accepted >= SAMPLE and found.accepted >= SAMPLE_SHARE * found.sampled


def _rouse(record: ClientRecord, clock_ms: int) -> None:
    """Have failing accounts tried anew; what was met so far is no evidence of another incident."""
    record.rouse_ms = clock_ms
    for bucket in record.buckets:
        for name in FAILED:
            setattr(bucket, name, 0)
