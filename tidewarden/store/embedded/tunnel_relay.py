"""Passes bytes between two connections, until either of them ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

BUFFER_BYTES = 256 * 1024
"""The most bytes that are kept for a side that does not read; the other is not read meanwhile."""
LINGER_S = 5.0
"""How long a side may take to read its remaining bytes, once the other has ended."""
SILENT_S = 10
"""After so many seconds without an answer from the other host's kernel a connection is dead."""


class Relay:
    """
    Joins the connection that ``came`` with the one to where it is ``going``.

    TLS knows no half of a connection: when a side ends, what it has sent still goes to the other,
    which is then closed.

    ``heard``: is given each piece that comes back, until it returns True.
    """

    def __init__(self, heard: Callable[[bytes], bool] | None = None) -> None:
        self.came = End(self)
        self.going = End(self, heard)
        self.came.other, self.going.other = self.going, self.came
        self.ended = asyncio.Event()
        """Set once both sides are closed."""

    def close(self) -> None:
        """Close both sides at once."""
        for end in (self.came, self.going):
            end.lost = True
            if end.transport is not None:
                end.transport.abort()
        self.ended.set()


class End(asyncio.Protocol):
    """Serves one side of a relay."""

    other: End

    def __init__(self, relay: Relay, heard: Callable[[bytes], bool] | None = None) -> None:
        self._relay = relay
        self._heard = heard
        self._early: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(BUFFER_BYTES)
        mind_its_silence(self.transport.get_extra_info("socket"))
        if self.lost or self.other.lost:
            self.transport.abort()
        elif self.other.transport is None:
            self.transport.pause_reading()
        else:
            self.other.begin(self.transport)

    def begin(self, out: asyncio.Transport) -> None:
        """Join the other side, which gets the bytes that came meanwhile and all that come."""
        for data in self._early:
            out.write(data)
        self._early.clear()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        out = self.other.transport
        if self._heard is not None and self._heard(data):
            self._heard = None
        if out is None:
            self._early.append(data)  # a piece that was read before the reading was paused
        elif not out.is_closing():
            out.write(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if (source := self.other.transport) is not None and not source.is_closing():
            source.pause_reading()

    def resume_writing(self) -> None:
        if (source := self.other.transport) is not None and not source.is_closing():
            source.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        out = self.other.transport
        if self.other.lost or out is None:
            self._relay.ended.set()
            return
        out.close()
        asyncio.get_running_loop().call_later(LINGER_S, self.other.give_up)

    def give_up(self) -> None:
        """Close this side at once, unless it is closed already."""
        if not self.lost and self.transport is not None:
            self.transport.abort()


def mind_its_silence(connected: Any) -> None:
    """Have the kernel notice that the other host has gone without a word."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_S // 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", SILENT_S - SILENT_S // 2),
        ("TCP_USER_TIMEOUT", SILENT_S * 1000),
    ):
        with contextlib.suppress(OSError):  # lost already
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
