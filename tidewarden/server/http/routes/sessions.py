"""Serves sessions, with which leases of HTTP end when their consumer falls silent."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.errors import BadArg, Draining, Full, NotFound, Stale, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.sessions.sessions import GRACE_MAX_MS, GRACE_MS
from tidewarden.queue.sessions.unbound import GRACE_MIN_MS
from tidewarden.server.http.caller import name_in_path, user_of
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route, whole

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

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

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
        """End a session: what it holds is ready again."""
        await whole(self._queues.unbound.end(user_of(request), _uuid(request)))
        return respond(Done())


def _uuid(request: web.Request) -> str:
    parameters_of(request, NoOptions)
    return name_in_path(request, "session", "A session")


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
        answer=Done, errors=ERRORS,
    ),
)  # fmt: skip
