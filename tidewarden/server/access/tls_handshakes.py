"""
Makes the TLS handshakes of a door: bounded in time and number, and a failed one is logged.

A loop's own ``create_server(ssl=…)`` does neither: a peer that never begins its handshake counts
for no limit, and one that fails (plain bytes, TLS 1.1, a client that does not trust the
certificate) leaves nothing in the log.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, cast

import uvloop

from tidewarden.config.tls import HANDSHAKE_S, handshake_fault

from .peer import peer_of
from .protocol_mismatch import ProtocolMismatch

Make = Callable[[], asyncio.Protocol]


class TlsHandshakes:
    """
    Makes the TLS handshakes of one door.

    Args:
        context: how it encrypts.
        room: how many may be under way now; a further peer is hung up on.
        mismatches: counts those that failed.
    """

    def __init__(
        self, context: ssl.SSLContext, room: Callable[[], int], mismatches: ProtocolMismatch
    ) -> None:
        self.context = context
        self._room = room
        self.mismatches = mismatches
        self.under_way: set[asyncio.Future[None]] = set()

    def meet(self, make: Make) -> asyncio.BaseProtocol:
        """
        Return the protocol for a socket that was just accepted.

        The protocol that ``make`` makes comes when it is encrypted.
        """
        if len(self.under_way) >= self._room():
            return _OneTooMany(self)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        kind: Any = _QuickGreeting if isinstance(loop, uvloop.Loop) else _Greeting
        greeting = kind(
            loop,
            _Later(make),
            self.context,
            done,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        self.under_way.add(done)
        done.add_done_callback(functools.partial(self._ended, greeting))
        return cast(asyncio.BaseProtocol, greeting)

    def _ended(self, greeting: _Greeting, done: asyncio.Future[None]) -> None:
        self.under_way.discard(done)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, OSError) and (fault := handshake_fault(error, HANDSHAKE_S)):
            self.mismatches.met(greeting.peer, fault)


class _Later(asyncio.Protocol):
    """Holds the place of a protocol until there is an encrypted connection for it."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        inner = self._make()
        transport.set_protocol(inner)
        inner.connection_made(transport)


class _OneTooMany(asyncio.Protocol):
    def __init__(self, door: TlsHandshakes) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        many = len(self._door.under_way)
        self._door.mismatches.met(
            peer_of(transport), f"it is one too many: the handshakes of {many} are not over"
        )
        cast(asyncio.Transport, transport).abort()


class _Greeting(SSLProtocol):
    """Names the peer of the protocol that a loop's own ``ssl=`` makes."""

    peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = peer_of(transport)
        super().connection_made(transport)


class _QuickGreeting(uvloop.loop.SSLProtocol):  # type: ignore[misc, name-defined]  # its stub does not have it
    """Names the peer of the protocol that uvloop makes."""

    peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = peer_of(transport)
        super().connection_made(transport)
