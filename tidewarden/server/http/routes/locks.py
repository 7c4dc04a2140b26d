"""Serves locks."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import (
    BadArg,
    Draining,
    Full,
    NotFound,
    NotHeld,
    Stale,
    StoreDown,
)
from tidewarden.peer_line import UnreachableNode
from tidewarden.queue import Queues
from tidewarden.queue.locks import KEY_MAX, Locks
from tidewarden.queue.task import LEASE_MAX_MS
from tidewarden.server.http.caller import SessionHeader, name_in_path, session_of
from tidewarden.server.http.delivery import delivered
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, RightsOf, Route, whole
from tidewarden.server.http.task_fields import Count, LeaseNumber, WaitMs
from tidewarden.server.services import Services
from tidewarden.server.verbs.lock import described_lock, seen_locks

from .tasks import Done

HoldMs = Annotated[int, Meta(ge=1, le=LEASE_MAX_MS, description="Milliseconds.", examples=[30_000])]


class Acquire(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    Says for how long a lock is wanted.

    With a ``key`` the same request again has the same fence.
    """

    lease_ms: HoldMs
    wait_ms: WaitMs = 0
    key: Annotated[str, Meta(min_length=1, max_length=KEY_MAX)] | UnsetType = UNSET


class Acquired(msgspec.Struct):
    """Holds the fence number of the hold; null: the lock was not free in time."""

    fence: int | None


class Renew(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says under which fence a lock is held on, and for how long from now."""

    fence: LeaseNumber
    lease_ms: HoldMs


class Release(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says under which fence the lock is held."""

    fence: LeaseNumber


class HoldEnd(msgspec.Struct):
    """Says when the hold ends now."""

    lease_end_ms: int


class LockPageOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which page; ``after``: where the one before ended."""

    count: Count = 100
    after: str = ""


class SeenLock(msgspec.Struct, kw_only=True):
    """Shows a lock that is held; ``keyed``: its holder has a key for it."""

    name: str
    fence: int
    node: str
    lease_end_ms: int
    keyed: bool
    session: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    client: Annotated[str, Meta(description="Its connection's name.")] | UnsetType = UNSET
    address: str | UnsetType = UNSET
    host: str | UnsetType = UNSET
    pid: str | UnsetType = UNSET
    since_ms: int | UnsetType = UNSET
    unreachable: (
        Annotated[list[UnreachableNode], Meta(description="Nodes that may know, and are silent.")]
        | UnsetType
    ) = UNSET


class LockPage(msgspec.Struct):
    """Lists locks that are held; ``after`` is empty at the end."""

    locks: list[SeenLock]
    after: str


class LockRoutes:
    """Answers ``/v1/locks``. A ``/`` in a lock's name is ``%2F`` in the path."""

    def __init__(
        self,
        services: Services,
        locks: Locks,
        queues: Queues,
        long_polls: LongPolls,
        rights: RightsOf,
    ) -> None:
        self._services = services
        self._locks = locks
        self._queues = queues
        self._long_polls = long_polls
        self._rights = rights

    async def listing(self, request: web.Request) -> web.Response:
        """Return a page of the locks that are held and that the caller may see."""
        asked = parameters_of(request, LockPageOptions)
        found, after = await seen_locks(
            self._locks, self._rights(request), asked.count, asked.after
        )
        return respond(LockPage([_seen(one) for one in found], after))

    async def get(self, request: web.Request) -> web.Response:
        """Say who holds a lock."""
        parameters_of(request, NoOptions)
        found = await described_lock(self._services, self._rights(request), _name(request))
        return respond(_seen(found))

    async def acquire(self, request: web.Request) -> web.Response:
        """
        Acquire a lock, waiting for it.

        The hold belongs to no connection: it ends by its time, or with the session that the header
        Tidewarden-Session names.
        """
        parameters_of(request, NoOptions)
        name, asked = _name(request), await body_of(request, Acquire)
        key = b"" if asked.key is UNSET else asked.key.encode()
        if self._queues.drain.started:
            raise Draining("This node is going down and hands out nothing new. Ask another.")
        with self._long_polls.of(request, asked.wait_ms):
            async with session_of(request, self._queues.unbound) as session:

                def undo(fence: int | None) -> None:
                    if fence:
                        self._locks.unclaimed(session, name, fence, key)

                claim = self._locks.acquire(
                    session, name, asked.lease_ms, wait_ms=asked.wait_ms, key=key
                )
                try:
                    fence = await claim
                except asyncio.CancelledError:
                    if claim.done() and not claim.cancelled() and claim.exception() is None:
                        undo(claim.result())
                    raise
                return await delivered(request, respond(Acquired(fence)), lambda: undo(fence))

    async def renew(self, request: web.Request) -> web.Response:
        """Hold a lock on from now."""
        parameters_of(request, NoOptions)
        name, asked = _name(request), await body_of(request, Renew)
        async with session_of(request, self._queues.unbound) as session:
            end_ms = await whole(self._locks.renew(session, name, asked.fence, asked.lease_ms))
        return respond(HoldEnd(end_ms))

    async def release(self, request: web.Request) -> web.Response:
        """Free a lock, which the next caller that waits for it gets."""
        parameters_of(request, NoOptions)
        name, asked = _name(request), await body_of(request, Release)
        async with session_of(request, self._queues.unbound) as session:
            await whole(self._locks.release(session, name, asked.fence))
        return respond(Done())


def _name(request: web.Request) -> str:
    return name_in_path(request, "lock", "A lock's name")


def _seen(lock: dict[str, Any]) -> SeenLock:
    return SeenLock(**lock)


LOCK = "/v1/locks/{lock}"
ROUTES = (
    Route(
        "GET", "/v1/locks", "L.LIST", LockRoutes.listing, query=LockPageOptions, answer=LockPage,
        errors=(BadArg, StoreDown),
    ),
    Route(
        "POST", f"{LOCK}/acquire", "L.ACQUIRE", LockRoutes.acquire, headers=SessionHeader,
        reads=True, body=Acquire,
        answer=Acquired, errors=(BadArg, Full, NotFound, Stale, Draining, *STORE),
    ),
    Route(
        "POST", f"{LOCK}/renew", "L.RENEW", LockRoutes.renew, headers=SessionHeader,
        body=Renew, answer=HoldEnd,
        errors=(BadArg, NotHeld, NotFound, *STORE),
    ),
    Route(
        "POST", f"{LOCK}/release", "L.RELEASE", LockRoutes.release, headers=SessionHeader,
        body=Release, answer=Done,
        errors=(BadArg, NotHeld, NotFound, *STORE),
    ),
    Route(
        "GET", LOCK, "L.PEEK", LockRoutes.get, query=NoOptions, answer=SeenLock,
        errors=(BadArg, NotFound, StoreDown),
    ),
)  # fmt: skip
