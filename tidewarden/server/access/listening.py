"""
Listens on the sockets of a port, and accepts peers while admission control has room.

Bytes of unauthenticated peers are read in small pieces. A loop's own server accepts every peer, and
reads a quarter of a megabyte of each at a time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any, cast

from .admission import CHUNK_BYTES, AdmissionControl, UnauthenticatedPeer
from .peer import ask_after

log = logging.getLogger("tidewarden.server")

ACCEPTED_MAX = 32  # in one turn of the loop
AGAIN_S = 1.0  # after an accept that failed because the process, or the host, is out of something
# while the budget is used up: who comes then is asked by its kernel to come again
BESIEGED_BACKLOG = 128
OUT_OF = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

Meet = Callable[[UnauthenticatedPeer | None], asyncio.BaseProtocol]


class MeteredProtocol(asyncio.BufferedProtocol):
    """Stands between a stranger's socket and its protocol: a piece at a time, each paid for."""

    _piece = bytearray(CHUNK_BYTES)  # one for all: it is filled and copied in one go
    _view = memoryview(_piece)

    def __init__(self, unauthenticated: UnauthenticatedPeer, inner: asyncio.BaseProtocol) -> None:
        self._unauthenticated = unauthenticated
        self._inner: Any = inner
        self._plain = isinstance(inner, asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unauthenticated.attach(cast(asyncio.Transport, transport), self._inner)
        self._inner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> Any:
        return self._view if self._plain else self._inner.get_buffer(CHUNK_BYTES)[:CHUNK_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self._plain:
            self._unauthenticated.run(self._inner.data_received, bytes(self._view[:nbytes]))
        else:
            self._unauthenticated.run(self._inner.buffer_updated, nbytes)

    def eof_received(self) -> bool | None:
        return cast("bool | None", self._inner.eof_received())

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.gone()
        self._inner.connection_lost(exc)


class Listener:
    """
    Listens for one door.

    Args:
        admission: bounds unauthenticated peers; who comes is one unless ``open_to_all``.
        meet: makes the protocol of who has come; None: it need not log in.
        backlog: how many may wait in the kernel.
        open_to_all: whether everybody is let in who comes.
    """

    def __init__(
        self, admission: AdmissionControl, meet: Meet, backlog: int, open_to_all: Callable[[], bool]
    ) -> None:
        self._admission = admission
        self._meet = meet
        self._backlog = backlog
        self._open_to_all = open_to_all
        self._sockets: list[socket.socket] = []
        self._accepting = False
        self._besieged = False
        self._again: asyncio.TimerHandle | None = None
        self._meeting: set[asyncio.Task[Any]] = set()

    async def start(self, hosts: str | list[str], port: int, *, shared: bool = False) -> None:
        """
        Listen; ``shared``: other processes do too.

        Raises: OSError: the port is taken or may not be bound.
        """
        self._loop = asyncio.get_running_loop()
        for host in [hosts] if isinstance(hosts, str) else hosts:
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            try:
                for family, _, _, _, address in dict.fromkeys(found):
                    self._sockets.append(bound(family, address, shared))
            except OSError:
                self.close()
                raise
        ask_after(self._sockets)
        for one in self._sockets:
            one.listen(self._backlog)
        self._admission.on_room.add(self._resume)
        self._resume()

    @property
    def port(self) -> int:
        """Return the TCP port it listens on."""
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening. A peer that was accepted already stays."""
        self._pause()
        if self._again is not None:
            self._again.cancel()
        self._admission.on_room.discard(self._resume)
        for one in self._sockets:
            one.close()

    def _resume(self) -> None:
        if not self._accepting:
            self._accepting = True
            if self._again is not None:
                self._again.cancel()
                self._again = None
            for one in self._sockets:
                self._loop.add_reader(one, self._accept, one)

    def _pause(self, for_s: float = 0.0) -> None:
        if self._accepting:
            self._accepting = False
            for one in self._sockets:
                self._loop.remove_reader(one)
        if for_s:
            self._again = self._loop.call_later(for_s, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_MAX):
            everybody = self._open_to_all()
            if not everybody and (wait_s := self._admission.wait_s()):
                if self._admission.spent:
                    self._keep_few(True)
                self._pause(wait_s)
                return
            try:
                accepted, address = listening.accept()
            except BlockingIOError:
                self._keep_few(False)
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF:
                    raise
                log.warning("no connection can be accepted for %g s: %s", AGAIN_S, error)
                self._pause(AGAIN_S)
                return
            self._take_in(
                accepted,
                None if everybody else self._admission.enter(self, f"{address[0]}:{address[1]}"),
            )

    def _keep_few(self, besieged: bool) -> None:
        """
        Let the kernel keep few peers that come, or as many as usual.

        Four thousand strangers are taken in within twelve seconds: a user behind them would have
        given up.
        """
        if besieged != self._besieged:
            self._besieged = besieged
            for one in self._sockets:
                one.listen(min(BESIEGED_BACKLOG, self._backlog) if besieged else self._backlog)

    def _take_in(
        self, accepted: socket.socket, unauthenticated: UnauthenticatedPeer | None
    ) -> None:
        accepted.setblocking(False)
        protocol = self._meet(unauthenticated)
        if unauthenticated is not None:
            protocol = MeteredProtocol(unauthenticated, protocol)
        coroutine = self._loop.connect_accepted_socket(
            lambda: cast(asyncio.Protocol, protocol), accepted
        )
        task = self._loop.create_task(coroutine)
        self._meeting.add(task)
        task.add_done_callback(lambda done: self._met(done, unauthenticated))

    def _met(self, done: asyncio.Task[Any], unauthenticated: UnauthenticatedPeer | None) -> None:
        self._meeting.discard(done)
        if unauthenticated is not None and (done.cancelled() or done.exception() is not None):
            unauthenticated.gone()  # before there was a transport


def bound(family: int, address: Iterable[Any], shared: bool) -> socket.socket:
    """Bind a socket to this address. Raises: OSError, which names it."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(tuple(address))
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen at {address!r}: {error.strerror}") from None
    return made
