"""
Copies everything in a store as of one moment.

The engine writes it as for a replica: no key is read one by one. The server forks, so requests go
on; the fork itself takes some milliseconds for each gigabyte.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, unquote, urlsplit

from tidewarden.errors import StoreDown

CHUNK = 1 << 20
MARK_BYTES = 40
SILENCE_S = 60.0
"""
The longest silence of a server that makes the copy; it sends an empty line every second or so.
"""


async def snapshot(url: str) -> AsyncIterator[bytes]:
    """
    Yield the bytes of an RDB file of the store at ``url``, piece by piece.

    The URL is ``unix://``, ``redis://`` or ``rediss://`` (with ``ssl_ca_certs``).

    Raises: StoreDown: it cannot be reached, refuses, or breaks off; what came until then is no
    copy.
    """
    try:
        reader, writer = await _connect(url)
        try:
            await _ask(reader, writer, "REPLCONF", "rdb-only", "1")
            await _ask(reader, writer, "REPLCONF", "capa", "eof")
            writer.write(_framed("SYNC"))
            async for piece in _payload(reader):
                yield piece
        finally:
            writer.close()
    except (OSError, EOFError, TimeoutError) as error:
        raise StoreDown(
            f"The store broke the copy off: {str(error) or type(error).__name__}."
        ) from None


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(unquote(parts.path), limit=CHUNK)
    else:
        authorities = parse_qs(parts.query).get("ssl_ca_certs", [None])[0]
        reader, writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or 6379,
            limit=CHUNK,
            ssl=(
                ssl.create_default_context(cafile=authorities) if parts.scheme == "rediss" else None
            ),
        )
    if parts.password:
        try:
            await _ask(
                reader,
                writer,
                "AUTH",
                *([unquote(parts.username)] if parts.username else []),
                unquote(parts.password),
            )
        except BaseException:
            writer.close()
            raise
    return reader, writer


def _framed(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *words: str) -> None:
    writer.write(_framed(*words))
    answer = await _line(reader)
    if not answer.startswith(b"+"):
        raise StoreDown(f"The store refuses {words[0]}: {answer[:200].decode('utf-8', 'replace')}")


async def _line(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(SILENCE_S):
        line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it closed the connection")
    return line.strip()


async def _payload(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    header = b""
    while not header:  # empty lines say that it is still at work
        header = await _line(reader)
    if header[:1] != b"$":
        raise StoreDown(f"The store gives no copy: {header[:200].decode('utf-8', 'replace')}")
    if header.startswith(b"$EOF:"):
        async for piece in _until(reader, header[5 : 5 + MARK_BYTES]):
            yield piece
        return
    left = int(header[1:])
    while left:
        piece = await _read(reader, min(left, CHUNK))
        left -= len(piece)
        yield piece


async def _until(reader: asyncio.StreamReader, mark: bytes) -> AsyncIterator[bytes]:
    """Yield everything before ``mark``, by which a server ends a payload of unknown length."""
    kept = b""
    while True:
        kept += await _read(reader, CHUNK)
        if kept.endswith(mark):
            yield kept[: -len(mark)]
            return
        if len(kept) > MARK_BYTES:
            yield kept[:-MARK_BYTES]
            kept = kept[-MARK_BYTES:]


async def _read(reader: asyncio.StreamReader, most: int) -> bytes:
    async with asyncio.timeout(SILENCE_S):
        piece = await reader.read(most)
    if not piece:
        raise EOFError("it closed the connection")
    return piece
