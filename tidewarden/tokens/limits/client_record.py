"""
Encodes the record of one client that all nodes share.

It is one record in the store, read and written whole (:mod:`.client_store`).

Times are milliseconds of the leases' clock unless a name says unix. Fields are only ever appended,
so that nodes of two versions read each other's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .evidence import Bucket

HoldKind = Literal["client", "erring"]


class Hold(msgspec.Struct, array_like=True):
    """Says that all of a client's requests wait but one that probes at a time."""

    kind: str = "erring"
    """See :data:`HoldKind`."""
    since_ms: int = 0
    until_ms: int = 0
    """Nothing is sent before it; from then on one request probes."""
    probes: int = 0
    """That failed."""
    claim: str = ""
    """The node that probes; empty: nobody does."""
    claim_ms: int = 0
    """Until when its claim lasts: should it die, another probes from then on."""
    outcome: str = ""
    brief: str = ""
    """What most were answered, status and code alone."""
    failed: int = 0
    """Witnesses that were answered so when it began …"""
    asked: int = 0
    """… of so many."""


class Quarantine(msgspec.Struct, array_like=True):
    """Says that nobody is given up: accounts that were well fail by more than a few."""

    since_ms: int = 0
    refused: int = 0
    """Accounts that were refused since it began, and in the time whose share began it."""
    refused_share: float = 0.0
    """Share of refusals that began it."""
    usual_share: float = 0.0
    outcome: str = ""
    brief: str = ""
    by_operator: bool = False
    accepted: float = 0.0
    """Of the sample: accounts that had failed and were well when asked again …"""
    sampled: float = 0.0
    """… of so many, of late: of more than five, their part of five."""
    kind: str = "refused"
    """
    What they fail by: ``refused``, ``erring``, or ``unproven``: refused, and none of the client's
    accounts was ever refreshed well here.
    """
    ending_ms: int = 0
    """
    Since when some that had failed are well again; it is over when no more follow for a while.
    """
    sample_ms: int = 0
    """When the next of them is asked."""
    recovered: int = 0
    """Accounts that had failed and are well again, of all since it began."""


class Rate(msgspec.Struct, array_like=True):
    """
    Holds the requests a second that the provider seems to bear, and where the next growth leads.
    """

    per_second: float = 0.0
    peak: float = 0.0
    """What it was answered when it last proved too much."""
    shrunk_ms: int = 0
    meter_ms: int = 0
    """Since when the next two are counted."""
    answered: int = 0
    limited: int = 0
    since_shrunk: int = 0
    """Answers since it shrank last."""
    short_ms: int = 0
    """When it granted less than was asked for last: while it does, it is not forgotten."""
    doubled_ms: int = 0
    """
    When it was doubled last, or something was answered 429: next to nothing was answered well when
    it shrank. 0: it grows as :func:`.rate.grow` says.
    """


class Silence(msgspec.Struct, array_like=True):
    """Says what one node meets with at the provider that is not one account's matter."""

    since_ms: int = 0
    last_ms: int = 0
    next_ms: int = 0
    """When it tries next; 0: as each account is due."""
    outcome: str = ""
    brief: str = ""
    told: bool = False
    """``provider.silent`` was told of it."""


class ClientRecord(msgspec.Struct, array_like=True):
    """Holds what all nodes know of one client at one provider."""

    buckets: list[Bucket] = msgspec.field(default_factory=list)
    well_ms: int = 0
    """When an account was refreshed well last."""
    hold: Hold | None = None
    opened_ms: int = 0
    """When the last hold ended: what was answered before says nothing of now."""
    incident_ms: int = 0
    """
    Since when ``provider.breaker_open`` is told and not ``provider.breaker_closed``; 0: it is not.
    """
    rest_ms: int = 0
    """Nothing is sent before it, for every answer named a time to wait; then all go on."""
    rest_brief: str = ""
    rate: Rate | None = None
    quarantine: Quarantine | None = None
    usual_well: float = 0.0
    """Answers of the last days that went well, old ones counting less and less …"""
    usual_refused: float = 0.0
    """… and refusals among witnesses."""
    usual_ms: int = 0
    released_ms: int = 0
    """When an operator ended a quarantine, until refusals are as usual again; 0: nobody did."""
    rouse_ms: int = 0
    """Since when all failing accounts are to be tried anew; 0: they are not, or it is done."""
    rouse_claim_ms: int = 0
    """Until when some node does it."""
    roused_ms: int = 0
    """When that was done last."""
    in_a_row: dict[str, int] = msgspec.field(default_factory=dict)
    """Witnesses that failed since an account was refreshed well, by kind …"""
    row_ms: int = 0
    """… and when the first of them did."""
    silences: dict[str, Silence] = msgspec.field(default_factory=dict)
    """By node."""
    rests: int = 0
    """Times in a row that all rested, and were told to again when it was over."""
    unproven: int = 0
    """Accounts that were refused while none was ever refreshed well here."""

    def pack(self) -> bytes:
        """The stored form."""
        return msgspec.msgpack.encode(self)


def parse_record(raw: bytes) -> ClientRecord:
    """
    The record of its stored form.

    One that cannot be read is as good as none: evidence comes anew with each answer.
    """
    return read_record(raw) or ClientRecord()


def read_record(raw: bytes) -> ClientRecord | None:
    """The record of its stored form; None: it cannot be read."""
    if not raw:
        return ClientRecord()
    try:
        return msgspec.msgpack.decode(raw, type=ClientRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
