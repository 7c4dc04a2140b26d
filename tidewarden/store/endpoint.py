"""
Finds the address that a link connects to.

It is always the same, or that of the server that takes the writes now, which a finder knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tidewarden.errors import StoreDown

from .connect import check_url, open_transport, redact


class PrimaryFinder(Protocol):
    """
    Knows which of several servers takes the writes.

    See :class:`tidewarden.store.sentinel.Sentinels`.
    """

    name: str
    fault: str
    """Why no server can take the writes before an operator acts; empty: one may at any time."""
    alone: bool
    """Whether no server can take them because no majority of the nodes is in reach."""

    def follow(self, moved: Callable[[str], None], /) -> None:
        """
        Call ``moved`` with the URL of the server that takes the writes, whenever it may be another.

        This lasts from now on.
        """

    async def forget(self, moved: Callable[[str], None], /) -> None:
        """Stop calling ``moved``."""

    async def find(self) -> str:
        """
        Return the URL of the server that takes the writes now.

        Raises: StoreDown: why there is none.
        """


def server_of(url: str) -> str:
    """Return the address in a URL, without user, password and options."""
    scheme, mark, rest = redact(url).partition("?")[0].partition("://")
    return scheme + mark + rest.rpartition("@")[2]


class Endpoint:
    """
    Leads one connection to the store at ``url``.

    With a ``finder`` the URL is only the store's name in messages. ``called`` names the other end
    there.
    """

    def __init__(self, url: str, finder: PrimaryFinder | None, called: str) -> None:
        self.url = url
        self.finder = finder
        self.called = called
        self.place = f"the {called} at {redact(url)}"
        self._target = url
        # to connect, cut short when it is another server
        self._attempt: asyncio.Timeout | None = None

    @property
    def at(self) -> str:
        """Return the address now, or of the last connection, without user and password."""
        return server_of(self._target)

    @property
    def fault(self) -> str:
        """
        Say why no server can take the writes before an operator acts; empty: one may at any time.
        """
        return "" if self.finder is None else self.finder.fault

    @property
    def alone(self) -> bool:
        """Return whether that is because no majority of the nodes is in reach."""
        return self.finder is not None and self.finder.alone

    @property
    def away(self) -> str:
        """Say in the same way that no server is reached; empty: there may be one at any time."""
        if self.finder is None or not self.finder.fault:
            return ""
        return f"no primary of {self.finder.name} is reached: {self.finder.fault}"

    def check(self) -> None:
        """Check the URL. Raises: BadArg: it is none."""
        if self.finder is None:
            check_url(self.url, found=True)

    async def open(self, name: str, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, object]:
        """
        Open a connection, as :func:`open_transport`. Raises: StoreDown: why there is none now.
        """
        if self.finder is None:
            return await open_transport(self.url, name, protocol, called=self.called)
        self._target = url = await self.finder.find()
        attempt = asyncio.timeout(None)
        changed = f"{self.finder.name} has another primary since the connecting began"
        try:
            async with attempt:
                self._attempt = attempt
                transport, kept = await open_transport(url, name, protocol, primary=True)
        except TimeoutError:
            raise StoreDown(changed) from None
        except StoreDown as error:
            away = self.away or f"{self.finder.name} has no primary now: {error}"
            raise StoreDown(away) from None
        finally:
            self._attempt = None
        if attempt.when() is not None:  # redis-py may swallow a cancellation
            # its end, told in a later turn, is not that of the connection which comes next
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
            raise StoreDown(changed)
        return transport, kept

    def leads_to(self, url: str) -> bool:
        """
        Return whether the connection leads to that URL; if not, give up an attempt to connect.
        """
        if url == self._target:
            return True
        if self._attempt is not None:
            self._attempt.reschedule(asyncio.get_running_loop().time())
        return False
