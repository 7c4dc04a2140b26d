"""
Commits groups on a Redis Cluster: each answer waits for the commit of the primary that gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.store.connection import StoreConnection
from tidewarden.store.redis_cluster.cluster_client import ClusterClient
from tidewarden.store.redis_cluster.slots import slot_of

from .group_commit import GroupCommit, Requirement
from .held_answers import HeldAnswer
from .server_identity import MOVED, ServerIdentity

# Names of keys that are tried until one is of the primary: each has one in 16384 slots at least.
TRIES = 65536


class PrimaryCommit(GroupCommit):
    """
    Commits the groups of one primary.

    It writes to a key in a slot of that primary, and to another key when the slot has moved.
    """

    def __init__(
        self,
        route: ClusterClient,
        data: StoreConnection,
        link: StoreConnection,
        cluster: str,
        requirement: Requirement,
        limit_ms: int,
        clock: Clock,
    ) -> None:
        super().__init__(data, link, "", requirement, limit_ms, clock)
        self._route = route
        self._cluster = cluster
        self._own_key = ""

    async def _written(self) -> asyncio.Future[Any]:
        if not self._own_key or self._route.link_of(self._own_key) is not self._data:
            self._own_key = self._key_there()
            self._write_to(self._own_key)
        return await super()._written()

    def _key_there(self) -> str:
        """Return a key in a slot of this primary. Raises: StoreDown: it has no slot any more."""
        if self._data not in self._route.each():  # else all the names would be tried, each time
            raise StoreDown(MOVED)
        for number in range(TRIES):
            key = f"{{{self._cluster}~{number}}}:commits"
            if self._route.link_of(key) is self._data:
                return key
        raise StoreDown(MOVED)


class Placed:
    """
    Holds the server identity that a script relies on, known once the script is sent.

    It becomes another when the script is sent to another server: see :class:`ServerIdentity`.
    """

    __slots__ = ("_commit_of", "commit", "ground")

    def __init__(self, commit_of: Callable[[StoreConnection], GroupCommit]) -> None:
        self._commit_of = commit_of
        self.commit: GroupCommit | None = None
        self.ground: ServerIdentity[str] | None = None

    def sent_by(self, link: StoreConnection) -> None:
        """Note that the script goes out on ``link`` next."""
        self.commit = self._commit_of(link)
        self.ground = self.commit.ground()


class ClusterCommit:
    """
    Chooses the group commit of the primary that gave an answer.

    ``commit_of`` makes, or finds, the one beside a primary's link of ``route``.
    """

    def __init__(
        self, route: ClusterClient, commit_of: Callable[[StoreConnection], GroupCommit]
    ) -> None:
        self._route = route
        self._commit_of = commit_of

    def ground(self) -> Placed:
        """
        Return the identity that the next script relies on.

        The identity has to be told by which connection the script goes.
        """
        return Placed(self._commit_of)

    def add(self, ground: Placed, answer: HeldAnswer) -> None:
        """See :meth:`GroupCommit.add`."""
        if ground.commit is None or ground.ground is None:
            answer.missed(
                NoQuorum(f"it is not known where it was written ({MOVED}); it may or may not last")
            )
        else:
            ground.commit.add(ground.ground, answer)

    def begun(self, key: str) -> Callable[[], Awaitable[None]]:
        """
        See :meth:`GroupCommit.begun`, for a write to ``key``.

        A write that was sent on to another server is not known to last.
        """
        slots, slot = self._route.topology.map, slot_of(key)
        link, turn = self._route.link_of(key), slots.turn(slot)
        firm = self._commit_of(link).begun() if link is not None else None

        async def then() -> None:
            if firm is None or slots.turn(slot) != turn:
                raise NoQuorum(
                    f"it is not known where it was written ({MOVED}); it may or may not last"
                )
            await firm()

        return then
