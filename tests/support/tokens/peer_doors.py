"""Nodes' HTTP doors with nothing but what one node asks another."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from support.doors.http_app import serving_app


@contextlib.asynccontextmanager
async def door(
    answer: Callable[[bytes], bytes | Awaitable[bytes | None] | None],
) -> AsyncIterator[str]:
    """A node's HTTP door with nothing but this; yields its address in ``cluster.members``."""

    async def asked(request: web.Request) -> web.Response:
        reply = answer(await request.read())
        if isinstance(reply, Awaitable):
            reply = await reply
        return web.Response(status=403) if reply is None else web.Response(body=reply)

    async with served(asked) as address:
        yield address


@contextlib.asynccontextmanager
async def served(
    asked: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """Likewise, by a handler of one's own."""
    app = web.Application()
    app.router.add_post("/internal/{what}", asked)
    async with serving_app(app) as port:
        yield f"127.0.0.1:{port - 1}"
