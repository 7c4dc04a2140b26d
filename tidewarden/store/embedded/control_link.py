"""
The one connection by which a node gives orders to its own store.

Orders must not overtake each other, not even those that nobody waits for any more. So what was sent
is never given up: whoever asks next waits until the store has answered what it owes. Where the
connection itself was lost while the store lives, the next one first ends the former at the server:
what lay there unread is then not executed.
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

Command = Sequence[str | int]
ReplyError = hiredis.ReplyError
LOGIN_S = 0.25


PREFIX = "tidewarden-"
CONTROL = f"{PREFIX}control"
"""Name of the connection by which a node orders its own store about."""


class ControlLink(asyncio.Protocol):
    """
    Asks one store, by its socket, one thing after the other, as user ``daemon``.

    It connects when it is asked. Use it in one event loop.
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
        self._transport: asyncio.Transport | None = None
        self._ready = False
        self._reader = hiredis.Reader()
        self._owed: deque[tuple[int, list[Any], asyncio.Future[list[Any]]]] = deque()

    @property
    def connected(self) -> bool:
        """Whether it is connected and logged in."""
        return self._ready

    async def ask(self, *commands: Command, limit_s: float) -> list[Any]:
        """
        Send commands together and return their answers, texts as ``str``.

        An error reply is among them as an exception: see :func:`refuse_errors`. Raises: StoreDown:
        not connected, or not answered in time; what was sent may be executed at any later time, but
        before anything that is asked after it.
        """
        try:
            async with asyncio.timeout(limit_s), self._turn:
                if self._transport is None:
                    await self._connect()
                while self._owed:
                    await asyncio.wait([self._owed[-1][2]])
                return await self._sent(commands)
        except TimeoutError:
            silent = f"the store at {self._path} did not answer within {limit_s:g} s"
            raise StoreDown(silent) from None
        except OSError as error:
            raise StoreDown(
                f"no store answers at {self._path}: {error.strerror or error}"
            ) from None

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self) -> None:
        """Connect and log in. Nothing was ordered before that, so an attempt can be given up."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LOGIN_S):
            transport, _ = await loop.create_unix_connection(lambda: self, str(self._path))
        try:
            answers = await self._sent(
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
            self._ready = True
        except BaseException:
            transport.abort()
            self._transport = None
            raise

    async def _sent(self, commands: Sequence[Command]) -> list[Any]:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise StoreDown(f"the connection to the store at {self._path} was lost")
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._owed.append((len(commands), [], done))
        packed = [hiredis.pack_command(tuple(command)) for command in commands]  # type: ignore[arg-type]
        transport.write(b"".join(packed))
        # Not cancelled with whoever asked: it tells when the store has answered.
        return await asyncio.shield(done)

    # The transport's.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")

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
            done.set_exception(StoreDown(f"the connection to the store at {self._path} was lost"))
            done.exception()  # whoever asked may have gone
        was_ready, self._ready = self._ready, False
        if was_ready and self._on_lost is not None:
            self._on_lost()


def refuse_errors(answers: Sequence[Any]) -> None:
    """Raises: StoreDown: one of the answers is an error."""
    for answer in answers:
        if isinstance(answer, ReplyError):
            raise StoreDown(f"the store refuses: {answer}")
