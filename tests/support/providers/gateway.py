"""
What stands between the nodes and their authorization servers in a test: it holds one account's
request, or its answer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs, quote_plus

import aiohttp
from aiohttp import web
from support.doors.http_app import served_in_thread, serving_app

NEXT_SECRET = "the-next-secret"


class Gateway:
    """
    A door of HTTP before several servers: ``/NAME/token`` is the token endpoint of the server of
    that name.

    ``plan``: refresh token -> ``sent`` (its request is held, and never arrives) or ``answered``
    (its answer is held). Each is done once. ``held``: the tokens for which it is done just now.
    ``away``: no request arrives. ``rolled``: who comes by ``/NAME/token?rolled`` has to show
    ``NEXT_SECRET``; the server is shown the one that it knows.
    """

    def __init__(self, servers: Mapping[str, Any]) -> None:
        self.plan: dict[str, str] = {}
        self.held: set[str] = set()
        self.away = False
        self.rolled = False
        self.url = ""
        self._servers = dict(servers)
        self._free = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._session: aiohttp.ClientSession

    def release(self) -> None:
        """Let go what is held: requests are lost, answers delivered."""
        self._loop.call_soon_threadsafe(self._free.set)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Gateway]:
        """Serve in this loop."""
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_post("/{name}/token", self._token)
        session = aiohttp.ClientSession(trust_env=False)
        async with session as self._session, serving_app(app) as port:
            self.url = f"http://127.0.0.1:{port}"
            try:
                yield self
            finally:
                self._free.set()

    async def _token(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        token = parse_qs(body.decode())["refresh_token"][0]
        step = self.plan.pop(token, "")
        if self.away or step == "sent":
            if step:
                await self._hold(token)
            return self._cut(request)
        server = self._servers[request.match_info["name"]]
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
        if self.rolled and request.query_string:
            if headers["Authorization"] != _basic(server.client_id, NEXT_SECRET):
                return web.json_response({"error": "invalid_client"}, status=401)
            headers["Authorization"] = _basic(server.client_id, server.client_secret)
        async with self._session.post(server.token_url, data=body, headers=headers) as response:
            answer = await response.read()
        if step:
            await self._hold(token)
        kept = {
            name: response.headers[name]
            for name in ("Content-Type", "Retry-After", "Date")
            if name in response.headers
        }
        return web.Response(status=response.status, body=answer, headers=kept)

    def _cut(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _hold(self, token: str) -> None:
        self._free.clear()
        self.held.add(token)
        await self._free.wait()
        self.held.discard(token)


def _basic(client_id: str, secret: str) -> str:
    return (
        "Basic "
        + base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()
    )


def gateway(servers: Mapping[str, Any]) -> contextlib.AbstractContextManager[Gateway]:
    """Serve one in a thread of its own."""
    return served_in_thread(Gateway(servers).serving())
