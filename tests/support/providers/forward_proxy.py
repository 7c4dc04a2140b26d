"""
A forward proxy (RFC 9110, 9.3.6): tunnels by CONNECT, and plain requests passed on; nothing of
pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from support.providers.raw_provider import listening


@dataclass
class ForwardProxy:
    """What it was asked, and what it answers."""

    port: int = 0
    wanted: str = ""
    """What Proxy-Authorization must say; empty: nothing is asked for."""
    refuses: bytes = b""
    """A status line with which every request is refused; empty: none is."""
    asked: list[str] = field(default_factory=list)
    """The first line of each request."""


@contextlib.asynccontextmanager
async def forward_proxy(wanted: str = "", refuses: bytes = b"") -> AsyncIterator[ForwardProxy]:
    """One on a free port."""
    proxy = ForwardProxy(wanted=wanted, refuses=refuses)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(proxy, reader, writer)

    async with listening(serve) as proxy.port:
        yield proxy


async def _serve(
    proxy: ForwardProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    proxy.asked.append(first)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    refusal = proxy.refuses
    if not refusal and proxy.wanted and headers.get("proxy-authorization") != proxy.wanted:
        refusal = b"HTTP/1.1 407 Proxy Authentication Required"
    if refusal:
        writer.write(refusal + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    method, target, version = first.split(" ")
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        there, out = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    else:
        url = urlsplit(target)
        there, out = await asyncio.open_connection(url.hostname, url.port or 80)
        own = [line for line in lines if not line.lower().startswith("proxy-")]
        out.write("\r\n".join([f"{method} {url.path} {version}", *own, "", ""]).encode())
    ways = (
        asyncio.create_task(_pass_on(reader, out)),
        asyncio.create_task(_pass_on(there, writer)),
    )
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        out.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65_536):
        writer.write(chunk)
        await writer.drain()
