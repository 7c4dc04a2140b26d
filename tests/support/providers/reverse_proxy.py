"""
A reverse proxy before authorization servers, which now and then answers token requests in their
stead, as rules have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any
from urllib.parse import parse_qs

import aiohttp
from aiohttp import web
from support.doors.http_app import served_in_thread, serving_app

PASSED_ON = ("Content-Type", "Retry-After", "Date", "WWW-Authenticate")


@dataclass
class Rule:
    """
    What befalls token requests while it is among the rules of their provider.

    ``status``: the answer's, with ``body`` (text: a page of HTML, a dict: JSON) and ``headers``; 0:
    as the server answers. ``passed``: the server gets the request all the same, and its answer is
    thrown away. ``cut``: the connection ends instead of an answer. ``delay_s``: before anything
    else. ``accounts``: whose requests, None: everybody's. ``share`` of them, ``times`` in all (0:
    without end).
    """

    status: int = 0
    body: str | Mapping[str, Any] = "<html><body>Bad gateway</body></html>"
    headers: Mapping[str, str] = field(default_factory=dict)
    passed: bool = False
    cut: bool = False
    delay_s: float = 0.0
    accounts: Collection[str] | None = None
    share: float = 1.0
    times: int = 0
    hits: int = 0
    """How often it was followed."""

    def meets(self, account: str, dice: Random) -> bool:
        """Whether it is followed with a request of this account."""
        if self.accounts is not None and account not in self.accounts:
            return False
        if self.times and self.hits >= self.times:
            return False
        if self.share < 1 and dice.random() >= self.share:
            return False
        self.hits += 1
        return True


def refusal(error: str, status: int = 400, **rule: Any) -> Rule:
    """A rule by which requests are refused with this word of RFC 6749."""
    return Rule(status, {"error": error, "error_description": "so says the proxy"}, **rule)


@dataclass(frozen=True, slots=True)
class Asked:
    """
    One token request. ``begun``, ``ended``: monotonic seconds. ``status``: of the answer, 0: cut.
    ``own``: it was the server's.
    """

    begun: float
    ended: float
    provider: str
    account: str
    generation: int
    """Of the refresh token, 0: the first."""
    status: int
    own: bool


class ReverseProxy:
    """
    A door of HTTP: ``/NAME/token`` is the token endpoint of one server for the provider of that
    name, by ``rules[NAME]``, the first that is met.

    ``log``: all that was asked. ``most_open``: how many requests of a provider were under way at a
    time since :meth:`mark`.
    """

    def __init__(self, server: Any, seed: int = 1) -> None:
        self.rules: dict[str, list[Rule]] = {}
        self.log: list[Asked] = []
        self.most_open: Counter[str] = Counter()
        self.url = ""
        self._server = server
        self._dice = Random(seed)
        self._known = {token: (account, 0) for account, token in server.seeds}
        self._open: Counter[str] = Counter()
        self._session: aiohttp.ClientSession

    # What a test looks at.

    def asked(self, provider: str, since: float = 0.0) -> list[Asked]:
        """
        What was asked of it from that moment on (monotonic seconds), in the order of the answers.
        """
        return [one for one in self.log if one.provider == provider and one.begun >= since]

    def answers(self, provider: str, since: float = 0.0) -> Counter[int]:
        """How often it was answered with each status."""
        return Counter(one.status for one in self.asked(provider, since))

    def refreshed(self, provider: str) -> dict[str, list[float]]:
        """When each account was answered well, monotonic seconds."""
        found: dict[str, list[float]] = {}
        for one in self.asked(provider):
            if one.status == 200:
                found.setdefault(one.account, []).append(one.ended)
        return found

    def mark(self) -> float:
        """Count from now on how many are under way at a time; the moment."""
        self.most_open.clear()
        return time.monotonic()

    # Its work.

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ReverseProxy]:
        """Serve in this loop."""
        app = web.Application()
        app.router.add_post("/{name}/token", self._token)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(trust_env=False, connector=connector) as self._session,
            serving_app(app, backlog=512) as port,
        ):
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _token(self, request: web.Request) -> web.StreamResponse:
        begun = time.monotonic()
        name, body = request.match_info["name"], await request.read()
        token = parse_qs(body.decode()).get("refresh_token", [""])[0]
        account, generation = self._known.get(token, ("?", -1))
        self._open[name] += 1
        self.most_open[name] = max(self.most_open[name], self._open[name])
        try:
            response, own = await self._answer(request, name, account, body, token)
        finally:
            self._open[name] -= 1
        status = response.status if response is not None else 0
        self.log.append(Asked(begun, time.monotonic(), name, account, generation, status, own))
        if response is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return response

    async def _answer(
        self, request: web.Request, name: str, account: str, body: bytes, token: str
    ) -> tuple[web.Response | None, bool]:
        """The answer, None: the connection is cut; and whether it is the server's own."""
        rule = next(
            (one for one in self.rules.get(name, ()) if one.meets(account, self._dice)), None
        )
        if rule is None:
            return await self._pass_on(request, body, token), True
        if rule.delay_s:
            await asyncio.sleep(rule.delay_s)
        if rule.passed or not (rule.status or rule.cut):
            answer = await self._pass_on(request, body, token)
            if not (rule.status or rule.cut):
                return answer, True
        return (None if rule.cut else _answer_of(rule)), False

    async def _pass_on(self, request: web.Request, body: bytes, token: str) -> web.Response:
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
        async with self._session.post(
            self._server.token_url, data=body, headers=headers
        ) as response:
            answer = await response.read()
        if response.status == 200 and token in self._known:
            account, generation = self._known[token]
            self._known[json.loads(answer)["refresh_token"]] = (account, generation + 1)
        kept = {name: response.headers[name] for name in PASSED_ON if name in response.headers}
        return web.Response(status=response.status, body=answer, headers=kept)


def _answer_of(rule: Rule) -> web.Response:
    if isinstance(rule.body, str):
        return web.Response(
            status=rule.status, text=rule.body, content_type="text/html", headers=rule.headers
        )
    return web.json_response(rule.body, status=rule.status, headers=rule.headers)


def reverse_proxy(server: Any, seed: int = 1) -> contextlib.AbstractContextManager[ReverseProxy]:
    """Serve one in a thread of its own."""
    return served_in_thread(ReverseProxy(server, seed).serving())


def lateness(
    times: Mapping[str, Iterable[float]], began: float, ended: float, life_s: float
) -> dict[str, float]:
    """
    Accounts that were without a living token at some time between the moments: by how many seconds,
    at the worst.

    ``times``: when each got a token that lived so long; ``began``: when all of them had one.
    """
    found = {}
    for account, moments in times.items():
        marks = [began, *(at for at in moments if began < at < ended), ended]
        worst = max(after - before for before, after in pairwise(marks)) - life_s
        if worst > 0:
            found[account] = worst
    return found
