"""Chooses the node to connect to, and opens the session that all connections of a client share."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hiredis

from tidewarden import __version__
from tidewarden.clock import Clock
from tidewarden.errors import BadArg, Error, NotFound, from_wire

from .address import Address
from .connection import ClientConnection, pack
from .replies import mapped

log = logging.getLogger("tidewarden.client")

CONNECT_S = 5.0
LEARN_S = 60.0  # so often at most a node is asked which others there are
KNOWN_MAX = 1_000
LIBRARY = "tidewarden"
HOST_MAX = 80
UNSPECIFIED = ("", "0.0.0.0", "::")


class Endpoints:
    """
    Dials them in turn: one that failed is left for the next, by every connection of the client.

    With ``chance`` the given addresses are in a random order, so that many clients spread over the
    nodes, also when all of them leave one. The nodes in use are asked for the others, which come
    after the given ones; a learned address that could never be used is forgotten for good, for
    behind a tunnel or a proxy none can. One that has served is tried again: its node restarts, and
    the given ones may be gone by then.

    ``session`` is the server's name for this client; leases belong to it, not to a connection, and
    outlive all of them by ``grace_ms``. ``on_session_lost`` is called when it has ended all the
    same: what it held is lost.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        clock: Clock,
        *,
        grace_ms: int,
        name: str,
        chance: random.Random | None = None,
    ) -> None:
        self._given = list(addresses)
        if chance is not None:
            chance.shuffle(self._given)
        self.addresses = tuple(self._given)
        self._learns = chance is not None
        self._learned_at: float | None = None
        self._useless: set[tuple[str, int]] = set()
        self._served: set[tuple[str, int]] = set()
        self.session = ""
        self.on_session_lost: Callable[[], None] = lambda: None
        self._clock = clock
        self._grace_ms = grace_ms
        self._name = name
        host = socket.gethostname()[:HOST_MAX]
        said: dict[str, str | int] = {
            "LIB-NAME": LIBRARY,
            "LIB-VER": __version__,
            "HOST": host,
            "PID": os.getpid(),
        }
        self._said = [pack("CLIENT", "SETINFO", what, value) for what, value in said.items()]
        self._turn = 0
        self._opening = asyncio.Lock()
        self._ahead_ms: float | None = None  # the store's clock less our monotonic one

    def current(self) -> Address:
        """Return the address of the node in use."""
        return self.addresses[self._turn % len(self.addresses)]

    def failed(self, address: Address) -> None:
        """Use the next node instead, unless another caller has done so already."""
        if self.current() is not address:
            return
        self._turn += 1
        at = (address.host, address.port)
        if address not in self._given and at not in self._served:
            _keep(self._useless, at)
            self.use(self.addresses)

    def use(self, found: Iterable[Address]) -> None:
        """Go on with the given addresses and these, beginning with the one that is next now."""
        following = self.current()
        known = {(address.host, address.port): address for address in (*self._given, *found)}
        self.addresses = tuple(address for at, address in known.items() if at not in self._useless)
        self._turn = self.addresses.index(following) if following in self.addresses else 0

    def store_ms(self) -> float:
        """
        Return the latest that the store's clock can show now, unix ms.

        It is known once a connection was made. With it no lease is believed to be longer than it
        is.
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
        _keep(self._served, (address.host, address.port))
        return connection

    async def _greet(self, connection: ClientConnection, address: Address) -> None:
        requests = [pack("HELLO", 3, "SETNAME", self._name), pack("TIME")]
        if address.login:
            requests.insert(0, pack("AUTH", *address.login))
        asked_at = self._clock.monotonic()
        replies = await connection.request([*requests, *self._said], CONNECT_S)
        # what we say of ourselves may be refused, by an older node as well
        *greetings, time = replies[: len(requests)]
        for reply in (*greetings, time):
            if isinstance(reply, hiredis.ReplyError):
                raise from_wire(str(reply))
        # Read at some time since we asked; where within that time nobody tells us.
        self._ahead_ms = int(time[0]) * 1000 + int(time[1]) / 1000 - asked_at * 1000
        await self._join(connection, address)
        await self._learn(connection, address)

    async def _learn(self, connection: ClientConnection, address: Address) -> None:
        """Ask which other nodes there are; they know the same users."""
        now = self._clock.monotonic()
        if not self._learns or (self._learned_at is not None and now - self._learned_at < LEARN_S):
            return
        self._learned_at = now
        (reply,) = await connection.request([pack("R.STATUS")], CONNECT_S)
        if isinstance(reply, hiredis.ReplyError):  # it serves all the same
            log.debug("%s does not say which nodes there are: %s", address, reply)
            return
        self.use(_others(mapped(reply).get("members"), address))

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


def _keep(known: set[tuple[str, int]], at: tuple[str, int]) -> None:
    if len(known) >= KNOWN_MAX:
        known.clear()
    known.add(at)


def _others(members: Any, like: Address) -> list[Address]:
    """List the nodes of ``R.STATUS``, which are reached as ``like`` is."""
    found = []
    for member in members.values() if isinstance(members, dict) else ():
        host, _, port = str(member.get("address", "")).rpartition(":")
        host = host.strip("[]")
        if host not in UNSPECIFIED and port.isdigit():
            found.append(dataclasses.replace(like, host=host, port=int(port)))
    return found
