"""Bounds the values of JSON that has no declared form: a megabyte of ``[],`` takes long."""

from __future__ import annotations

from tidewarden.errors import TooBig

SHORT_BYTES = 16_384
VALUES_MAX = 10_000


def has_many_values(document: bytes) -> bool:
    """Return whether the document may have more values than are read in one turn of the loop."""
    if len(document) <= SHORT_BYTES:
        return False
    return sum(map(document.count, (b",", b"[", b"{"))) > VALUES_MAX


def check_values(document: bytes) -> None:
    """Check the document. Raises: TooBig: it may have more values than are read."""
    if has_many_values(document):
        raise TooBig(f"A document may have {VALUES_MAX:,} values, lists, members and commas alike.")
