"""
Keeps connections to servers that are not ours, and bounds what each may bring in unasked.

aiohttp keeps every answer that comes until it is read, and passes over interim ones (``100
Continue``) however many there are: a server that sends them without end fills a node's memory.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

INTERIM_MAX = 8
"""Interim answers before the one that counts."""
INTERIM_BYTES_MAX = 65_536
"""Of the headers of those, together."""
UNREAD_MAX = 16
"""Answers that nobody has read yet; one at a time is asked for."""
SLICE_BYTES = 4096
"""What is parsed before the bounds are looked at: one that was passed costs no more."""


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that end when their peer passes the bounds; else as aiohttp's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        make: Any = functools.partial(BoundedHandler, loop=asyncio.get_running_loop())
        self._factory = make


def _slices(data: bytes) -> Iterator[bytes]:
    """
    Yield the pieces that are parsed at a time.

    The body is another piece than its head: an error in a piece loses the answers that begin in it.
    """
    body = data.find(b"\r\n\r\n") + 4
    for part in (data[:body], data[body:]) if body >= 4 and data[body:] else (data,):
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
