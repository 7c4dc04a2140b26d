"""
Encodes and decodes the records of an account. ``tokens/lua/prelude.lua`` reads their heads.

A row holds the sealed pair and what is needed to find its next refresh; what refreshing it met with
lies apart, in its troubles, so that a note about a failure can never overwrite a pair. Row, version
1, big-endian::

    version 1 | flags 1 | grant 4 | generation 4 | stored_ms 6 | expires_at_ms 6 | due_ms 6
    | origin 8 | current 8 | length 1, token type | length 2, scope
    | length 4, sealed access token | sealed refresh token

``origin`` and ``current`` are fingerprints: of the refresh token that began the grant, and of the
one in the row. Flag 1: the pair came from a refresh of ours, not from the user who put the grant.

What else is known of an account (:class:`AccountDetails`) lies in a hash of its own, so that a node
of an earlier version, which knows nothing of it, neither misreads a row nor loses any of it. On its
way to the store, and in a journal, it goes before its row::

    254 | length 4, details | row
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tidewarden import errors
from tidewarden.tokens.provider.token_response import Scalar

ROW_VERSION = 1
FLAG_REFRESHED = 1
_HEAD = struct.Struct(">BBII6s6s6s8s8s")
_INTENT = struct.Struct(">II6s6s8sQ")
_DETAILS = struct.Struct(">BI6s")
DETAILS_VERSION = 1
_DETAILED = struct.Struct(">BI")
DETAILED = 254
"""First byte of a row with its details before it; no version of a row."""
_WITH_DETAILS = bytes([DETAILED])

ConsentEnd = Literal["unknown", "fixed", "moves"]
Spare = Literal["keep", "drop", "try"]


class AccountDetails(msgspec.Struct, array_like=True, frozen=True):
    """
    Holds what is known of an account beside its tokens. Fields are only ever added at the end.

    Stored as ``version 1 | grant 4 | told_ms 6``, which scripts read, and this in msgpack.
    """

    parameters: dict[str, str] = {}
    """The texts for the placeholders in the provider's settings, by name."""
    extras: dict[str, Scalar] = {}
    """The members of the provider's answers that are kept, by name; no secrets."""
    consent_expires_ms: int = 0
    """
    When the refresh token ends by itself, unix milliseconds, as it was at ``consent_noted_ms``; 0:
    not known.
    """
    consent_end: ConsentEnd = "unknown"
    """
    Whether ``consent_expires_ms`` moves with each refresh, as far as answers or settings tell.
    """
    consent_noted_ms: int = 0
    """When ``consent_expires_ms`` was noted last, unix milliseconds."""
    subject: str = ""
    """Who consented, as the provider's ID token named the person; empty: not known."""

    def __bool__(self) -> bool:
        return bool(self.parameters or self.extras or self.consent_expires_ms or self.subject)

    def pack(self, grant: int) -> bytes:
        """Return the stored form; empty when nothing is known."""
        if not self:
            return b""
        told_ms = self.consent_expires_ms if self.consent_end == "fixed" else 0
        return _DETAILS.pack(
            DETAILS_VERSION, grant, told_ms.to_bytes(6, "big")
        ) + msgspec.msgpack.encode(self)


NO_DETAILS = AccountDetails()


class AccountRow(msgspec.Struct, frozen=True):
    """Holds one account as it is stored, its tokens sealed."""

    grant: int
    generation: int
    stored_ms: int
    """When the pair was stored, unix milliseconds of the store's clock."""
    expires_at_ms: int
    """When the access token expires; 0: there is none yet."""
    due_ms: int
    origin: bytes
    current: bytes
    token_type: str = "Bearer"
    scope: str = ""
    access: bytes = b""
    """Sealed; empty when there is none yet."""
    refresh: bytes = b""
    refreshed: bool = False
    details: AccountDetails = NO_DETAILS
    """The account's details, which lie beside the row."""

    def __repr__(self) -> str:
        return f"AccountRow(grant={self.grant}, generation={self.generation}, due_ms={self.due_ms})"

    def pack_all(self) -> bytes:
        """
        Return the stored form with the details before it.

        They replace the stored details.
        """
        details = self.details.pack(self.grant)
        return _DETAILED.pack(DETAILED, len(details)) + details + self.pack()

    def pack(self) -> bytes:
        """Return the stored form, without the details."""
        kind, scope = self.token_type.encode(), self.scope.encode()
        return b"".join(
            (
                _HEAD.pack(
                    ROW_VERSION,
                    FLAG_REFRESHED if self.refreshed else 0,
                    self.grant,
                    self.generation,
                    self.stored_ms.to_bytes(6, "big"),
                    self.expires_at_ms.to_bytes(6, "big"),
                    self.due_ms.to_bytes(6, "big"),
                    self.origin,
                    self.current,
                ),
                struct.pack(">B", len(kind)),
                kind,
                struct.pack(">H", len(scope)),
                scope,
                struct.pack(">I", len(self.access)),
                self.access,
                self.refresh,
            )
        )


class RefreshTroubles(msgspec.Struct, array_like=True):
    """
    Holds the failures of an account since its last good refresh; there is none while all is well.
    """

    tries: int = 0
    """Refreshes without success that were the account's own matter; the backoff grows with it."""
    refusals: int = 0
    """
    Times the provider refused the refresh token in the row, of those that count towards giving it
    up.
    """
    doubts: int = 0
    """Requests of this generation whose outcome is unknown."""
    doubt_ms: int = 0
    """When the first request of unknown outcome began, unix milliseconds."""
    spare_refused: bool = False
    dead: bool = False
    outcome: str = ""
    """Class of the last failure (see :mod:`tidewarden.tokens.policy.failures`)."""
    message: str = ""
    first_ms: int = 0
    last_ms: int = 0
    next_ms: int = 0
    """When the account is tried next, unix milliseconds; 0: not by itself."""
    holder: str = ""
    """The node (``node.boot``) that wrote the open intent, while it is to be asked about it."""
    kept: str = ""
    """
    The node that keeps an answer which promised success and could not be read; empty: there was
    none.
    """
    confirmed_ms: int = 0
    """When a refusal was last counted among ``refusals``, unix milliseconds; 0: none was."""
    stopped: bool = False
    """The account is no longer asked for, after too long without success; its grant may live."""
    asked: tuple[tuple[int, str, str], ...] = ()
    """
    The last answers, the latest at the end: when (unix milliseconds), the class, what it said in
    brief.
    """
    refused_ms: int = 0
    """When the first of ``refusals`` was counted, unix milliseconds; 0: none was."""
    own_ms: int = 0
    """
    How long the account has failed by its own fault, milliseconds, without waits in a held queue.
    """
    clustered: bool = False
    """
    More accounts than usual were refused beside this one: it is given up after a day of refusals.
    """
    not_before_ms: int = 0
    """
    The provider named this time, before which it is not to be asked, unix milliseconds; 0: it named
    none.
    """
    told: bool = False
    """An event has told that the account fails."""

    @property
    def given_up(self) -> bool:
        """
        Return whether no refresh is tried any more by itself: the account is dead, lost or stopped.
        """
        return self.dead or self.stopped

    def pack(self) -> bytes:
        """Return the stored form."""
        return msgspec.msgpack.encode(self)


@dataclass(frozen=True, slots=True)
class Step:
    """Says what to write of an account after a failure."""

    what: Literal["retry", "hold", "dead", "lost", "stop"]
    """
    ``retry``: later, noted in its troubles. ``hold``: later, nothing noted: it is not the account's
    matter. ``dead``, ``lost``, ``stop``: not by itself any more; lost when its refresh token went
    with an answer that never came, stop when nobody knows that its grant has ended.
    """
    delay_s: float
    troubles: RefreshTroubles
    spare: Spare = "keep"
    """
    What becomes of a spare. ``try``: one that came meanwhile is tried at once, before the account
    is given up.
    """
    event: str = ""
    """The event to tell of the account; empty: none."""
    until_ms: int = 0
    """
    The account goes before all others until then, unix milliseconds, because its refresh token
    works so long; 0: it does not.
    """


@dataclass(frozen=True, slots=True)
class Intent:
    """Says that a node is about to refresh this account, or that it was when it died."""

    grant: int
    generation: int
    started_ms: int
    until_ms: int
    fingerprint: bytes = field(repr=False)
    lease: int
    holder: str


def parse_row(raw: bytes, details: bytes | None = None) -> AccountRow:
    """
    Parse a row from its stored form, or from the head alone.

    The row gets the account's ``details``, or those that stand before it. Raises Internal if the
    row cannot be read, as a newer version's.
    """
    if raw[:1] == _WITH_DETAILS and len(raw) > _DETAILED.size:
        at = _DETAILED.size + int(_DETAILED.unpack_from(raw)[1])
        raw, details = raw[at:], raw[_DETAILED.size : at]
    if len(raw) < _HEAD.size or raw[0] != ROW_VERSION:
        raise errors.Internal(
            f"an account's row has version {raw[:1].hex() or 'none'}; this program reads"
            f" {ROW_VERSION}"
        )
    _, flags, grant, generation, stored, expires, due, origin, current = _HEAD.unpack_from(raw)
    times = _number(stored), _number(expires), _number(due)
    refreshed = bool(flags & FLAG_REFRESHED)
    known = parse_details(details, grant) if details else NO_DETAILS
    if len(raw) == _HEAD.size:
        return AccountRow(
            grant, generation, *times, origin, current, refreshed=refreshed, details=known
        )
    at = _HEAD.size
    kind = raw[at + 1 : at + 1 + raw[at]]
    at += 1 + raw[at]
    length = _number(raw[at : at + 2])
    scope = raw[at + 2 : at + 2 + length]
    at += 2 + length
    length = _number(raw[at : at + 4])
    at += 4
    if at + length > len(raw):
        raise errors.Internal("an account's row is cut short")
    try:
        words = kind.decode(), scope.decode()
    except UnicodeDecodeError:
        raise errors.Internal(
            "an account's row holds a token's kind or scope that is no text"
        ) from None
    # Made whole at once: a copy with something replaced costs as much as all of this.
    sealed = raw[at : at + length], raw[at + length :]
    return AccountRow(grant, generation, *times, origin, current, *words, *sealed, refreshed, known)


def parse_details(raw: bytes, grant: int) -> AccountDetails:
    """
    Parse the stored form of an account's details.

    Of an earlier grant only the parameters count; unreadable details count as none: nothing is sent
    for an account that lacks a parameter, so that to lose them harms no grant.
    """
    if len(raw) < _DETAILS.size or raw[0] != DETAILS_VERSION:
        return NO_DETAILS
    try:
        found = msgspec.msgpack.decode(raw[_DETAILS.size :], type=AccountDetails)
    except msgspec.DecodeError:
        return NO_DETAILS
    return found if _DETAILS.unpack_from(raw)[1] == grant else AccountDetails(found.parameters)


def parse_troubles(raw: bytes | None) -> RefreshTroubles | None:
    """
    Parse the stored form of an account's troubles; None when there are none.

    Unreadable troubles become troubles of which nothing is known: the next refresh writes them
    anew.
    """
    try:
        return msgspec.msgpack.decode(raw, type=RefreshTroubles) if raw else None
    except msgspec.DecodeError:
        return RefreshTroubles(
            outcome="unreadable", message="what its refreshes met with cannot be read"
        )


def parse_intent(raw: bytes | None) -> Intent | None:
    """Parse the stored form of an intent; None when there is none."""
    if not raw:
        return None
    grant, generation, started, until, fingerprint, lease = _INTENT.unpack_from(raw)
    return Intent(
        grant,
        generation,
        _number(started),
        _number(until),
        fingerprint,
        lease,
        raw[_INTENT.size :].decode("utf-8", "replace"),
    )


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")
