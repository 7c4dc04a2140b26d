"""Notes reads and changes by HTTP requests in the audit log, as their verbs are noted."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from tidewarden.server.access.peer import peer_of
from tidewarden.server.audit.audit_log import AuditLog
from tidewarden.server.audit.audited import Audited, noted
from tidewarden.server.verbs.table import COMMANDS

from .authorization import method_of
from .route import Route

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
READING = "T.GET"


class HttpAudit:
    """
    Notes requests of one HTTP door.

    Args:
        audit: None: nothing is noted.
        routes: by method and path.
    """

    def __init__(
        self, audit: AuditLog | None, routes: Mapping[tuple[str, str], Route[Any]]
    ) -> None:
        self._audit = audit
        self._routes = routes

    async def answer(self, request: web.Request, user: str, handler: Handler) -> web.StreamResponse:
        """Return the answer of ``handler`` to ``user``, and note the request."""
        resource = request.match_info.route.resource
        if self._audit is None or resource is None:
            return await handler(request)
        method = method_of(request)
        route = self._routes.get((method, resource.canonical))
        if route is None:
            return await handler(request)
        verb = route.audit or route.verb
        if verb == READING and method == "GET":
            answer = await handler(request)
            self._audit.read(user, route.arguments(request)[0].decode("utf-8", "backslashreplace"))
            return answer
        command = COMMANDS.get(verb.encode())
        rule = None if command is None else command.audited
        if rule is None or (method == "GET" and not rule.reads):
            return await handler(request)
        if rule.word and rule.word not in route.arguments(request):
            return await handler(request)
        words = await self._shown(request, route, rule)
        note = functools.partial(
            rule.note, self._audit, user, peer_of(request.transport), verb, words
        )
        found: web.StreamResponse = await noted(handler(request), note)
        return found

    def reader(self, user: str) -> Callable[[str], None] | None:
        """Return the callback for each account whose token ``user`` reads; None: none is noted."""
        return None if self._audit is None else functools.partial(self._audit.read, user)

    @staticmethod
    async def _shown(request: web.Request, route: Route[Any], rule: Audited) -> list[bytes]:
        words = [name for name in route.arguments(request) if name]
        if rule.every_word:
            words.append(f"{request.method} {request.path_qs}".encode())
            if request.body_exists and (body := await request.read()):
                words.append(body)
        if rule.of_body is not None and request.body_exists:
            words.extend(text.encode() for text in rule.of_body(await request.read()))
        return words
