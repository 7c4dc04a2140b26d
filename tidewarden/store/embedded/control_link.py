"""
Holds the one connection by which a node gives orders to its own store.

Orders must not overtake each other, not even orders whose callers have gone. So an order that was
sent is never given up: the next one waits until the store has answered all earlier ones. If the
connection itself was lost while the store lives, the next order first ends the former connection at
the server, so that unread orders there are not executed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import hiredis

from tidewarden.errors import StoreDown

from .credentials import DAEMON

Command = Sequence[str | bytes | int]
ReplyError = hiredis.ReplyError
PREFIX = "tidewarden-"
CONTROL = f"{PREFIX}control"
"""The name of the connection by which a node gives orders to its own store."""


class ControlLink:
    """
    Sends commands to one store, by its socket, one after the other, as user ``daemon``.

    It connects when a command is sent. Use it in one event loop.
    """

    def __init__(
        self, path: Path, password: str, purpose: str, on_lost: Callable[[], None] | None = None
    ) -> None:
        """
        Args:
            path: of the store's Unix socket.
            purpose: names the connection, of which the store has one.
            on_lost: called when the store, or anything, has closed the connection.
        """
        self._path = path
        self._password = password
        self._name = f"{PREFIX}{purpose}"
        self._on_lost = on_lost
        self._turn = asyncio.Lock()
        self._connection: _Connection | None = None
        """The connection that is logged in."""

    @property
    def connected(self) -> bool:
        """Return whether the link is connected and logged in."""
        return self._connection is not None

    async def ask(self, *commands: Command, limit_s: float) -> list[Any]:
        """
        Send commands together and return their answers, texts as ``str``.

        An error reply is among them as an exception: see :func:`refuse_errors`. Raises: StoreDown:
        not connected, or not answered in time; what was sent may be executed at any later time, but
        before anything that is asked after it.
        """
        try:
            async with asyncio.timeout(limit_s), self._turn:
                connection = self._connection or await self._connect()
                await connection.settled()
                return await connection.sent(commands)
        except TimeoutError:
            silent = f"the store at {self._path} did not answer within {limit_s:g} s"
            raise StoreDown(silent) from None
        except (OSError, RuntimeError) as error:
            # RuntimeError is how uvloop refuses to write to a connection that was lost a moment ago
            said = error.strerror if isinstance(error, OSError) else ""
            raise StoreDown(f"no store answers at {self._path}: {said or error}") from None

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        if self._connection is not None:
            self._connection.abort()

    async def _connect(self) -> _Connection:
        """Connect and log in. No order was sent before, so an attempt can be given up."""
        loop = asyncio.get_running_loop()
        # One object an attempt: of one that is given up while it succeeds uvloop closes the
        # transport, and tells its protocol that it was made, but never that it was lost.
        connection = _Connection(self._path, self._ended)
        try:
            await loop.create_unix_connection(lambda: connection, str(self._path))
            answers = await connection.sent(
                [
                    ("AUTH", DAEMON, self._password),
                    # of this node's former process, too
                    ("CLIENT", "KILL", "NAME", self._name, "SKIPME", "yes"),
                    ("CLIENT", "SETNAME", self._name),
                ]
            )
            if isinstance(answers[0], ReplyError):
                raise StoreDown(
                    f"the store at {self._path} refuses this node: {answers[0]}; it knows another"
                    " cluster secret, or runs alone"
                )
            refuse_errors(answers)
            connection.check()  # it may have ended since with what it answered last
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        return connection

    def _ended(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
            if self._on_lost is not None:
                self._on_lost()


class _Connection(asyncio.Protocol):
    """Carries questions and answers over one connection, in their order, until it is lost."""

    def __init__(self, path: Path, on_lost: Callable[[_Connection], None]) -> None:
        self._path = path
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        self._owed: deque[tuple[int, list[Any], asyncio.Future[list[Any]]]] = deque()

    async def settled(self) -> None:
        """Return when the store has answered everything that was sent, or the connection ended."""
        while self._owed:
            await asyncio.wait([self._owed[-1][2]])

    async def sent(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and return their answers. Raises: StoreDown, RuntimeError."""
        transport = self.check()
        packed = [hiredis.pack_command(tuple(command)) for command in commands]  # type: ignore[arg-type]
        transport.write(b"".join(packed))
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._owed.append((len(commands), [], done))
        # Not cancelled with whoever asked: it tells when the store has answered.
        return await asyncio.shield(done)

    def check(self) -> asyncio.Transport:
        """Return the transport. Raises: StoreDown: the connection was lost."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise self._lost()
        return transport

    def abort(self) -> None:
        """End the connection; commands under way get no answer."""
        if self._transport is not None:
            self._transport.abort()

    def _lost(self) -> StoreDown:
        return StoreDown(f"the connection to the store at {self._path} was lost")

    # The transport's.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while self._owed and (reply := self._reader.gets()) is not False:
            wanted, replies, done = self._owed[0]
            replies.append(reply)
            if len(replies) == wanted:
                self._owed.popleft()
                done.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        owed, self._owed = self._owed, deque()
        for _, _, done in owed:
            done.set_exception(self._lost())
            done.exception()  # whoever asked may have gone
        self._on_lost(self)


def refuse_errors(answers: Sequence[Any]) -> None:
    """Check the answers. Raises: StoreDown: one of them is an error."""
    for answer in answers:
        if isinstance(answer, ReplyError):
            raise StoreDown(f"the store refuses: {answer}")
