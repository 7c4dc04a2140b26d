"""Knows who is at the other end of a connection, and what it may use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, NoReturn, cast

from tidewarden.config.rights import ALL, NONE, Rights
from tidewarden.errors import Denied, NoAuth
from tidewarden.server.resp.parser import Request
from tidewarden.server.verbs.command import Command

from .required_rights import Level, missing_for

# What a command may need of a peer that was not let in, of one that was, of one with a name, of one
# whose rights are limited: what it asks is looked at one by one. The others' requests cost nothing
# more for there being rights.
UNAUTHENTICATED: tuple[Level, ...] = ("open",)
DEFAULT_USER: tuple[Level, ...] = ("right", "login", "open")
AUTHENTICATED: tuple[Level, ...] = ("right", "login", "user", "open")
LIMITED: tuple[Level, ...] = ("login", "open")

# A peer whose host is gone says nothing, not even goodbye: within a minute its waiting takes and
# its leases end. The kernel asks after the silent, but not after those whom it sends something
# again and again: them it gives up after a quarter of an hour.
KEEPALIVE_IDLE_S = 30
KEEPALIVE_EVERY_S = 10
KEEPALIVE_TRIES = 3
UNANSWERED_MS = 60_000


class Peer:
    """
    Knows who is at the other end of a connection.

    Args:
        address: for logs and CLIENT LIST.
        since: when it came, in seconds of the monotonic clock.
        open_to_all: whether the door is open to peers that have not said who they are.
    """

    __slots__ = (
        "_open_to_all",
        "address",
        "agent",
        "host",
        "may",
        "name",
        "rights",
        "since",
        "user",
    )

    def __init__(self, address: str, since: float, *, open_to_all: bool) -> None:
        self.address = address
        self.host = host_of(address)
        self.since = since
        self._open_to_all = open_to_all
        self.name = ""  # CLIENT SETNAME
        self.agent: dict[str, str] = {}  # CLIENT SETINFO
        # the named user; None: nobody, or the default one where the door is open
        self.user: str | None = None
        self.leave()

    def enter(self, user: str, rights: Rights = ALL) -> None:
        """Note that the peer has said who it is, or that its user's rights have changed."""
        self.user = user
        self.rights = rights
        self.may = AUTHENTICATED if rights.whole else LIMITED

    def leave(self) -> None:
        """Forget the peer's user, as at first and after RESET."""
        self.user = None
        self.rights = ALL if self._open_to_all else NONE
        self.may = DEFAULT_USER if self._open_to_all else UNAUTHENTICATED

    def check(self, command: Command[Any], request: Request) -> None:
        """
        Check that the peer may do what ``may`` alone does not allow.

        Raises: NoAuth: it has to say who it is. Denied: its user lacks a right, which is named.
        BadArg: what is asked cannot be told.
        """
        if self.may is DEFAULT_USER:
            raise NoAuth(f"{command.name} needs a named user: send AUTH user secret.")
        if self.may is UNAUTHENTICATED:
            self.refuse()
        if not command.least <= len(request) <= command.most:
            raise command.misused(request)
        if lacks := missing_for(self.rights, command.permission, request):
            raise denied(command.name, lacks, self.user or "")

    @staticmethod
    def refuse() -> NoReturn:
        """
        Refuse a request. Raises: NoAuth: the peer has to authenticate first, whatever it asks for.
        """
        raise NoAuth("Authentication required: send AUTH user secret.")


def denied(what: str, right: str, user: str) -> Denied:
    """Make the error for a right that ``user`` does not have."""
    return Denied(f"{what} needs the right {right}, which the user {user} does not have.")


def ask_after(listening: Iterable[object]) -> None:
    """
    Have the kernel find out which peers' hosts are gone.

    Each connection accepted from these sockets inherits that.
    """
    for one in listening:
        made = cast(socket.socket, one)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)


def host_of(address: str) -> str:
    """Return the host of a ``host:port``."""
    return address.rpartition(":")[0] or address


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """Return ``host:port`` of the other end."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
