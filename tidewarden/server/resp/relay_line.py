"""
Carries a peer's requests from a further process of a node to the first one.

The line is a socket pair of which the first process is given an end. The peer's requests go through
it as they came, one at a time, and the replies back as they are.
"""

from __future__ import annotations

import array
import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

import hiredis
import msgspec

from tidewarden.errors import Draining, Full

from . import encoder
from .parser import Request

HandOver = Callable[[socket.socket, str | None, int, str], Awaitable[None]]
"""
Gives the first process an end of a socket pair, for a user (None: no user), a RESP version and the
address of a peer.
"""
Push = Callable[[bytes], Awaitable[None]]
"""Sends the peer messages that are no reply."""
CHUNK = 1 << 16


class LineSender:
    """
    Hands ends of lines to the first process, by the socket of packets between the two.

    It waits while that is full.
    """

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._room: asyncio.Future[None] | None = None

    async def __call__(self, end: socket.socket, user: str | None, resp: int, address: str) -> None:
        """
        Hand over ``end``, for a user, a RESP version and the address of a peer.

        Raises: OSError: the first process has gone.
        """
        message = msgspec.json.encode({"line": {"user": user, "resp": resp, "address": address}})
        rights = array.array("i", [end.fileno()])
        while True:
            try:
                self._wire.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except BlockingIOError:
                await self._writable()
            else:
                return

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        if self._room is None:
            self._room = loop.create_future()
            loop.add_writer(self._wire, self._roomy)
        await asyncio.shield(self._room)

    def _roomy(self) -> None:
        room, self._room = self._room, None
        asyncio.get_running_loop().remove_writer(self._wire)
        if room is not None:
            room.set_result(None)


class RelayLine:
    """Carries one peer's requests to the first process, on a line opened at the first of them."""

    def __init__(self, hand_over: HandOver, user: str | None, resp: int, address: str) -> None:
        self.speaks = (user, resp, address)
        self._hand_over = hand_over
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._closed = False

    async def ask(self, request: Request, push: Push) -> bytes:
        """
        Return the reply to ``request``, as it comes; ``push`` is given the messages before it.

        Raises: Draining: the first process takes no more, or cut this line. Full: there is no file
        for a line.
        """
        async with self._turn:
            try:
                return await self._ask(request, push)
            except asyncio.CancelledError:
                self._cut()  # the rest of its reply is for nobody
                raise
            except OSError as error:
                self._cut()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise Full(
                        "This process has as many files open as it may. Close connections."
                    ) from None
                raise Draining("This node is going down. Connect to another.") from None

    async def _ask(self, request: Request, push: Push) -> bytes:
        if self._closed:
            raise ConnectionAbortedError
        if self._streams is None:
            self._streams = await self._open()
            if self._closed:  # the peer has gone while it was opened
                raise ConnectionAbortedError
        reader, writer = self._streams
        words = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in request)
        writer.write(b"*%d\r\n%b" % (len(request), words))
        parser, got = hiredis.Reader(), bytearray()
        while True:
            chunk = await reader.read(CHUNK)
            if not chunk:
                raise ConnectionResetError
            got += chunk
            parser.feed(chunk)
            pushed = 0
            while isinstance(found := parser.gets(), hiredis.PushNotification):
                # of the door's own making: written again it is what came
                pushed += len(encoder.push([part.decode() for part in found]))
            if pushed:
                await push(bytes(got[:pushed]))
                del got[:pushed]
            if found is not False:
                return bytes(got)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._hand_over(theirs, *self.speaks)
            return await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    def _cut(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    def close(self) -> None:
        """Cut the line: the peer has gone, or is another user now."""
        self._closed = True
        self._cut()
