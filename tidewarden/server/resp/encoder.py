"""
Encodes replies as bytes, in RESP2 and RESP3.

The two differ here in maps (RESP2: a flat array), nulls, booleans and floating-point numbers
(RESP2: a byte string).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any

from tidewarden.clock import in_turns
from tidewarden.errors import Error

OK = b"+OK\r\n"
QUEUED = b"+QUEUED\r\n"
PONG = b"+PONG\r\n"
EMPTY = b"*0\r\n"
MESSAGE_CHARS_MAX = 600
LONG = 100  # parts of an answer that are encoded in turns


def bulk(text: str) -> bytes:
    """Encode ``text`` as a byte string."""
    data = text.encode("utf-8", "surrogateescape")
    return b"$%d\r\n%b\r\n" % (len(data), data)


def integer(number: int) -> bytes:
    """Encode an integer."""
    return b":%d\r\n" % number


def push(parts: Sequence[str]) -> bytes:
    """Encode a message that is no reply (RESP3)."""
    return b">%d\r\n%b" % (len(parts), b"".join(map(bulk, parts)))


def failure(error: Error) -> bytes:
    """Encode ``error`` as a line: its code and its message."""
    return error_line(error.code, str(error))


def error_line(code: str, message: str) -> bytes:
    """Encode ``-CODE message``; line ends inside the message become blanks."""
    line = " ".join(f"{code} {message}".split())
    return b"-%b\r\n" % line[:MESSAGE_CHARS_MAX].encode("utf-8", "backslashreplace")


def word_of(failure: bytes) -> str:
    """Return the word that a reply of an error begins with."""
    return failure[1:40].split(None, 1)[0].decode("ascii", "replace")


def encode(value: object, resp: int) -> bytes:
    """
    Encode any value a verb answers with: text, bytes, numbers, None, lists, mappings.

    Args:
        value: what to send.
        resp: 2 or 3.
    """
    out: list[bytes] = []
    _append(out, value, resp)
    return b"".join(out)


async def encode_in_turns(value: object, resp: int) -> bytes:
    """Encode as :func:`encode` does, but let others have their turns: the value may be long."""
    out: list[bytes] = []
    await _append_in_turns(out, value, resp)
    return b"".join(out)


async def encode_map(items: AsyncIterable[tuple[str, object]], resp: int) -> bytes:
    """Encode a map, each of whose items is forgotten before the next one comes."""
    parts = [b""]
    async for key, value in items:
        parts.append(bulk(key) + encode(value, resp))
    count = len(parts) - 1
    parts[0] = b"%%%d\r\n" % count if resp == 3 else b"*%d\r\n" % (2 * count)
    return b"".join(parts)


async def encode_list(items: AsyncIterable[object], resp: int) -> bytes:
    """Encode a list whose items come one after the other."""
    parts = [b"", *[encode(item, resp) async for item in items]]
    parts[0] = b"*%d\r\n" % (len(parts) - 1)
    return b"".join(parts)


def encoded(reply: bytes, resp: int) -> bytes:
    """Return a reply that is encoded already."""
    return reply


async def _append_in_turns(out: list[bytes], value: Any, resp: int) -> None:
    if isinstance(value, Mapping):
        parts: list[Any] = [part for item in value.items() for part in item]
        out.append(b"%%%d\r\n" % len(value) if resp == 3 else b"*%d\r\n" % len(parts))
    elif isinstance(value, list | tuple):
        parts = list(value)
        out.append(b"*%d\r\n" % len(parts))
    else:
        _append(out, value, resp)
        return
    long = len(parts) > LONG
    async for part in in_turns(parts, 1):  # each may be a payload of mebibytes
        if isinstance(part, Mapping | list | tuple) and (len(part) > LONG or not long):
            await _append_in_turns(out, part, resp)
        else:
            out.append(encode(part, resp))


def _append(out: list[bytes], value: Any, resp: int) -> None:
    if isinstance(value, str):
        out.append(bulk(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        out.append(b"$%d\r\n%b\r\n" % (len(value), bytes(value)))
    elif isinstance(value, bool):
        out.append((b"#t\r\n" if value else b"#f\r\n") if resp == 3 else b":%d\r\n" % value)
    elif isinstance(value, int):
        out.append(b":%d\r\n" % value)
    elif value is None:
        out.append(b"_\r\n" if resp == 3 else b"$-1\r\n")
    elif isinstance(value, float):
        out.append(b",%b\r\n" % repr(value).encode() if resp == 3 else bulk(repr(value)))
    elif isinstance(value, Mapping):
        out.append(b"%%%d\r\n" % len(value) if resp == 3 else b"*%d\r\n" % (2 * len(value)))
        for key, item in value.items():
            _append(out, key, resp)
            _append(out, item, resp)
    elif isinstance(value, Iterable):
        items = list(value)
        out.append(b"*%d\r\n" % len(items))
        for item in items:
            _append(out, item, resp)
    else:
        raise TypeError(f"no reply for a {type(value).__name__}")
