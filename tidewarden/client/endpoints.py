"""Chooses the node to connect to, and opens the session that all connections of a client share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import hiredis

from tidewarden.clock import Clock
from tidewarden.errors import BadArg, Error, NotFound, from_wire

from .address import Address
from .connection import ClientConnection, pack

log = logging.getLogger("tidewarden.client")

CONNECT_S = 5.0


class Endpoints:
    """
    Dials them in turn: one that failed is left for the next, by every connection of the client.

    ``session`` is the server's name for this client; leases belong to it, not to a connection, and
    outlive all of them by ``grace_ms``. ``on_session_lost`` is called when it has ended all the
    same: what it held is lost.
    """

    def __init__(
        self, addresses: Sequence[Address], clock: Clock, *, grace_ms: int, name: str
    ) -> None:
        self.addresses = tuple(addresses)
        self.session = ""
        self.on_session_lost: Callable[[], None] = lambda: None
        self._clock = clock
        self._grace_ms = grace_ms
        self._name = name
        self._turn = 0
        self._opening = asyncio.Lock()
        self._ahead_ms: float | None = None  # the store's clock less our monotonic one

    def current(self) -> Address:
        """The address of the node in use."""
        return self.addresses[self._turn % len(self.addresses)]

    def failed(self, address: Address) -> None:
        """Use the next node instead, unless another caller has done so already."""
        if self.current() is address:
            self._turn += 1

    def store_ms(self) -> float:
        """
        The latest that the store's clock can show now, unix ms; known once a connection was made.
        With it no lease is believed to be longer than it is.
        """
        assert self._ahead_ms is not None
        return self._clock.monotonic() * 1000 + self._ahead_ms

    async def dial(
        self, address: Address, on_lost: Callable[[ClientConnection], None] | None
    ) -> ClientConnection:
        """
        Open a connection to this node that belongs to the session.

        Raises: OSError, TimeoutError, Broken: it cannot be reached; Error: what it refused with.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: ClientConnection(address), address.host, address.port, ssl=address.context()
            )
            try:
                await self._greet(connection, address)
            except BaseException:
                connection.abort("it could not be used")
                raise
        connection.on_lost = on_lost
        return connection

    async def _greet(self, connection: ClientConnection, address: Address) -> None:
        requests = [pack("HELLO", 3, "SETNAME", self._name), pack("TIME")]
        if address.secret:
            who = (address.user, address.secret) if address.user else (address.secret,)
            requests.insert(0, pack("AUTH", *who))
        asked_at = self._clock.monotonic()
        *greetings, time = await connection.request(requests, CONNECT_S)
        for reply in (*greetings, time):
            if isinstance(reply, hiredis.ReplyError):
                raise from_wire(str(reply))
        # Read at some time since we asked; where within that time nobody tells us.
        self._ahead_ms = int(time[0]) * 1000 + int(time[1]) / 1000 - asked_at * 1000
        await self._join(connection, address)

    async def _join(self, connection: ClientConnection, address: Address) -> None:
        """Attach the connection to the session; the first one opens it."""
        asked = ""
        while self.session != asked:
            asked = self.session
            try:
                await self._ask_session(connection, address, asked, "GRACE", self._grace_ms)
                return
            except NotFound:
                log.warning(
                    "the session has ended at the nodes: what it held is lost; opening another one"
                )
        async with self._opening:
            if self.session != asked:  # another connection was first
                await self._ask_session(connection, address, self.session, "GRACE", self._grace_ms)
                return
            opened = await self._ask_session(connection, address, "GRACE", self._grace_ms)
            self.session = opened
            if asked:
                self.on_session_lost()

    async def _ask_session(
        self, connection: ClientConnection, address: Address, *words: str | int
    ) -> str:
        (reply,) = await connection.request([pack("SESSION", *words)], CONNECT_S)
        if isinstance(reply, hiredis.ReplyError):
            error = from_wire(str(reply))
            if isinstance(error, BadArg) or type(error) is Error:
                raise Error(
                    f"the node at {address} serves no sessions, this SDK needs them; is it an older"
                    f" one? ({error})"
                )
            raise error
        return reply.decode() if isinstance(reply, bytes) else str(reply)
