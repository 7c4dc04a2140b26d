"""
Passes payloads and results through JSON: text as it is, other bytes as base64.

A request has ``payload`` (text), ``payload_base64`` (bytes), or ``payload_json`` (any value, of
which the compact JSON is the payload). An answer has ``payload`` where the bytes are UTF-8, else
``payload_base64``. The fields of results are called likewise.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from tidewarden.errors import BadArg


def bytes_of(
    name: str,
    text: str | UnsetType,
    base64: bytes | UnsetType,
    json: msgspec.Raw | UnsetType,
) -> bytes | None:
    """
    Return the bytes that one of three fields gives; None: all three are absent.

    Raises: BadArg: there are two of them.
    """
    given = [
        f"{name}{suffix}"
        for suffix, value in (("", text), ("_base64", base64), ("_json", json))
        if value is not UNSET
    ]
    if len(given) > 1:
        raise BadArg(f"{' and '.join(given)} exclude each other: send one of them.")
    if text is not UNSET:
        return text.encode()
    if base64 is not UNSET:
        return base64
    if json is not UNSET:
        return msgspec.json.format(bytes(json), indent=-1)
    return None


def text_or_base64(data: bytes) -> tuple[str | UnsetType, bytes | UnsetType]:
    """Return bytes as text, or else for base64; the other of the two is absent."""
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, data


def readable(text: str) -> str:
    """Make text that was perhaps cut within a character fit for JSON."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
