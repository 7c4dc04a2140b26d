"""Listens on the HTTP port, with limits of connections and of the time to read and write."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tidewarden.config.addresses import listened
from tidewarden.errors import BadArg, Error, Full, TooBig
from tidewarden.server.access.admission import AdmissionControl, UnauthenticatedPeer
from tidewarden.server.access.listening import Listener
from tidewarden.server.access.peer import peer_of
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.tls_handshakes import TlsHandshakes
from tidewarden.user_limits import SharedLimit, UserLimits

from .responses import problem

BACKLOG = 1024
# Longest time between two requests, and for the head of each, the first too: a peer that drips its
# bytes holds a place no longer.
IDLE_S = 15.0
REFUSED_MAX = 100  # peers that are told that there is no room, where that takes a handshake
REFUSED_S = 1.0  # how long such a peer may take to read it
UNAUTHENTICATED_BYTES = 16_384  # longest head of a request of a peer that has not been let in
HEAD_TOO_BIG = "431 Request Header Fields Too Large"
BODY_BUFFER_BYTES = 16_384  # bytes of a body that no handler reads yet; twice as many are taken in
BODY_READ_S = 0.000_2  # what an unauthenticated peer pays for a piece of a body: it wakes a reader
REQUEST_S = 0.000_3  # what it pays for a request beside its parsing
ALWAYS = frozenset(("/health/live", "/health/ready", "/leader", "/metrics"))
"""The paths that are answered however many connections there are."""
BEYOND_MAX = 32
"""The number of connections above the limit, whose requests are answered if for :data:`ALWAYS`."""
BEYOND_S = 5.0
"""How long such a connection may take to send its request."""
SPARE_PART = 10  # once fewer than a tenth of the places is free, connections end with an answer
STALL_S = 60.0  # how long a peer may read nothing of an answer that is longer than the buffers


def not_rubbish(record: logging.LogRecord) -> bool:
    """
    Filter log records that are no error of ours.

    Such a record is of a peer's garbage, which is answered 400, or of a peer that goes while the
    rest of an unwanted body is awaited.
    """
    error = record.exc_info[1] if record.exc_info else None
    gone = isinstance(error, RuntimeError) and error.args == ("Connection closed.",)
    return not (gone or isinstance(error, HttpProcessingError | web.RequestPayloadError))


logging.getLogger("aiohttp.server").addFilter(not_rubbish)


class HttpListener:
    """
    Listens for one application.

    Past ``limits.http_connections`` a few more connections are let in for one request each, which
    is answered if it is for health or metrics, else FULL; a further one is told so and hung up on.
    Where few places are left the listener is :attr:`crowded`.

    ``admission`` bounds unauthenticated peers; every new peer is one unless ``open_to_all``.

    aiohttp by itself takes in no line of a head that is longer than ``line_bytes``, and only a few
    pipelined requests.
    """

    def __init__(
        self,
        app: web.Application,
        limits: UserLimits,
        line_bytes: int,
        mismatches: ProtocolMismatch,
        admission: AdmissionControl,
        open_to_all: Callable[[], bool],
    ) -> None:
        self._limits = limits
        self._beyond: dict[HttpPeer, None] = {}  # those above the limit, the oldest first
        self._admission = admission
        self._mismatches = mismatches
        self._options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": IDLE_S,
            "max_line_size": line_bytes,
            "max_field_size": line_bytes,
            "read_bufsize": BODY_BUFFER_BYTES,
            # a body would be unpacked before it is known whose it is and what it may cost
            "auto_decompress": False,
        }
        # A handler is cancelled when its client has gone: it waits for a token in vain.
        self._runner = web.AppRunner(app, handler_cancellation=True, **self._options)
        self._listener = Listener(admission, self._meet, BACKLOG, open_to_all)
        self._tls: TlsHandshakes | None = None
        self.connections_total = 0
        self.refused_total = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        await self._runner.setup()
        if tls is not None:
            self._tls = TlsHandshakes(tls, self._handshakes_max, self._mismatches)
        await self._listener.start(listened(host), port)

    def _handshakes_max(self) -> int:
        return self._connections_max + BEYOND_MAX + REFUSED_MAX - self.stats()["connections"]

    def _meet(self, unauthenticated: UnauthenticatedPeer | None) -> asyncio.BaseProtocol:
        return (
            self._admit(unauthenticated)
            if self._tls is None
            else self._tls.meet(lambda: self._admit(unauthenticated))
        )

    def _admit(self, unauthenticated: UnauthenticatedPeer | None) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        beyond = not self._has_room() and self._admission.evict(self._listener) > 0
        if beyond and len(self._beyond) >= BEYOND_MAX and not self._evict_beyond():
            self.refused_total += 1
            return _Refusal(self.full())
        self.connections_total += 1
        peer = HttpPeer(
            self._mismatches,
            unauthenticated,
            self._limits.http_connections,
            self._beyond,
            server,
            loop=asyncio.get_running_loop(),
            **self._options,
        )
        if beyond:
            self._beyond[peer] = None
        return peer

    @property
    def _connections_max(self) -> int:
        return self._limits.http_connections.whole

    def _has_room(self) -> bool:
        server = self._runner.server
        assert server is not None
        return len(server.connections) - len(self._beyond) < self._connections_max

    def _evict_beyond(self) -> bool:
        """Close the oldest idle peer above the limit; returns whether there was one."""
        for peer in self._beyond:
            if not peer.is_busy:
                peer.force_close()
                del self._beyond[peer]
                return True
        return False

    def full(self) -> Full:
        """Return the error for a connection too many."""
        return Full(
            f"This node has {self._connections_max:,} HTTP connections, as many as it may"
            " (limits.http_connections_max). Try again soon, or another node."
        )

    def admit(self, request: web.BaseRequest) -> None:
        """Let a request in, before it is known who asks. Raises: Full: there is no place for it."""
        peer = request.protocol
        if request.path in ALWAYS or not isinstance(peer, HttpPeer) or peer not in self._beyond:
            return
        if not self._has_room():
            self.refused_total += 1
            raise self.full()
        del self._beyond[peer]

    def belong(self, request: web.BaseRequest, user: str) -> None:
        """Count the request's connection as this user's. Raises: Full: the user has too many."""
        peer = request.protocol
        if request.path not in ALWAYS and isinstance(peer, HttpPeer):
            peer.belong(user)

    def is_last(self, request: web.BaseRequest) -> bool:
        """Return whether a connection is closed after this request, so that others find a place."""
        peer = request.protocol
        beyond = isinstance(peer, HttpPeer) and (peer.is_refused or peer in self._beyond)
        return beyond or self.crowded

    @property
    def port(self) -> int:
        """Return the TCP port that it listens on."""
        return self._listener.port

    async def stop(self, grace_s: float) -> None:
        """Take no new connection; answer requests under way for at most ``grace_s`` seconds."""
        self._listener.close()
        self._runner._shutdown_timeout = grace_s  # noqa: SLF001  no public name sets it after the start
        await self._runner.cleanup()

    @property
    def crowded(self) -> bool:
        """Return whether a peer that has its answer should go, so that others find a place."""
        server, most = self._runner.server, self._connections_max
        return server is not None and len(server.connections) > most - most // SPARE_PART

    def stats(self) -> dict[str, int]:
        """Return numbers for /metrics."""
        server = self._runner.server
        return {
            "connections": 0 if server is None else len(server.connections),
            "connections_total": self.connections_total,
            "refused_total": self.refused_total,
            "strangers_refused_total": self._mismatches.total,
        }


class HttpPeer(web.RequestHandler):
    """
    Serves one peer of the HTTP door.

    aiohttp waits for ever for a peer that reads nothing of its answer and so keeps its place; this
    class hangs up. From a peer that has not been let in it reads as much as the peer's budget
    allows, and no long head.
    """

    __slots__ = (
        "_ahead",
        "_answered",
        "_beyond",
        "_limit",
        "_mismatches",
        "_stall",
        "_unauthenticated",
        "_user",
        "is_refused",
    )

    def __init__(
        self,
        mismatches: ProtocolMismatch,
        unauthenticated: UnauthenticatedPeer | None,
        limit: SharedLimit,
        beyond: dict[HttpPeer, None],
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._limit = limit
        self._beyond = beyond
        self.is_refused = False  # its user has too many connections
        self._user = ""  # the user whose connection this is counted as (limits.user_share)
        self._mismatches = mismatches
        self._unauthenticated = unauthenticated  # until it is let in
        self._ahead = 0  # bytes read since a whole request was, while unauthenticated
        self._answered = 0  # of the requests whose heads were read
        self._stall: asyncio.TimerHandle | None = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        # aiohttp's own answer would quote what was sent, the Authorization header too.
        fault = fault_of(exc)
        self._mismatches.met(peer_of(self.transport), fault)
        error = BadArg(f"This is the HTTP door of a node; the connection is closed: {fault}.")
        answer = problem(error, headers={"Server": "tidewarden"})
        answer.force_close()
        return answer

    @property
    def is_busy(self) -> bool:
        """Return whether a request of the peer waits for its turn, or is being answered."""
        return self._request_count > self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self._beyond:
            self._loop.call_later(BEYOND_S, self._close_beyond)

    def _close_beyond(self) -> None:
        if self in self._beyond and not self.is_busy:
            self.force_close()

    def belong(self, user: str) -> None:
        """Count the connection as this user's; empty: as no user's. Raises: Full."""
        self.is_refused = False
        if user == self._user:
            return
        if user:
            self.is_refused = True
            self._limit.take(user)
            self.is_refused = False
        if self._user:
            self._limit.give_back(self._user)
        self._user = user

    def authenticated(self) -> None:
        """Note that a request of the peer proved to be a user's."""
        unauthenticated, self._unauthenticated = self._unauthenticated, None
        if unauthenticated is not None:
            unauthenticated.authenticated()
            if self._reading_paused or self._buffer_paused:
                self._pause_transport_reading()

    def data_received(self, data: bytes) -> None:
        unauthenticated = self._unauthenticated
        if unauthenticated is None:
            super().data_received(data)
            return
        before = self._request_count
        if data:
            super().data_received(data)
        else:  # aiohttp goes on with what it had put aside, in a turn that is not paid for yet
            unauthenticated.run(super().data_received, data)
        if found := self._request_count - before:
            unauthenticated.charge(found * REQUEST_S)
            self._ahead = 0
            return
        if self.is_busy:
            unauthenticated.charge(
                BODY_READ_S
            )  # it may be of a body, of which aiohttp keeps little
            return
        self._ahead += len(data)
        if self._ahead > UNAUTHENTICATED_BYTES and self.transport is not None:
            long = f"the head of its request is longer than {UNAUTHENTICATED_BYTES} bytes"
            self._mismatches.met(peer_of(self.transport), long)
            if not self._request_count:  # else it may be of a body that was refused
                refusal = TooBig(
                    f"The head of a request may have {UNAUTHENTICATED_BYTES} bytes until its sender"
                    " is known to be a user; the connection is closed."
                )
                cast(asyncio.WriteTransport, self.transport).write(refused(refusal, HEAD_TOO_BIG))
            self.force_close()  # once that is written

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self._unauthenticated is not None and self._upgraded and not self._messages:
            # aiohttp has kept what stands behind an upgrade and would read it here, where the peer
            # does not pay for it.
            self._message_tail = b""
            resp.force_close()
            self.close()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1

    def _pause_transport_reading(self) -> None:
        if self._unauthenticated is None:
            super()._pause_transport_reading()
        else:
            self._unauthenticated.pause_reading()

    def _resume_transport_reading(self) -> None:
        if self._unauthenticated is None:
            super()._resume_transport_reading()
        else:
            self._unauthenticated.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._watch_no_more()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unauthenticated = None
        self._beyond.pop(self, None)
        self.belong("")
        self._watch_no_more()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.transport is not None:
            unread = self.transport.get_write_buffer_size()
            self._stall = self._loop.call_later(STALL_S, self._look, unread)

    def _look(self, unread_before: int) -> None:
        if self.transport is not None and self.transport.get_write_buffer_size() >= unread_before:
            self.transport.abort()
        else:
            self._watch()

    def _watch_no_more(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def fault_of(error: HttpProcessingError) -> str:
    """
    Word what came instead of a request.

    None of it is quoted, because it may have held a secret.
    """
    if "HTTPS traffic" in error.message:
        return "it speaks TLS, which is not set up (node.tls_cert)"
    return f"what it sent is no HTTP request ({type(error).__name__})"


def refused(error: Error, status: str, *headers: str) -> bytes:
    """Return the bytes of an answer for a peer that has sent no request."""
    body = msgspec.json.encode({"error": error.code, "message": error.http_message})
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        *headers,
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


class _Refusal(asyncio.Protocol):
    """Answers before the peer has asked, and hangs up."""

    def __init__(self, error: Full) -> None:
        self._said = refused(error, f"{error.http_status} Full", "Retry-After: 1")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writing = cast(asyncio.WriteTransport, transport)
        writing.write(self._said)
        writing.close()  # with TLS it takes the peer's goodbye, too
        asyncio.get_running_loop().call_later(REFUSED_S, writing.abort)
