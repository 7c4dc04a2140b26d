"""
Decides when all of a client's requests are held back, who may probe, and when they go on. Pure.

The circuit breaker of Nygard (Release It!, 2007), with two differences: it opens by the share of
*different healthy accounts* that fail alike, and what probes is an account that was well. See
``docs/decisions/0025-client-limits.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden.config.error_classes import Kind

from .client_record import ClientRecord, Hold
from .evidence import Bucket, within

WINDOWS_MS = (4_000, 30_000)
"""What is judged by: the last moment where much comes, longer where little does."""
SHARE = 0.8
ROW_MS = 600_000
"""Failures in a row that began longer ago say nothing of now."""
LEAST: dict[Kind, int] = {"client": 5, "erring": 10}
"""Witnesses that must have met the same."""
SHARED_LEAST = 3
"""Witnesses by which a failure is called shared, although nobody is held back for so few."""
FIRST_MS = 2_000
GROWTH = 1.5
PROBES = 3
"""Probes by different accounts that fail before the pause grows."""
MAX_MS = {"client": 3_000, "erring": 15_000}
LONG_MS = 900_000
"""After so long a client that is refused is asked more rarely: nobody is mending it just now."""
MAX_LONG_MS = {"client": 30_000, "erring": 15_000}
NAMED_MS = 60_000
"""
A time to wait that an answer names is believed to be meant for all so far, and twice as far after
each probe that fails.
"""
UNSENT_MS = 500
ROUSED_APART_MS = 300_000
CALM_MS = 15_000
"""An incident is over when nothing was held for so long."""


def share_of(
    record: ClientRecord, kind: str, clock_ms: int, least: int, untold: Bucket | None = None
) -> tuple[int, int] | None:
    """
    Return how many witnesses met that kind, and of how many.

    None unless they are at least that many, and nearly all.

    All of them are those of the last moment, or those since an account was refreshed well, where
    little comes.

    ``untold``: what a node has met with in the last moment and has not told yet.
    """
    in_a_row = record.in_a_row.get(kind, 0) if clock_ms - record.row_ms < ROW_MS else 0
    in_a_row += getattr(untold, kind) if untold is not None else 0
    if in_a_row >= least and not (untold is not None and untold.ok):
        return in_a_row, in_a_row
    for window_ms in WINDOWS_MS:
        seen = within(record.buckets, max(record.opened_ms, clock_ms - window_ms))
        if untold is not None:
            seen.add(untold)
        failed = getattr(seen, kind)
        asked = failed + seen.ok
        if failed >= least and failed >= SHARE * asked:
            return failed, asked
    return None


def shared(record: ClientRecord, kind: str, clock_ms: int, untold: Bucket | None = None) -> bool:
    """
    Tell whether a failure of that kind is not the fault of the account.

    The kind is ``client`` or ``erring``.
    """
    if record.hold is not None and record.hold.kind == kind:
        return True
    return share_of(record, kind, clock_ms, SHARED_LEAST, untold) is not None


def pause_ms(kind: str, probes: int, held_ms: int) -> int:
    """Milliseconds until the next probe, after so many failed and with the hold as old as that."""
    most = MAX_LONG_MS if held_ms > LONG_MS else MAX_MS
    longest = most.get(kind, most["erring"])  # Of another version, perhaps.
    return min(longest, int(FIRST_MS * GROWTH ** min(20, probes // PROBES)))


def judge(
    record: ClientRecord,
    told: Bucket,
    recent: Bucket,
    words: Mapping[Kind, tuple[str, str]],
    wait_ms: int,
    clock_ms: int,
) -> None:
    """
    Begin a hold where the evidence says so; end one that an answer has shown to be over.

    Args:
        told: what this node tells now, already in the record's buckets.
        recent: what of it came in the last moment: what went well before that may have come before
            the hold.
        words: class and brief of the last failure, by kind.
        wait_ms: the longest time that one of these answers asked to be left alone; 0: none did.
    """
    hold = record.hold
    if hold is not None:
        if recent.ok:
            end(record, clock_ms)
        return
    for kind, least in LEAST.items():
        found = share_of(record, kind, clock_ms, least) if getattr(told, kind) else None
        if found is not None:
            outcome, brief = words.get(kind, ("", ""))
            wait = max(min(wait_ms, NAMED_MS) if kind == "erring" else 0, pause_ms(kind, 0, 0))
            record.hold = Hold(kind, clock_ms, clock_ms + wait, 0, "", 0, outcome, brief, *found)
            record.incident_ms = record.incident_ms or clock_ms
            return


def claimable(hold: Hold, clock_ms: int) -> bool:
    """Whether the next probe may be claimed: it is time, and no node is at it."""
    return hold.until_ms <= clock_ms and not (hold.claim and hold.claim_ms > clock_ms)


def claim(record: ClientRecord, node: str, clock_ms: int, lasts_ms: int) -> bool:
    """Claim the next probe for a node; False: see :func:`claimable`."""
    hold = record.hold
    if hold is None or not claimable(hold, clock_ms):
        return False
    hold.claim, hold.claim_ms = node, clock_ms + lasts_ms
    return True


def unclaim(record: ClientRecord, node: str, clock_ms: int) -> None:
    """A node's probe was not sent: another may be made a moment later."""
    hold = record.hold
    if hold is not None and hold.claim == node:
        hold.claim, hold.claim_ms, hold.until_ms = "", 0, max(hold.until_ms, clock_ms + UNSENT_MS)


def probe_ended(record: ClientRecord, *, well: bool, wait_ms: int, clock_ms: int) -> None:
    """A probe has its answer. ``well``: not the kind that all are held for."""
    hold = record.hold
    if hold is None:
        return
    if well:
        end(record, clock_ms)
        return
    hold.probes += 1
    hold.claim, hold.claim_ms = "", 0
    wait_ms = min(wait_ms, NAMED_MS << min(hold.probes, 20))
    hold.until_ms = clock_ms + max(
        wait_ms, pause_ms(hold.kind, hold.probes, clock_ms - hold.since_ms)
    )


def end(record: ClientRecord, clock_ms: int) -> None:
    """
    End the hold: all go on.

    Accounts that failed meanwhile are tried again, but not each time where holds come and go.
    """
    if clock_ms - record.roused_ms >= ROUSED_APART_MS:
        record.rouse_ms = clock_ms
    record.hold = None
    record.in_a_row.clear()
    record.opened_ms = clock_ms


def over(record: ClientRecord, clock_ms: int) -> bool:
    """Whether an incident that was told of is over: nothing has been held for a while."""
    return (
        bool(record.incident_ms) and record.hold is None and clock_ms - record.opened_ms >= CALM_MS
    )
