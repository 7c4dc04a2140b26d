"""
Encodes and decodes the records of a journal.

A file begins with :data:`MAGIC`; a record is ``length 4 | CRC-32 4 | body`` (big-endian), the body
a msgpack array that begins with its kind.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

MAGIC = b"TWTJ1\n"
RECORD_BYTES_MAX = 1 << 24
_HEAD = struct.Struct(">II")


class JournalAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """
    Holds a refreshed pair that is to be stored.

    It is compared with ``grant`` and ``generation``, and written as ``row``.

    It is compared with ``grant`` and ``generation``, and written as ``row``.
    """

    number: int
    queue: str
    account: str
    """Name within the provider."""
    grant: int
    generation: int
    row: bytes
    """The new row, whole, its tokens sealed."""
    due_ms: int
    deadline_ms: int
    orphan: bool = False
    """
    It came while the store was away, without an intent: where its account has moved on it is
    dropped.
    """

    def __repr__(self) -> str:
        return (
            f"Answer({self.number}, {self.queue}, {self.account}, grant={self.grant},"
            f" generation={self.generation})"
        )


class RawAnswer(msgspec.Struct, frozen=True, array_like=True, tag="raw"):
    """
    Holds an answer that promised success and could not be read, sealed for an operator.

    It is kept sealed, for an operator to look at.
    """

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


class JournalKey(msgspec.Struct, frozen=True, array_like=True, tag="key"):
    """
    Holds a wrapped data key that later records are sealed under.

    The store may lose it in the same power cut.

    The store may lose it in the same power cut.
    """

    key_id: int
    wrapped: bytes


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """Says that the answer of that number is in the store, or its account deleted."""

    number: int


Record = JournalAnswer | RawAnswer | JournalKey | Stored


def frame(record: Record) -> bytes:
    """The bytes of a record in the file."""
    body = msgspec.msgpack.encode(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def read_records(raw: bytes) -> tuple[list[Record], int]:
    """The whole records of a file, and the position after the last of them."""
    records: list[Record] = []
    if not raw.startswith(MAGIC):
        return records, 0
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Record)
    at = len(MAGIC)
    while at + _HEAD.size <= len(raw):
        length, crc = _HEAD.unpack_from(raw, at)
        body = raw[at + _HEAD.size : at + _HEAD.size + length]
        if length > RECORD_BYTES_MAX or len(body) < length or zlib.crc32(body) != crc:
            break
        try:
            records.append(decoder.decode(body))
        except msgspec.DecodeError:
            # A whole record of a kind that is not ours: what follows cannot be trusted either.
            break
        at += _HEAD.size + length
    return records, at
