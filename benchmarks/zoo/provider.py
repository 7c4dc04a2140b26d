"""
A scripted authorization server that knows the truth about every grant.

A scenario says how it answers. It lives by the fast clock, on which lives end and accounts are
late; the one of the tests (``tests/support/providers/scripted_provider.py``) has no clock and
judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from .fast_clock import FastClock

LATENCY_S = 0.2
SOON_S = 60.0
CUT_BYTES = 10
CROWD_AT = 0.5
"""Of the time in which a fleet falls due, from when on the crowd does …"""
CROWD_S = 10.0
"""… within so long."""
WELL, LOST = "well", "lost"


@dataclass(slots=True)
class Grant:
    """An account's grant as its provider knows it. Moments are the clock's seconds."""

    name: str
    expires_s: float
    """When its last access token expires."""
    first_life_s: float = 0.0
    """Life of the pair that its first refresh brings, as of a fleet that has been here for long."""
    number: int = 0
    """Of the refresh token that counts."""
    alive: bool = True
    bad: bool = False
    """Whether the script never lets it succeed: nothing that becomes of it counts as a harm."""
    used_s: float = 0.0
    """When its last refresh token was used."""
    asked: int = 0
    troubled_s: float = -1.0
    """When it was last given another answer than a new pair."""
    not_before_s: float = 0.0
    """Until when it was told to wait (Retry-After)."""
    by_hand: bool = False
    """Somebody has it refreshed by hand, at any time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What is answered in place of a new pair. ``processed``: the pair is made, and nobody is told.
    """

    status: int = 503
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = ""
    """How it is counted; its status where nothing is said."""
    processed: bool = False
    cut: bool = False
    """The connection ends without an answer, or behind the pair."""
    pair: Mapping[str, Any] | None = None
    """The new pair is answered, with this in it."""
    after_s: float = LATENCY_S


Script = Callable[["Book", Grant, float], "Reply | float | None"]
"""
How a request is answered: another reply, or a new pair at once (None) or after so many seconds.
"""


def oauth_error(status: int, error: str, **headers: str) -> Reply:
    """An answer as RFC 6749, 5.2 has it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": error}, named, kind=f"{status} {error}")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the judge sees it."""

    at_s: float
    grant: Grant
    kind: str
    expires_s: float
    """Of the account's token at that moment."""
    open: int
    """Requests under way then, this one included."""


@dataclass(frozen=True, slots=True)
class Late:
    """An account was without a living token."""

    grant: Grant
    from_s: float
    until_s: float
    own: bool
    """
    Whether an answer to itself was the reason: it got another than a pair in this life of its
    token.
    """


class Book:
    """One provider's grants, and all that was asked of it."""

    def __init__(
        self, name: str, clock: FastClock, life_s: float, margin_s: float, grace_s: float = 0.0
    ) -> None:
        self.name = name
        self.clock = clock
        self.life_s = life_s
        self.margin_s = margin_s
        self.grace_s = grace_s
        self.grants: dict[str, Grant] = {}
        self.asked: list[Asked] = []
        self.kinds: Counter[str] = Counter()
        self.lates: list[Late] = []
        self.revoked_for_reuse: list[str] = []
        self.too_soon = 0
        """Requests for an account before the time that it was told to wait for."""
        self.proving = False
        """Every request is answered by a pair, whatever the script says, and none counts."""
        self.open = 0
        self.most_open = 0
        self.script: Script = lambda _book, _grant, _now: None
        self.url = ""

    def add(
        self,
        count: int,
        dice: random.Random,
        *,
        bad: bool = False,
        soon_s: float = SOON_S,
        crowd: float = 0.0,
    ) -> list[Grant]:
        """
        Add grants whose access tokens have mixed ages.

        As many then fall due each second from ``soon_s`` on, but a ``crowd``, that share of them,
        which falls due within seconds.
        """
        now, first, cycle_s = self.clock.now_s(), len(self.grants), self.life_s - self.margin_s
        made = []
        for number in range(count):
            due_s = max(soon_s, cycle_s * dice.random())
            if dice.random() < crowd:
                due_s = max(soon_s, CROWD_AT * cycle_s) + CROWD_S * dice.random()
            # Of such a token's life the margin takes a third at most.
            left_s = due_s + min(self.margin_s, due_s / 2)
            made.append(Grant(f"u{first + number:05}", now + left_s, left_s, bad=bad))
        self.grants |= {grant.name: grant for grant in made}
        return made

    def begin(self) -> None:
        """Forget what was asked until now, and ask the script from now on."""
        self.proving = False
        self.asked, self.lates, self.most_open = [], [], self.open
        self.kinds.clear()
        for grant in self.grants.values():
            grant.asked, grant.troubled_s = 0, -1.0

    @property
    def healthy(self) -> list[Grant]:
        """Those that the script lets live."""
        return [grant for grant in self.grants.values() if grant.alive and not grant.bad]

    def late_now(self) -> list[Grant]:
        """The healthy ones without a living token."""
        now = self.clock.now_s()
        return [grant for grant in self.healthy if grant.expires_s <= now]

    def close_lates(self) -> None:
        """Whoever is late now counts from here on, as if it had been refreshed."""
        now = self.clock.now_s()
        for grant in self.late_now():
            self._late(grant, now)

    def since(self, from_s: float, until_s: float = float("inf")) -> list[Asked]:
        """What was asked within that time."""
        return [one for one in self.asked if from_s <= one.at_s < until_s]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The token endpoint."""
        form = await request.post()
        name, _, number = str(form.get("refresh_token", "")).rpartition(".")
        grant = self.grants.get(name)
        if grant is None:
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._answer(request, grant, int(number))
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, grant: Grant, number: int) -> web.StreamResponse:
        now = self.clock.now_s()
        said = None if self.proving else self.script(self, grant, now)
        after_s = said.after_s if isinstance(said, Reply) else LATENCY_S if said is None else said
        kind = (said.kind or str(said.status)) if isinstance(said, Reply) else WELL
        if not isinstance(said, Reply) and not self._fits(grant, number, now):
            kind = "400 invalid_grant, truly"
        self.asked.append(Asked(now, grant, kind, grant.expires_s, self.open))
        self.kinds[kind] += 1
        grant.asked += 1
        self.too_soon += now < grant.not_before_s and not grant.by_hand
        if isinstance(said, Reply) and (wait_s := said.headers.get("Retry-After")):
            grant.not_before_s = now + float(wait_s)
        pair = None
        if not isinstance(said, Reply) or said.processed or said.pair is not None:
            pair = self._rotate(grant, number, now)
        if isinstance(said, Reply) or pair is None:
            grant.troubled_s = now
        await self.clock.sleep(after_s)
        if isinstance(said, Reply) and said.pair is not None and pair is not None:
            return await self._with_pair(request, said, json.dumps(pair | dict(said.pair)))
        if not isinstance(said, Reply):
            return web.json_response(
                pair or {"error": "invalid_grant"}, status=200 if pair else 400
            )
        if said.cut and request.transport is not None:
            request.transport.abort()
        if isinstance(said.body, str):
            return web.Response(
                status=said.status, text=said.body, headers=said.headers, content_type="text/html"
            )
        return web.json_response(said.body or {}, status=said.status, headers=said.headers)

    async def _with_pair(self, request: web.Request, said: Reply, text: str) -> web.StreamResponse:
        """A pair as the script spoils it; of one that is cut the last bytes never come."""
        if request.transport is None or request.transport.is_closing():  # Its node has ended.
            return web.Response()
        answer = web.StreamResponse(headers=said.headers)
        answer.content_type = "application/json"
        answer.content_length = len(text)
        await answer.prepare(request)
        await answer.write(text.encode()[: -CUT_BYTES if said.cut else None])
        if said.cut and request.transport is not None:
            request.transport.close()
        return answer

    def _fits(self, grant: Grant, number: int, now: float) -> bool:
        again = number == grant.number - 1 and now - grant.used_s <= self.grace_s
        return grant.alive and (number == grant.number or again)

    def _rotate(self, grant: Grant, number: int, now: float) -> dict[str, Any] | None:
        """
        Give a new pair, or the last one again within the grace.

        Any other token ends the grant, as RFC 9700 advises.
        """
        if not grant.alive:
            return None
        if not self._fits(grant, number, now):
            grant.alive = False
            self.revoked_for_reuse.append(grant.name)
            return None
        if number == grant.number:
            self._late(grant, now)
            grant.number += 1
            life_s = grant.first_life_s if self.proving else self.life_s
            grant.used_s, grant.expires_s = now, now + life_s
        return {
            "access_token": f"a-{grant.name}-{grant.number}",
            "token_type": "Bearer",
            "refresh_token": f"{grant.name}.{grant.number}",
            "expires_in": round(grant.expires_s - now),
        }

    def _late(self, grant: Grant, now: float) -> None:
        if now > grant.expires_s and not grant.bad:
            own = grant.troubled_s > grant.expires_s - self.life_s
            self.lates.append(Late(grant, grant.expires_s, now, own))


@contextlib.asynccontextmanager
async def serving(*books: Book) -> AsyncIterator[None]:
    """The token endpoints of these providers, each on a port of its own."""
    async with contextlib.AsyncExitStack() as stack:
        for book in books:
            app = web.Application()
            app.router.add_post("/token", book.handle)
            # What is under way when a node is killed is cut off on our side, too, but goes on being
            # processed.
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            server: Any = site._server
            book.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
        yield
