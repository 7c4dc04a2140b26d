"""
Writes that are on disk before they are believed, also where the store brings its log to disk once a second.

WAITAOF speaks of what its own connection wrote, so the scripts in question run on a connection of their own, and one
WAITAOF serves all whose replies came before it was sent: it costs a round trip and an fsync a group, not a write.
"""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakKeyDictionary

from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.store.link import Link
from tidewarden.store.route import Route

TIMEOUT_MS = 5000


class Firm:
    """
    Group commit on ``route``, for each server of a cluster by itself. ``possible``: the servers know WAITAOF and need it
    (Valkey or Redis 7.2 and later with an append-only file that is not synced on every write). Elsewhere :meth:`sync` returns
    at once: the server's own setting is the strongest there is.
    """

    def __init__(self, route: Route, *, possible: bool) -> None:
        self._route = route
        self._possible = possible
        self._locks: WeakKeyDictionary[Link, asyncio.Lock] = WeakKeyDictionary()
        self._gathering: dict[Link, asyncio.Task[None]] = {}
        self.groups = 0

    async def sync(self, key: str = "", *, sent: Link | None = None) -> None:
        """
        Return when everything whose reply the connection has had that ``key`` is written on is on disk.

        ``sent``: that connection when the write was sent. Raises: NoQuorum: not within five seconds; StoreDown: the connection was
        lost. What was written may or may not last.
        """
        if not self._possible:
            return
        link = self._route.link_of(key)
        if link is None:
            raise StoreDown(
                "the store's server was lost before the write was known to be on disk; it may or may not last"
            )
        if sent not in (
            link,
            None,
        ):  # the key has moved here, and a connection that wrote nothing would vouch for nothing
            await link.call("SET", f"{key}:synced", 1, "PX", 1000)
        group = self._gathering.get(link)
        if group is None:
            group = self._gathering[link] = asyncio.ensure_future(self._commit(link))
            group.add_done_callback(_seen)
        await asyncio.shield(group)

    async def _commit(self, link: Link) -> None:
        async with self._locks.setdefault(link, asyncio.Lock()):
            del self._gathering[link]  # who comes from now on needs the next one
            self.groups += 1
            local, _ = await link.call("WAITAOF", 1, 0, TIMEOUT_MS)
            if local < 1:
                raise NoQuorum(f"the store did not bring its log to disk within {TIMEOUT_MS} ms")


def _seen(group: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError, NoQuorum, StoreDown):
        group.result()
