"""
One route of the HTTP door: a path, its handler, and the verb whose permission it shares.

Each module of handlers ends in its table ``ROUTES``.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import web

from tidewarden.server.access.required_rights import OPEN, Permission
from tidewarden.server.verbs.table import COMMANDS

Owner = TypeVar("Owner")
# An account's name and a schedule's may have a slash of their own.
PATTERNS = {"{provider}": "{provider:[^/]+}", "{account}": "{account:.+}", "{name}": "{name:.+}"}


@dataclass(frozen=True, slots=True)
class Route(Generic[Owner]):
    """
    A row of a table of routes.

    Args:
        method: GET answers HEAD, too.
        path: as documents write it.
        verb: the one that does the same, whose permission the route needs; empty: open to all.
        handler: a method of the owner of the table.
        reads: whether it changes nothing, so that it may be cut off when its user's rights change.
        head: whether HEAD is answered.
    """

    method: str
    path: str
    verb: str
    handler: Callable[[Owner, web.Request], Awaitable[web.StreamResponse]]
    reads: bool = False
    head: bool = True

    @property
    def permission(self) -> Permission:
        """What a caller needs."""
        return COMMANDS[self.verb.encode()].permission if self.verb else OPEN

    @property
    def prefix(self) -> str:
        """The path up to its first name."""
        return self.path.partition("/{")[0].partition(":")[0]


def add_routes(router: web.UrlDispatcher, routes: Iterable[Route[Owner]], owner: Owner) -> None:
    """Have ``owner`` answer what comes for its routes; of two that fit the first does."""
    for route in routes:
        path = route.path
        for name, pattern in PATTERNS.items():
            path = path.replace(name, pattern)
        handler = functools.partial(route.handler, owner)
        if route.method == "GET":
            router.add_get(path, handler, allow_head=route.head)
        else:
            router.add_route(route.method, path, handler)
