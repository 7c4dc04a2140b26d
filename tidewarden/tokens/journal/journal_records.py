"""
Encodes and decodes the records of a journal.

A file begins with :data:`MAGIC`; a record is ``length 4 | CRC-32 4 | body`` (big-endian), the body
a msgpack array that begins with its kind.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidewarden.tokens.vault.vault import Place

MAGIC = b"TWTJ1\n"
RECORD_BYTES_MAX = 1 << 24
_HEAD = struct.Struct(">II")
# What a record of any version begins with: a length up to the longest, and an array that begins
# with a short text. To try the CRC of everything else would take a damaged file for ever.
_BEGIN = re.compile(rb"(?=[\x00\x01][\x00-\xff]{7}[\x91-\x9f][\xa1-\xbf])")


class JournalAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """
    Holds a refreshed pair that is to be stored.

    It is compared with ``grant`` and ``generation``, and written as ``row``.
    """

    number: int
    queue: str
    account: str
    """The account's name within the provider."""
    grant: int
    generation: int
    row: bytes
    """The new row, whole, its tokens sealed."""
    due_ms: int
    deadline_ms: int
    orphan: bool = False
    """
    The answer came while the store was away, without an intent; it is dropped if its account has
    moved on.
    """

    def __repr__(self) -> str:
        return (
            f"Answer({self.number}, {self.queue}, {self.account}, grant={self.grant},"
            f" generation={self.generation})"
        )


class RawAnswer(msgspec.Struct, frozen=True, array_like=True, tag="raw"):
    """Holds an answer that promised success and could not be read, sealed for an operator."""

    number: int
    queue: str
    account: str
    grant: int
    generation: int
    unix_ms: int
    body: bytes

    def __repr__(self) -> str:
        return (
            f"Raw({self.number}, {self.queue}, {self.account}, grant={self.grant},"
            f" generation={self.generation})"
        )


class JournalConsent(msgspec.Struct, frozen=True, array_like=True, tag="consent"):
    """Holds what a provider gave for a consent, and that is to be put as an account's new grant."""

    number: int
    queue: str
    account: str
    before: int
    """The grant that the account had before; 0: there was no such account."""
    body: bytes
    """The fields of the put as JSON, sealed."""
    claim: tuple[str, str]
    """The state and the link that are used up with it."""
    floor: int = 0
    """The highest grant then of any account deleted from its shard: see ``AccountReading``."""

    def place(self, provider: str) -> Place:
        """Return what the fields of the put are sealed for."""
        return Place(provider, self.account, "consent", self.before, 0)

    def __repr__(self) -> str:
        return f"Consent({self.number}, {self.queue}, {self.account}, before={self.before})"


class JournalKey(msgspec.Struct, frozen=True, array_like=True, tag="key"):
    """
    Holds a wrapped data key that later records are sealed under.

    The store may lose it in the same power cut.
    """

    key_id: int
    wrapped: bytes


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """Says that the answer or consent of that number is in the store, or of no use any more."""

    number: int


Record = JournalAnswer | RawAnswer | JournalConsent | JournalKey | Stored


def frame(record: Record) -> bytes:
    """Return the bytes of a record in the file."""
    body = msgspec.msgpack.encode(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


@dataclass(slots=True)
class JournalReading:
    """Holds what was found in the bytes of a journal."""

    records: list[Record] = field(default_factory=list)
    foreign: list[bytes] = field(default_factory=list)
    """Whole records of kinds that this version does not know, as they are in the file."""
    damage: list[tuple[int, int]] = field(default_factory=list)
    """The parts without a whole record: begin and end, in bytes from the file's begin."""


def read_records(raw: bytes) -> JournalReading:
    """Read the whole records of a file; after damage it goes on with the next whole one."""
    found = JournalReading()
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Record)
    at = len(MAGIC) if raw.startswith(MAGIC) else 0
    while at < len(raw):
        end = _end_of_frame(raw, at)
        if not end:
            begin, at = at, _next_frame(raw, at + 1)
            found.damage.append((begin, at))
            continue
        try:
            found.records.append(decoder.decode(raw[at + _HEAD.size : end]))
        except msgspec.DecodeError:
            found.foreign.append(raw[at:end])
        at = end
    return found


def _end_of_frame(raw: bytes, at: int) -> int:
    """Return where the whole record that begins at ``at`` ends; 0: none begins there."""
    if at + _HEAD.size > len(raw):
        return 0
    length, crc = _HEAD.unpack_from(raw, at)
    end = at + _HEAD.size + length
    # Zeros are a record of no bytes, whose CRC is right.
    if not 0 < length <= RECORD_BYTES_MAX or end > len(raw):
        return 0
    return end if zlib.crc32(memoryview(raw)[at + _HEAD.size : end]) == crc else 0


def _next_frame(raw: bytes, at: int) -> int:
    """
    Return where the first whole record from ``at`` on begins; the end of ``raw`` if there is none.
    """
    begins = (found.start() for found in _BEGIN.finditer(raw, at))
    return next((begin for begin in begins if _end_of_frame(raw, begin)), len(raw))
