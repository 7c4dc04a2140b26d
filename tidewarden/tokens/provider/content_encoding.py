"""
Undoes the Content-Encoding of a body, as far as it can be undone. Pure.

``identity`` is asked for, but proxies pack bodies, unpack them and leave the header, or name a
coding that nobody knows. The body may hold the only refresh token there is.
"""

from __future__ import annotations

import bisect
import re
import zlib

CODINGS_MAX = 2
"""The most codings one upon the other that are undone; each may cost some milliseconds."""
_WINDOWS = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}
"""
The number by which zlib knows each coding; some send ``deflate`` without its header (RFC 9110,
8.4.1.2).
"""
_NAMES = re.compile(r"[a-z0-9-]{1,16}(, ?[a-z0-9-]{1,16})?")


def decoded(raw: bytes, codings: str, bytes_max: int) -> tuple[bytes, str]:
    """
    Undo what a Content-Encoding header names; of the result at most ``bytes_max`` are made.

    Returns the body, and why it is not known to be whole; empty: it is. A text, and what no coding
    fits, comes back as it is.
    """
    names = [name for part in codings.lower().split(",") if (name := part.strip()) != "identity"]
    if not any(names) or _is_text(raw):
        return raw, ""
    shown = codings.lower() if _NAMES.fullmatch(codings.lower()) else "no known one"
    fault = f"its Content-Encoding ({shown}) cannot be undone"
    if len(names) > CODINGS_MAX:
        return raw, fault
    body = raw
    for name in reversed(names):
        found, whole = _undone(body, name, bytes_max)
        if len(found) > bytes_max:
            return found[:bytes_max], f"its body has more than {bytes_max} bytes"
        if not whole:
            return found or body, fault
        body = found
    return body, ""


def _is_text(raw: bytes) -> bool:
    """Return whether the body was never encoded: no coding makes UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _undone(raw: bytes, coding: str, bytes_max: int) -> tuple[bytes, bool]:
    """
    Decode ``raw`` up to one byte past ``bytes_max``; returns the bytes and whether they are all.
    """
    for window in _WINDOWS.get(coding, ()):
        engine = zlib.decompressobj(window)
        try:
            found = engine.decompress(raw, bytes_max + 1)
            return found, engine.eof and not engine.unused_data
        except zlib.error:
            good = _good_bytes(raw, window, bytes_max)
            if found := zlib.decompressobj(window).decompress(raw[:good], bytes_max + 1):
                return found, False
    return b"", False


def _good_bytes(raw: bytes, window: int, bytes_max: int) -> int:
    """Return how many bytes of ``raw`` come before the first that cannot be decoded."""

    def fails(count: int) -> bool:
        try:
            zlib.decompressobj(window).decompress(raw[:count], bytes_max + 1)
        except zlib.error:
            return True
        return False

    return bisect.bisect_left(range(len(raw) + 1), True, key=fails) - 1
