"""
Whether the Raft files of a node can be trusted: a pure reading of their bytes.

PySyncObj takes an unreadable ``.meta`` for an absent one and so forgets its term and vote, and
reads a torn journal as whatever the bytes happen to say. A node that goes on like that may vote
twice in one term, so we look first.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

MAGIC = b"PYSYNCOBJ".ljust(24, b"\0")
FORMAT = 1
# name, version of the library, format, offset past the last record
HEADER = struct.Struct("<24s8sII")
SIZE = struct.Struct("<I")  # before and after each record
RECORD = struct.Struct("<QQ")  # index and term; the command follows


def last_term(data: bytes) -> int:
    """
    Read the term of the last entry of a journal file.

    Raises: ValueError: the file is none that can be trusted; the text says why.
    """
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes are less than its header")
    magic, _, form, end = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("it does not begin as a Raft journal does")
    if form != FORMAT:
        raise ValueError(f"its format is {form}, not {FORMAT}")
    if not HEADER.size <= end <= len(data):
        raise ValueError(f"its records end at byte {end} of {len(data)}")
    offset, index, term = HEADER.size, 0, 0
    while offset < end:
        body = offset + SIZE.size
        (size,) = SIZE.unpack_from(data, offset) if body <= end else (0,)
        after = body + size
        if (
            size < RECORD.size
            or after + SIZE.size > end
            or SIZE.unpack_from(data, after)[0] != size
        ):
            raise ValueError(f"its record at byte {offset} is torn")
        found_index, found_term = RECORD.unpack_from(data, body)
        if index and found_index != index + 1:
            raise ValueError(f"entry {found_index} follows entry {index} at byte {offset}")
        if found_term < term:
            raise ValueError(f"term {found_term} follows term {term} at byte {offset}")
        offset, index, term = after + SIZE.size, found_index, found_term
    return term


def check_meta(meta: object, journal_term: int) -> None:
    """
    Check a decoded ``.meta`` (``None``: there is none) against the journal's last term.

    Raises: ValueError: the node's term or vote is lost; the text says why.
    """
    if meta is None:
        if journal_term > 0:
            raise ValueError(f"it is missing, though the journal has reached term {journal_term}")
        return
    if not isinstance(meta, Mapping):
        raise ValueError(f"it holds no record but {type(meta).__name__}")
    term, vote, commit = (
        meta.get("currentTerm", 0),
        meta.get("votedForNodeId"),
        meta.get("raftCommitIndex", 1),
    )
    if not isinstance(term, int) or not isinstance(commit, int) or not isinstance(vote, str | None):
        raise ValueError("its term, vote or commit index is no such thing")
    if term < journal_term:
        raise ValueError(f"its term {term} is behind the journal's {journal_term}")
