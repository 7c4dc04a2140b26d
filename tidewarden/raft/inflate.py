"""zlib as PySyncObj gets it: what a peer has compressed is not let out past a bound."""

from __future__ import annotations

import zlib

INFLATED_BYTES_MAX = 8 << 20
"""
Longest message of a peer. A frame of 1 MiB could hold a GiB; the library's own messages have some
64 KiB.
"""

compress = zlib.compress
error = zlib.error


def decompress(data: bytes) -> bytes:
    """
    What was compressed. Raises: zlib.error: it is none, cut short, or longer than
    :data:`INFLATED_BYTES_MAX`.
    """
    inflater = zlib.decompressobj()
    found = inflater.decompress(data, INFLATED_BYTES_MAX)
    if not inflater.eof:
        raise zlib.error(f"longer than {INFLATED_BYTES_MAX} bytes, or cut short")
    return found
