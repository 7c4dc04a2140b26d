"""
Payloads and results on their way through JSON: text as it is, other bytes as base64.

What is sent is ``payload`` (text), ``payload_base64`` (bytes), or ``payload_json`` (any value, of
which the compact JSON is the payload). What is answered is ``payload`` where the bytes are UTF-8,
else ``payload_base64``. Results likewise.
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
    The bytes that one of three fields gives; None: there is none of them.

    Raises: BadArg: there are two.
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
    """What is shown as text, or else as base64."""
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, data


def readable(text: str) -> str:
    """Text that was perhaps cut within a character, fit for JSON."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
