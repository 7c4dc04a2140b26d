"""
The authorization server of the tests: it notes what it is asked, and answers as it is told.

It serves in the loop of its test, or in a thread of its own. Answers that no server of HTTP can
give come from ``raw_provider``; ``authorization_servers`` starts servers that we did not write. The
zoo has its own (``benchmarks/zoo/provider.py``), which lives by a fast clock.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiohttp import web
from support.doors.http_app import served_in_thread, serving_app
from support.providers.provider_settings import section

Fault = Callable[[web.Request, "ScriptedProvider", str], Awaitable[web.StreamResponse]]
"""
Answers one request; it gets the provider and whom the request is for: the refresh token, or of
another grant the subject or the scope.
"""


@dataclass(frozen=True, slots=True)
class Presented:
    """One use of a refresh token. ``at``: monotonic seconds. ``answer``: new, again, refused."""

    at: float
    account: str
    generation: int
    answer: str


@dataclass
class ScriptedProvider:
    """
    Rotates refresh tokens ``account.n``, which work once; other grants get an access token each.

    A request uses up one of ``faults``; where none is left, ``script`` answers, if there is one.
    """

    client_id: ClassVar[str] = "scripted"
    client_secret: ClassVar[str] = "scripted-secret"

    life_s: float | None = 3600
    grace_s: float = 0.0
    """How long the token that was used last gets the same pair again."""
    any_number: bool = False
    """Refresh tokens of every number are valid, as of accounts that were there before the test."""
    accounts: int = 0
    """How many accounts ``a0``, ``a1``, … are in :attr:`seeds`."""
    current: dict[str, int] = field(default_factory=dict)
    """The number of the refresh token that is valid, by account; of all others it is 0."""
    refused: set[str] = field(default_factory=set)
    """Refresh tokens, subjects and scopes that get ``invalid_grant``."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Members of each answer beside the usual ones."""
    faults: deque[Fault] = field(default_factory=deque)
    script: Fault | None = None
    delay_s: float = 0.0
    """How long each request waits before anything is done."""
    hold: bool = False
    """Requests wait as long as this is set, or until :meth:`let_go`."""
    url: str = ""
    port: int = 0

    held: int = 0
    """How many requests wait because of ``hold``."""
    open: int = 0
    most_open: int = 0
    order: list[str] = field(default_factory=list)
    """Whom the requests were for, one after the other."""
    requests: Counter[str] = field(default_factory=Counter)
    """How many requests came for each."""
    forms: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    log: list[Presented] = field(default_factory=list)
    """The refresh tokens that were used, not those that a fault kept from it."""
    _used_at: dict[str, float] = field(default_factory=dict)
    _granted: int = 0
    _rounds: int = 0

    @property
    def token_url(self) -> str:
        """Its address, by the name that other servers have for it."""
        return self.url

    @property
    def seeds(self) -> dict[str, str]:
        """The first refresh token of each account."""
        return {f"a{number}": f"a{number}.0" for number in range(self.accounts)}

    def let_go(self) -> None:
        """Answer the requests that are held now; those that come later are held again."""
        self._rounds += 1
        self.held = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to the token endpoint."""
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            whose, rotates = await self._noted(request)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._its_turn()
            fault = self.faults.popleft() if self.faults else self.script
            if fault is not None:
                return await fault(request, self, whose)
            if whose in self.refused:
                return web.json_response({"error": "invalid_grant"}, status=400)
            return self.rotate(whose) if rotates else self.grant(whose)
        finally:
            self.open -= 1

    async def _noted(self, request: web.Request) -> tuple[str, bool]:
        """Write the request down; returns whom it is for, and whether it has a refresh token."""
        is_json = request.content_type == "application/json"
        form = await request.json() if is_json else dict(await request.post())
        if "assertion" in form:
            whose = str(claims_of(form["assertion"]).get("sub", "?"))
        else:
            names = ("refresh_token", "subject_token", "scope")
            whose = next((str(form[name]) for name in names if form.get(name)), "client")
        self.forms.append(form)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        self.order.append(whose)
        self.requests[whose] += 1
        return whose, "refresh_token" in form

    async def _its_turn(self) -> None:
        if not self.hold:
            return
        self.held += 1
        rounds = self._rounds
        while self.hold and self._rounds == rounds:
            await asyncio.sleep(0.01)
        if self._rounds == rounds:
            self.held -= 1

    def rotate(self, token: str) -> web.Response:
        """Give the pair that comes after a refresh token, or refuse it."""
        account, _, number = token.rpartition(".")
        now, presented = time.monotonic(), int(number)
        current = presented if self.any_number else self.current.get(account, 0)
        answer = "new" if presented == current else "refused"
        if presented == current - 1 and now - self._used_at.get(account, now) < self.grace_s:
            answer = "again"
        self.log.append(Presented(now, account, presented, answer))
        if answer == "refused":
            return web.json_response({"error": "invalid_grant"}, status=400)
        if answer == "new":
            self.current[account], self._used_at[account] = presented + 1, now
        following = {"refresh_token": f"{account}.{presented + 1}"}
        return self._answer(f"secret-access-{account}-{presented + 1}", following)

    def grant(self, whose: str) -> web.Response:
        """Give the next access token."""
        self._granted += 1
        return self._answer(f"at-{whose}-{self._granted}", {})

    def _answer(self, access_token: str, more: dict[str, Any]) -> web.Response:
        life = {} if self.life_s is None else {"expires_in": self.life_s}
        body = {"access_token": access_token, "token_type": "Bearer"}
        return web.json_response(body | more | life | self.extra)

    def toml(self, port: int, margin_s: float, timeout_s: float = 3.0, *, path: str = "") -> str:
        """
        Return its section of a node's configuration.

        Args: ``port``: where that node reaches it. ``path``: comes behind its URL.
        """
        url, times = f"http://127.0.0.1:{port}/token{path}", {"timeout_s": timeout_s}
        times |= {"grace_s": self.grace_s, "margin_s": margin_s}
        return section("counted", self, url, **times)


def answers(status: int, body: dict[str, Any] | str, **headers: str) -> Fault:
    """Return a fault: this answer."""

    async def fault(_request: web.Request, _by: ScriptedProvider, _whose: str) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=named, content_type="text/html")
        return web.json_response(body, status=status, headers=named)

    return fault


async def cut(request: web.Request, _by: ScriptedProvider, _whose: str) -> web.StreamResponse:
    """Close the connection instead of an answer; the request was not processed."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def rotate_and_cut(
    request: web.Request, provider: ScriptedProvider, token: str
) -> web.StreamResponse:
    """Process the request, and lose the answer."""
    provider.rotate(token)
    return await cut(request, provider, token)


def claims_of(assertion: str) -> dict[str, Any]:
    """Return what a signed statement says; nobody looks at its signature."""
    part = assertion.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


@contextlib.asynccontextmanager
async def scripted_provider(**settings: Any) -> AsyncIterator[ScriptedProvider]:
    """Serve one in this loop."""
    made = ScriptedProvider(**settings)
    app = web.Application()
    app.router.add_post("/{path:.*}", made.handle)
    async with serving_app(app) as made.port:
        made.url = f"http://127.0.0.1:{made.port}/token"
        yield made


def provider_in_thread(
    accounts: int, life_s: float, grace_s: float = 600.0
) -> contextlib.AbstractContextManager[ScriptedProvider]:
    """Serve one that is never late for what its test does."""
    settings = {"accounts": accounts, "life_s": life_s, "grace_s": grace_s}
    return served_in_thread(scripted_provider(**settings))
