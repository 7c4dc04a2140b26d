"""Decides holds, rates and quarantines of a client by what a node tells; none else does. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidewarden.config.error_classes import Kind

from . import hold, quarantine, rate
from .client_record import ClientRecord, Quarantine, Silence
from .evidence import Bucket, collect, judged, total

HEARD_MS = 180_000
"""A node whose trouble goes on tells of it again sooner; what is older is forgotten."""
GONE_MS = 7 * 86_400_000
"""
Of a node that was said to be without answers, and tells nothing any more, for so long: it is gone
for good.
"""


class ClientEvent(NamedTuple):
    """Holds an event of the provider: ``data`` as ``tokens/events/outbox.py`` reads it."""

    kind: str
    data: str = ""


@dataclass(frozen=True, slots=True)
class Assessment:
    """Says whose matter a failure is, as the answers to the client's other accounts show it."""

    shared: bool = False
    """
    Others that were well got the same answer, many more than usual: it is no matter of this
    account.
    """
    quarantined: bool = False
    """Refusals of the client's accounts have jumped: none counts, and nobody is given up."""
    sampled: bool = False
    """A quarantine goes on, and has those whom it is for asked one at a time."""
    clustered: bool = False
    """
    More accounts than usual are refused, but too few for a quarantine: it takes a day of refusals
    to give one of them up.
    """
    others: bool = False
    """Other accounts of the client are asked: where none of them was well, none shows anything."""
    judged_s: float = math.inf
    """For how long the answers came that the client is judged by, seconds: an hour, or longer."""
    well_ms: int = 0
    """
    When another account of the client was last refreshed well, unix milliseconds; 0: not known to
    have been.
    """
    released_ms: int = 0
    """
    When an operator looked at the refusals and said that they are true, unix milliseconds; 0:
    nobody did. The next one is enough to give an account up that has not been refreshed well since.
    """


ALONE = Assessment()
"""Nothing is known of any other account."""


@dataclass(slots=True)
class Told:
    """Holds what a node tells at a time. Times are milliseconds."""

    node: str = ""
    recent: Bucket = field(default_factory=Bucket)
    """Answers of the last moment, as counts."""
    older: Bucket = field(default_factory=Bucket)
    """Answers before that."""
    words: dict[Kind, tuple[str, str]] = field(default_factory=dict)
    """Class and brief of the last answer by kind."""
    goodput: float = 0.0
    """Answers a second but 429, of all nodes, as this one reckons."""
    wait_ms: int = 0
    """The shortest time that a 429 named; 0: none did."""
    error_wait_ms: int = 0
    """The longest time that an error of the provider's named."""
    in_a_row: dict[Kind, int] = field(default_factory=dict)
    """Witnesses that failed since this node's last good answer, by kind."""
    short: bool = False
    """The rate granted this node less than it asked for."""
    probe: bool | None = None
    """Whether a probe of this node's went well; None: there was none."""
    unclaim: bool = False
    """This node's probe was not sent."""
    silence: Silence | None = None
    """What this node meets with that is no account's."""
    silent: bool = False
    """Nobody answers it any more."""
    answered: bool = False
    """What it had told of is over."""


def fold(record: ClientRecord, told: Told, clock_ms: int) -> list[ClientEvent]:
    """Change a client's record by a node's report, and return the events that follow."""
    was_quarantined = record.quarantine is not None
    was_incident = bool(record.incident_ms)
    gone = collect(record.buckets, told.recent, told.older, clock_ms, record.opened_ms)
    quarantine.learn(record, gone, clock_ms)
    counted = total((told.recent, told.older))
    if counted.ok:
        record.well_ms, record.unproven = clock_ms, 0
        record.in_a_row.clear()
    elif not record.well_ms:
        record.unproven += counted.unproven
    if told.in_a_row and not record.in_a_row:
        record.row_ms = clock_ms
    for kind, failed in told.in_a_row.items():
        record.in_a_row[kind] = record.in_a_row.get(kind, 0) + failed
    if told.probe is not None:
        wait_ms = max(told.wait_ms, told.error_wait_ms)
        hold.probe_ended(record, well=told.probe, wait_ms=wait_ms, clock_ms=clock_ms)
    if told.unclaim:
        hold.unclaim(record, told.node, clock_ms)
    hold.judge(record, counted, told.recent, told.words, told.error_wait_ms, clock_ms)
    _, limited_brief = told.words.get("limited", ("", ""))
    rate.judge(
        record, told.recent, told.goodput, told.wait_ms, limited_brief, clock_ms, short=told.short
    )
    quarantine.judge(record, counted, told.words, clock_ms)
    events = _of_nodes(record, told, clock_ms)
    if record.incident_ms and not was_incident and record.hold is not None:
        events.append(ClientEvent("provider.breaker_open", said(record)))
    if hold.over(record, clock_ms):
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
        shared = hold.shared(record, kind, clock_ms, untold)
        shared = shared or (found is not None and found.kind == kind)
    elif kind == "silent":
        shared = silent
    else:
        shared = kind == "limited" and (record.rate is not None or record.rest_ms > clock_ms)
    seen, from_ms = judged(record.buckets, 0, clock_ms)
    return Assessment(
        shared=shared,
        quarantined=found is not None or record.hold is not None,
        sampled=found is not None and not found.ending_ms,
        clustered=quarantine.clustered(record, clock_ms),
        others=seen.proven + record.unproven > 1,
        judged_s=(clock_ms - from_ms) / 1000,
        well_ms=record.well_ms + lag_ms if record.well_ms else 0,
        released_ms=record.released_ms + lag_ms if record.released_ms else 0,
    )


def said(record: ClientRecord) -> str:
    """
    Return what holds a client back, in words.

    They are class, status and code, and how many met with it. Empty: nothing does.
    """
    held = record.hold
    if held is None:
        return ""
    share = f"({held.failed} of {held.asked} accounts that were well)"
    return f"{held.outcome} {held.brief} {share}".strip()


def set_quarantine(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
    """An operator says that nobody is to be given up until a release."""
    if record.quarantine is not None:
        record.quarantine.by_operator = True
        return []
    record.released_ms = 0
    record.quarantine = Quarantine(
        clock_ms, usual_share=quarantine.usual_share(record), by_operator=True
    )
    return [_begun(record.quarantine)]


def release(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
    """An operator ends whatever holds a client back: quarantine, hold, rest and rate."""
    events = []
    if record.quarantine is not None:
        quarantine.release(record, clock_ms)
        events.append(ClientEvent("provider.quarantine_over"))
    if record.hold is not None:
        hold.end(record, clock_ms)
    record.rest_ms, record.rests, record.rate = 0, 0, None
    return events


def ask_probe(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
    """An operator wants the next probe now."""
    if record.hold is not None:
        record.hold.until_ms = min(record.hold.until_ms, clock_ms)
        record.hold.claim, record.hold.claim_ms = "", 0
    record.rest_ms = min(record.rest_ms, clock_ms)
    return []


def _begun(found: Quarantine) -> ClientEvent:
    return ClientEvent("provider.quarantine_begun", str(round(found.refused_share * 1000)))


def _of_nodes(record: ClientRecord, told: Told, clock_ms: int) -> list[ClientEvent]:
    """Take in what the node meets with that is no account's, or that it is over."""
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
        for other in [name for name, one in silences.items() if not one.told]:
            del silences[other]
    for other in [
        name
        for name, one in silences.items()
        if clock_ms - one.last_ms > (GONE_MS if one.told else HEARD_MS)
    ]:
        del silences[other]
    return events
