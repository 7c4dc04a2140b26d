"""``/v1/events``: a stream that goes on where its reader stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tidewarden.clock import SystemClock
from tidewarden.errors import Error, StoreDown
from tidewarden.server.http_events import EventRoutes
from tidewarden.server.replying import problem
from tidewarden.tokens.events import Events


@contextlib.asynccontextmanager
async def door(events: Events) -> AsyncIterator[str]:
    """The route alone."""

    @web.middleware
    async def errors(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)
        except Error as error:
            return problem(error)

    app = web.Application(middlewares=[errors])
    EventRoutes(events, SystemClock()).add_to(app.router)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/events"
    finally:
        await runner.cleanup()


async def following(response: aiohttp.ClientResponse) -> tuple[str, str, dict[str, Any]]:
    """Id, kind and data of the next event; comments are passed over."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(20):
        while True:
            line = (await response.content.readline()).decode().removesuffix("\n")
            if not line and fields:
                return fields.get("id", ""), fields["event"], json.loads(fields["data"])
            name, colon, value = line.partition(": ")
            if colon and name:
                fields[name] = value


async def test_a_stream_goes_on_where_its_reader_stopped(node: Any, eventually: Any) -> None:
    made = await node()
    here, elsewhere = (Events(made.link.call, "t", made.queues.put, {}, SystemClock(), 100) for _ in range(2))
    running = [asyncio.create_task(events.run()) for events in (here, elsewhere)]
    here.emit("account.dead", "p", "before")
    await eventually(lambda: not here._waiting)
    async with door(here) as url, aiohttp.ClientSession() as client:
        async with client.get(url) as response:
            assert response.content_type == "text/event-stream"
            assert response.headers["Cache-Control"] == "no-store"
            await response.content.readline()
            here.emit("account.failing", "p", "a")
            first = await following(response)
            assert (first[1], first[2]["data"]["account"]) == ("account.failing", "p/a")
            elsewhere.emit("account.dead", "p", "b")
            assert (await following(response))[2]["data"]["account"] == "p/b"
        async with client.get(url, headers={"Last-Event-ID": first[0]}) as response:
            assert (await following(response))[2]["data"]["account"] == "p/b"
        async with client.get(url, params={"after": "0"}) as response:
            assert (await following(response))[2]["data"]["account"] == "p/before"
        async with client.get(url, params={"after": "1-1", "types": "account.fail*"}) as response:
            assert (await following(response))[1] == "gap"
            assert (await following(response))[2]["data"]["account"] == "p/a"
        here.emit("account.dead", "q", "c")
        async with client.get(url, params={"after": "0", "provider": "q"}) as response:
            assert (await following(response))[2]["data"]["account"] == "q/c"
    for task in running:
        task.cancel()


@pytest.mark.parametrize("query", ["after=x", "after=1-1-1", "type=a", "types=acount.*", "after=-1"])
async def test_wrong_input(query: str) -> None:
    async with door(None) as url, aiohttp.ClientSession() as client, client.get(f"{url}?{query}") as response:  # type: ignore[arg-type]
        assert (response.status, (await response.json())["error"]) == (400, "BADARG")


async def test_a_stream_outlives_a_store_that_is_away(node: Any) -> None:
    made = await node()
    away = [StoreDown("the store is away")] * 2

    async def call(*words: Any) -> Any:
        if words[0] == "XRANGE" and away:
            raise away.pop()
        return await made.link.call(*words)

    events = Events(call, "t", made.queues.put, {}, SystemClock(), 100)
    events.emit("account.dead", "p", "a")
    await events.stop()
    async with (
        door(events) as url,
        aiohttp.ClientSession() as client,
        client.get(url, params={"after": "0"}) as response,
    ):
        assert (await following(response))[2]["data"]["account"] == "p/a"
    assert not away
