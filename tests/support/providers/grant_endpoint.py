"""
A token endpoint of ours for grants without refresh tokens: it notes what comes, and answers as it
is told.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support.doors.http_app import serving_app
from support.tokens.harness import Endpoint, Fault


@dataclass
class Grantor(Endpoint):
    """Answers each request with another access token; ``faults`` are used up one a request."""

    forms: list[dict[str, str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """Subjects, scopes or subject tokens that get ``invalid_grant``."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Members of each answer beside the usual ones."""
    asked: Counter[str] = field(default_factory=Counter)
    """Requests by whom they were for."""
    made: int = 0
    """Access tokens that were given."""

    holding: bool = False
    """Each request waits until it is let go, see :meth:`let_go`."""
    waiting: list[asyncio.Event] = field(default_factory=list)

    def let_go(self) -> None:
        """Answer those that wait now."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        form = (
            await request.json()
            if request.content_type == "application/json"
            else dict(await request.post())
        )
        self.forms.append(form)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        whose = self._whose(form)
        self.asked[whose] += 1
        if self.holding:
            self.waiting.append(turn := asyncio.Event())
            await turn.wait()
        if self.faults:
            fault: Fault = self.faults.popleft()
            return await fault(request, self, whose)
        if whose in self.refused:
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.made += 1
        body = {
            "access_token": f"at-{whose}-{self.made}",
            "token_type": "Bearer",
            "expires_in": self.life_s,
        }
        return web.json_response(body | self.extra)

    def _whose(self, form: dict[str, str]) -> str:
        if "assertion" in form:
            return str(claims_of(form["assertion"]).get("sub", "?"))
        return form.get("subject_token") or form.get("scope") or "client"


def claims_of(assertion: str) -> dict[str, Any]:
    """What a signed statement says; nobody looks at its signature."""
    part = assertion.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


@contextlib.asynccontextmanager
async def grantor(**settings: Any) -> AsyncIterator[Grantor]:
    """A running one."""
    made = Grantor(**settings)
    app = web.Application()
    app.router.add_post("/token", made.handle)
    app.router.add_post("/token/{whose}", made.handle)
    made.faults = deque(made.faults)
    async with serving_app(app) as port:
        made.url = f"http://127.0.0.1:{port}/token"
        yield made
