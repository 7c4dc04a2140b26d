"""Serves sessions, with which leases of HTTP end when their consumer falls silent."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, Draining, Full, NotFound, Stale, StoreDown, Timeout
from tidewarden.peer_line import silent_ones
from tidewarden.queue import Queues
from tidewarden.queue.sessions.sessions import GRACE_MAX_MS, GRACE_MS
from tidewarden.queue.sessions.unbound import GRACE_MIN_MS
from tidewarden.server.access.required_rights import ADMIN
from tidewarden.server.consumers.cluster_consumers import ClusterConsumers
from tidewarden.server.http.caller import name_in_path, user_of
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import RightsOf, Route, whole

from .tasks import Done


class Grace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says how long a session outlives the last request that named it."""

    grace_ms: Annotated[
        int, Meta(ge=GRACE_MIN_MS, le=GRACE_MAX_MS, description="Milliseconds.", examples=[30_000])
    ] = GRACE_MS


class MadeSession(msgspec.Struct):
    """Names a session: send its uuid as ``Tidewarden-Session``."""

    session: str
    grace_ms: int


class SessionRoutes:
    """Answers ``/v1/sessions``."""

    def __init__(
        self, queues: Queues, consumers: ClusterConsumers | None, rights: RightsOf
    ) -> None:
        self._queues = queues
        self._consumers = consumers
        self._rights = rights

    async def make(self, request: web.Request) -> web.Response:
        """Make a session, which ends when no request names it for its grace."""
        parameters_of(request, NoOptions)
        grace_ms = (await body_of(request, Grace)).grace_ms
        if self._queues.drain.started:
            raise Draining("This node is going down and lets no session in. Ask another.")
        uuid = await whole(self._queues.unbound.make(user_of(request), grace_ms))
        return respond(MadeSession(uuid, grace_ms))

    async def renew(self, request: web.Request) -> web.Response:
        """Keep a session alive, with this grace from now on."""
        uuid, grace_ms = _uuid(request), (await body_of(request, Grace)).grace_ms
        await whole(self._queues.unbound.renew(user_of(request), uuid, grace_ms))
        return respond(MadeSession(uuid, grace_ms))

    async def end(self, request: web.Request) -> web.Response:
        """
        End a session, of the caller's own or as its administrator: what it holds is ready.

        Connections of RESP that are in it are closed.
        """
        await whole(self._end(user_of(request), _uuid(request), self._rights(request)))
        return respond(Done())

    async def _end(self, user: str, uuid: str, rights: Rights) -> None:
        every, own = rights.allow_every(*ADMIN), True
        try:
            await self._queues.unbound.end(user, uuid)
        except NotFound:  # it is another's, if it is any
            if self._consumers is None or not every:
                raise
            own = False
        if self._consumers is None:
            return
        try:
            ended = await self._consumers.end_session(uuid, "" if every else user)
        except NotFound:  # so it had no connections
            if not own:
                raise
            return
        if ended.unreachable:
            silent = silent_ones(ended.unreachable)
            raise Timeout(f"It has ended, and not all nodes know: {silent}")


def _uuid(request: web.Request) -> str:
    parameters_of(request, NoOptions)
    return name_in_path(request, "session", "A session")


def _end_of(request: web.Request) -> list[bytes]:
    """Return the arguments as SESSION has them where it ends one."""
    return [b"END", request.match_info["session"].encode("utf-8", "surrogateescape")]


ERRORS = (BadArg, NotFound, Full, Stale, StoreDown)
ROUTES = (
    Route(
        "POST", "/v1/sessions", "SESSION", SessionRoutes.make, body=Grace, answer=MadeSession,
        errors=(Draining, *ERRORS),
    ),
    Route(
        "PUT", "/v1/sessions/{session}", "SESSION", SessionRoutes.renew, body=Grace,
        answer=MadeSession, errors=ERRORS,
    ),
    Route(
        "DELETE", "/v1/sessions/{session}", "SESSION", SessionRoutes.end, query=NoOptions,
        answer=Done, errors=(*ERRORS, Timeout), arguments=_end_of,
    ),
)  # fmt: skip
