"""``/v1/events``: a stream that goes on where its reader stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.doors.http_site import serving_routes
from support.tokens.harness import tell

from tidewarden.clock import SystemClock
from tidewarden.config.load import Config
from tidewarden.config.rights import Rights
from tidewarden.config.settings import Limits
from tidewarden.errors import StoreDown
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.routes import events as http_events
from tidewarden.server.http.routes.events import ROUTES, EventRoutes
from tidewarden.tokens.events.events import Events
from tidewarden.user_limits import UserLimits


@contextlib.asynccontextmanager
async def door(events: Events, *rights: str, streams_max: int = 200) -> AsyncIterator[str]:
    """The route alone; ``rights`` of the reader: all, unless they are told."""
    limits = UserLimits(Config(limits=Limits(streams_max=streams_max)))
    allowed = Rights(rights or ("all",))
    routes = EventRoutes(events, SystemClock(), LongPolls(limits), lambda _: allowed)
    async with serving_routes(ROUTES, routes) as port:
        yield f"http://127.0.0.1:{port}/v1/events"


async def following(response: aiohttp.ClientResponse) -> tuple[str, str, dict[str, Any]]:
    """Id, kind and data of the next event; comments are passed over."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(20):
        while True:
            line = (await response.content.readline()).decode().removesuffix("\n")
            if not line and "data" in fields:  # An event without data is none (WHATWG HTML, 9.2.6).
                return fields.get("id", ""), fields["event"], json.loads(fields["data"])
            name, colon, value = line.partition(": ")
            if colon and name:
                fields[name] = value


async def test_a_stream_goes_on_where_its_reader_stopped(node: Any) -> None:
    made = await node()
    here, elsewhere = (Events(made.link.call, "t", made.queues.put, {}, 100) for _ in range(2))
    await tell(here, "account.dead", "p", "before")
    async with door(here) as url, aiohttp.ClientSession() as client:
        async with client.get(url) as response:
            assert response.content_type == "text/event-stream"
            assert response.headers["Cache-Control"] == "no-store"
            await response.content.readline()
            await tell(here, "account.failing", "p", "a")
            first = await following(response)
            assert (first[1], first[2]["data"]["account"]) == ("account.failing", "p/a")
            await tell(elsewhere, "account.dead", "p", "b")
            assert (await following(response))[2]["data"]["account"] == "p/b"
        async with client.get(url, headers={"Last-Event-ID": first[0]}) as response:
            assert (await following(response))[2]["data"]["account"] == "p/b"
        async with client.get(url, params={"after": "0"}) as response:
            assert (await following(response))[2]["data"]["account"] == "p/before"
        async with client.get(url, params={"after": "1-1", "types": "account.fail*"}) as response:
            assert (await following(response))[1] == "gap"
            assert (await following(response))[2]["data"]["account"] == "p/a"
        await tell(here, "account.dead", "q", "c")
        async with client.get(url, params={"after": "0", "provider": "q"}) as response:
            assert (await following(response))[2]["data"]["account"] == "q/c"


async def test_a_reader_is_told_of_the_accounts_that_it_may_see(node: Any) -> None:
    made = await node()
    events = Events(made.link.call, "t", made.queues.put, {}, 100)
    for provider, account in (("p", "a"), ("q", "a"), ("p", ""), ("q", ""), ("p", "b"), ("q", "b")):
        await tell(events, "account.dead", provider, account)
    await events.tell_of_cluster("evt_1", "store.primary", 1, {})
    for rights, seen in (
        (("token:read:p/a", "token:write:q"), ["p/a", "q/a", "q", "q/b", ""]),
        (("token:admin:*/b",), ["p/b", "q/b", ""]),
        (("token:read",), ["p/a", "q/a", "p", "q", "p/b", "q/b", ""]),
    ):
        async with (
            door(events, *rights) as url,
            aiohttp.ClientSession() as client,
            client.get(url, params={"after": "0"}) as response,
        ):
            for name in seen:
                data = (await following(response))[2]["data"]
                assert data.get("account", data.get("provider", "")) == name


async def told(response: aiohttp.ClientResponse) -> str:
    """The id that the reader of a stream would come back with, of the next block."""
    async with asyncio.timeout(20):
        while not (line := await response.content.readline()).startswith(b"id: "):
            assert line
    return line.decode().removeprefix("id: ").strip()


async def test_a_reader_knows_where_it_is_before_anything_has_happened(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Else one whose node dies comes back without an id, and misses what happened meanwhile; or is
    told of a gap that is none.
    """
    monkeypatch.setattr(http_events, "BEAT_S", 0.0)
    made = await node()
    events = Events(made.link.call, "t", made.queues.put, {}, 100)
    async with door(events) as url, aiohttp.ClientSession() as client:
        async with client.get(url) as response:
            empty = await told(response)
        await tell(events, "account.dead", "p", "a")
        async with client.get(url, headers={"Last-Event-ID": empty}) as response:
            cursor, _, event = await following(response)
            assert event["data"]["account"] == "p/a"
        async with client.get(url) as response:
            assert await told(response) == cursor
        async with client.get(
            url, params={"after": "0", "provider": "q"}
        ) as response:  # Nothing of it is for this one.
            assert await told(response) == empty
            assert await told(response) == cursor


@pytest.mark.parametrize(
    "query", ["after=x", "after=1-1-1", "type=a", "types=acount.*", "after=-1", "after=0&after=1-1"]
)
async def test_wrong_input(query: str) -> None:
    async with (
        door(None) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}?{query}") as response,
    ):  # type: ignore[arg-type]
        assert (response.status, (await response.json())["error"]) == (400, "BADARG")


@pytest.mark.thorough
async def test_a_stream_outlives_a_store_that_is_away(node: Any) -> None:
    made = await node()
    away = [StoreDown("the store is away")] * 2

    async def call(*words: Any) -> Any:
        if words[0] == "XRANGE" and away:
            raise away.pop()
        return await made.link.call(*words)

    events = Events(call, "t", made.queues.put, {}, 100)
    await tell(events, "account.dead", "p", "a")
    async with (
        door(events) as url,
        aiohttp.ClientSession() as client,
        client.get(url, params={"after": "0"}) as response,
    ):
        assert (await following(response))[2]["data"]["account"] == "p/a"
    assert not away


async def test_a_reader_who_does_not_read_gives_up_its_place(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_events, "STALL_S", 0.3)
    made = await node()
    events = Events(made.link.call, "t", made.queues.put, {}, 1000)
    for n in range(120):
        await events.tell(f"evt_{n}", "account.dead", 1, "p", "a", {"message": "x" * 100_000})
    async with door(events, streams_max=1) as url, aiohttp.ClientSession() as client:
        port = int(url.split(":")[2].split("/")[0])
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")

        async def becomes(status: int) -> None:
            async with asyncio.timeout(20):
                while True:
                    async with client.get(url) as response:
                        if response.status == status:
                            return
                    await asyncio.sleep(0.02)

        await becomes(507)  # It has the only place,
        await becomes(200)  # and loses it.
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_an_answer_to_head_has_no_body_to_wait_for() -> None:
    async with door(None) as url, aiohttp.ClientSession() as client, client.head(url) as response:  # type: ignore[arg-type]
        assert response.status == 405
        assert response.headers["Allow"] == "GET"
        assert await response.read() == b""


async def test_those_who_come_together_are_no_more_than_may(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked, may_go = await node(), asyncio.Event(), asyncio.Event()
    events = Events(made.link.call, "t", made.queues.put, {}, 1000)
    last = events.last

    async def slow() -> str:
        asked.set()
        await may_go.wait()
        return await last()

    monkeypatch.setattr(events, "last", slow)
    async with door(events, streams_max=1) as url, aiohttp.ClientSession() as client:
        first = asyncio.create_task(client.get(url).__aenter__())
        await asked.wait()
        second = asyncio.create_task(client.get(url).__aenter__())
        await asyncio.wait([second], timeout=5)
        may_go.set()
        found = await asyncio.gather(first, second)
        assert [response.status for response in found] == [200, 507]
        for response in found:
            response.close()
