"""Finds the user of a request, its session, and the names in its path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg
from tidewarden.queue.sessions.session import Session
from tidewarden.queue.sessions.unbound import UnboundSessions
from tidewarden.server.access.users import DEFAULT_NAME
from tidewarden.server.verbs.options import text
from tidewarden.server.verbs.queue import queue_name

from .params import check_path

RIGHTS: web.RequestKey[Rights] = web.RequestKey("rights", Rights)
USER: web.RequestKey[str] = web.RequestKey("user", str)
SESSION = "Tidewarden-Session"


class SessionHeader(msgspec.Struct, kw_only=True):
    """Names the session in which a request takes and holds."""

    session: (
        Annotated[
            str,
            Meta(
                description="Which holds the leases; absent: they end by their time alone.",
                examples=["2f1c5b9e-7d0a-4c38-9b6e-0a5d3c1e8f42"],
                extra_json_schema={"format": "uuid"},
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.field(name=SESSION, default=msgspec.UNSET)


def user_of(request: web.Request) -> str:
    """Return the user to whom the request's session and leases belong."""
    return request[USER] or DEFAULT_NAME


@asynccontextmanager
async def session_of(request: web.Request, sessions: UnboundSessions) -> AsyncIterator[Session]:
    """
    Join the session in which the request takes and holds, within the block.

    It is the one that the header :data:`SESSION` names, else the user's leases of no connection.
    Raises: BadArg, NotFound, Full, Stale, StoreDown.
    """
    named = request.headers.getall(SESSION, ())
    if len(named) > 1:
        raise BadArg(f"{SESSION} is given twice.")
    if not named:
        yield sessions.of(user_of(request))
        return
    async with sessions.named(user_of(request), named[0]) as session:
        yield session


def name_in_path(request: web.Request, key: str, what: str) -> str:
    """Return a name of the path. Raises: BadArg: it is no UTF-8."""
    check_path(request)
    return text(what, request.match_info[key].encode("utf-8", "surrogateescape"))


def queue_in_path(request: web.Request, key: str = "queue") -> str:
    """Return the path's name of a queue or topic. Raises: BadArg; Denied: it is the system's."""
    return queue_name(name_in_path(request, key, "A queue's name").encode())


def task_in_path(request: web.Request) -> tuple[str, str]:
    """Return the queue and the id of the path. Raises: BadArg, Denied."""
    return queue_in_path(request), name_in_path(request, "id", "An id")
