"""
Keeps connections to servers that are not ours, and bounds what each may bring in or hold up.

aiohttp keeps every answer that comes until it is read, and passes over interim ones (``100
Continue``) however many there are: a server that sends them without end fills a node's memory. It
also has all names looked up in a few threads that the whole process shares: a few names whose
server is silent keep every other connection waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from .side_thread import in_side_thread

INTERIM_MAX = 8
"""Interim answers before the one that counts."""
INTERIM_BYTES_MAX = 65_536
"""Of the headers of those, together."""
UNREAD_MAX = 16
"""Answers that nobody has read yet; one at a time is asked for."""
SLICE_BYTES = 4096
"""What is parsed before the bounds are looked at: one that was passed costs no more."""
LOOKUPS_MAX = 4
"""Names that are looked up at a time for one connector: a name server that is silent takes 10 s."""


class Lookups(AbstractResolver):
    """Looks names up in a few threads of its own, so that it holds up nobody else's lookups."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(LOOKUPS_MAX)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of ``host``, once there is room. Raises: OSError: it has none."""
        loop = asyncio.get_running_loop()

        def look() -> list[Any]:
            try:
                return socket.getaddrinfo(
                    host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
                )
            finally:
                # Not when the caller gives up: the thread goes on until then.
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._room.release)

        await self._room.acquire()
        try:
            found = await in_side_thread(look, f"where {host} is")
        except RuntimeError as error:  # no thread could be started for it
            self._room.release()
            raise OSError(f"{host} is not looked up: {error}") from None
        return [
            ResolveResult(
                hostname=host,
                host=f"{address[0]}%{address[3]}" if address[3:] and address[3] else address[0],
                port=address[1],
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        """Leave what is under way to itself."""


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that end when their peer passes the bounds; else as aiohttp's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"resolver": Lookups(), **options})
        make: Any = functools.partial(BoundedHandler, loop=asyncio.get_running_loop())
        self._factory = make


def _slices(data: bytes) -> Iterator[bytes]:
    """
    Yield the pieces that are parsed at a time.

    The body is another piece than its head: an error in a piece loses the answers that begin in it.
    """
    body = data.find(b"\r\n\r\n") + 4
    for part in (data[:body], data[body:]) if 4 <= body < len(data) else (data,):
        for at in range(0, max(len(part), 1), SLICE_BYTES):
            yield part[at : at + SLICE_BYTES]


class BoundedHandler(ResponseHandler):
    """Parses the answers on one connection, and ends it when there are too many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0
        self._interim_bytes = 0
        self.broken = False
        """Whether a body ended because what came then is no HTTP."""

    def data_received(self, data: bytes) -> None:
        """Parse what came, a slice at a time while the bounds are kept."""
        for some in _slices(data):
            super().data_received(some)
            if self.exception() is not None:
                self._end_body()
                return

    def _end_body(self) -> None:
        """Let the reader of a body have what came before the parser's error."""
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            self.broken = True
            payload.feed_eof()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take an answer whose head is parsed."""
        if self.exception() is not None:
            return
        message = data[0]
        if 100 <= message.code < 200 and message.code != 101:
            self._interim += 1
            self._interim_bytes += sum(
                len(name) + len(value) for name, value in message.raw_headers
            )
        else:
            self._interim = self._interim_bytes = 0
        if (
            self._interim > INTERIM_MAX
            or self._interim_bytes > INTERIM_BYTES_MAX
            or len(self) >= UNREAD_MAX
        ):
            self.abort()  # which forgets an exception that was set before
            self.set_exception(aiohttp.ClientPayloadError("answers without end"))
            return
        super().feed_data(data, size)
