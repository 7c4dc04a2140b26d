"""
Declares a route of the HTTP door: a path, its handler, and the verb whose permission it shares.

Each module of handlers ends in its table ``ROUTES``. What a route takes and answers stands there as
types, from which bodies are read and ``/v1/openapi.json`` is made.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from tidewarden.config.rights import Rights
from tidewarden.errors import Error, NoQuorum, StoreDown
from tidewarden.server.access.required_rights import OPEN, Permission, Requirement
from tidewarden.server.verbs.table import COMMANDS

Owner = TypeVar("Owner")
Answer = TypeVar("Answer")
Check = Callable[[web.Request, str, Requirement], None]
"""Raises Denied unless the caller has the right to what a request asks for."""
RightsOf = Callable[[web.Request], Rights]
STORE = (StoreDown, NoQuorum)
"""The errors that every route of the store may raise."""
# An account's name and a schedule's may have a slash of their own.
PATTERNS = {
    "{provider}": "{provider:[^/]+}",
    "{account}": "{account:.+}",
    "{name}": "{name:.+}",
    "{file}": "{file:.*}",
}
# Names in paths that are the first argument of the verb, which the permission is for.
SUBJECTS = ("queue", "topic", "lock", "name")

WAITS: web.RequestKey[bool] = web.RequestKey("waits", bool)
"""
A handler sets it, true, on a request that may take as long as its caller says (a long poll), so
that its time is counted among the waits. The time of a stream is counted so anyway.
"""


async def whole(work: Awaitable[Answer]) -> Answer:
    """Finish a change, even if the caller has gone."""
    return await asyncio.shield(asyncio.ensure_future(work))


def arguments_of(request: web.Request) -> list[bytes]:
    """
    Return what a route's path names, where permissions look for the first argument of its verb.

    It is the account (``provider/account``), the provider, or one of :data:`SUBJECTS`.
    """
    found = request.match_info
    if "account" in found:
        name = f"{found['provider']}/{found['account']}"
    else:
        name = next((found[key] for key in ("provider", *SUBJECTS) if key in found), "")
    return [name.encode("utf-8", "surrogateescape")]


@dataclass(frozen=True, slots=True)
class Route(Generic[Owner]):
    """
    Declares one route, as a row of a table.

    Args:
        method: GET answers HEAD, too.
        path: as documents write it.
        verb: the one that does the same, whose permission the route needs; empty: open to all.
        handler: a method of the owner of the table.
        reads: whether it changes nothing, so that it may be cut off when its user's rights change.
        changes: whether a GET changes something all the same, so that it may not.
        head: whether HEAD is answered.
        query: the parameters, as a struct whose fields all have defaults.
        body: what is sent, as a struct or a union of them; bytes: as it is.
        answer: what a success answers; bytes: no JSON.
        status: of a success.
        media: the type of an answer that is no JSON.
        errors: what it may raise, beside what every route may.
        arguments: what its permission is asked for: the arguments of the verb that tell it.
        audit: the verb under which the audit log notes it, where that is another than ``verb``.
        counted: the name under which figures and traffic have it, where it does another thing than
            ``verb``, whose permission it shares.
        headers: of a request, as ``query``; fields are renamed to what is sent.
        example: of a body; None: made of the examples of its fields.
        raw: whether the body may be any bytes, too.
        raw_answer: whether the answer may be any bytes, too, for clients that accept these.
        answer_headers: of a success, with what each says.
        others: statuses beside that of a success that are no errors, with what they answer.
        described: whether it is for programs, and so in ``/v1/openapi.json``.
    """

    method: str
    path: str
    verb: str
    handler: Callable[[Owner, web.Request], Awaitable[web.StreamResponse]]
    reads: bool = False
    changes: bool = False
    head: bool = True
    query: type[msgspec.Struct] | None = None
    body: Any = None
    answer: Any = None
    status: int = 200
    media: str = "application/json"
    errors: tuple[type[Error], ...] = ()
    arguments: Callable[[web.Request], Sequence[bytes]] = arguments_of
    audit: str = ""
    counted: str = ""
    headers: type[msgspec.Struct] | None = None
    example: Any = None
    raw: bool = False
    raw_answer: bool = False
    answer_headers: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[int, Any], ...] = ()
    described: bool = True

    @property
    def permission(self) -> Permission:
        """Return the permission that a caller needs."""
        return COMMANDS[self.verb.encode()].permission if self.verb else OPEN

    @property
    def prefix(self) -> str:
        """Return the path up to its first name."""
        return self.path.partition("/{")[0].partition(":")[0]


def add_routes(router: web.UrlDispatcher, routes: Iterable[Route[Owner]], owner: Owner) -> None:
    """Have ``owner`` answer its routes; of two that fit a request, the first answers."""
    for route in routes:
        path = route.path
        for name, pattern in PATTERNS.items():
            path = path.replace(name, pattern)
        handler = functools.partial(route.handler, owner)
        if route.method == "GET":
            router.add_get(path, handler, allow_head=route.head)
        else:
            router.add_route(route.method, path, handler)
