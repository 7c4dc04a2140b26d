"""One user takes nothing from another at any door: what it may have is a share of what there is."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from support.doors import doubles
from support.doors.doubles import SECRET, Door, Line
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.config.secret import hash_secret
from tidewarden.server import HttpServer

ANN, BEN = (replace(doubles.ADMIN, name=name) for name in ("ann", "ben"))


async def logged_in(door: Door, user: str) -> Line:
    line = await door.dial()
    assert await line.call("AUTH", user, SECRET) == b"OK"
    return line


async def greedy(door: Door, user: str, *request: str) -> str:
    """Has the user ask for this on one connection after the other until it is refused; how."""
    while True:
        line = await logged_in(door, user)
        held = door.server.context.waiting
        asking = asyncio.ensure_future(line.call(*request))
        while door.server.context.waiting == held:
            done, _ = await asyncio.wait([asking], timeout=0.005)
            if done:
                return str(asking.result())


@pytest.mark.parametrize(
    "request_",
    ["Q.TAKE WAIT 60000 FROM q", "Q.TAKE WAIT 60000 FROM q r", "L.ACQUIRE waits 5 WAIT 600"],
)
async def test_resp_waits(request_: str) -> None:
    async with Door(users=(ANN, BEN), waiting_max=10) as door:
        said = await greedy(door, "ann", *request_.split())
        assert said.startswith("FULL The user ann has 8 requests that wait"), said
        assert "limits.user_share" in said
        assert door.server.context.waiting == 8
        ben = await logged_in(door, "ben")
        ben.send(request_)
        await eventually(lambda: door.server.context.waiting != 8)
        for line in door.lines:
            line.drop()
        await eventually(lambda: not door.server.context.waiting)
        assert door.server.context.limits.waits.by_user == {}


async def test_resp_connections() -> None:
    async with Door(users=(ANN, BEN), connections_max=10) as door:
        lines = [await logged_in(door, "ann") for _ in range(8)]
        late = await door.dial()
        said = str(await late.call("AUTH", "ann", SECRET))
        assert said.startswith("FULL The user ann has 8 RESP connections at this node"), said
        assert "limits.connections_max" in said
        # it is nobody's, and may be another's
        assert str(await late.call("PING")).startswith("NOAUTH")
        assert await late.call("AUTH", "ben", SECRET) == b"OK"
        assert await late.call("PING") == b"PONG"
        # one that logs in again, or becomes nobody, is counted once and no more
        assert await lines[0].call("AUTH", "ann", SECRET) == b"OK"
        assert door.server.context.limits.connections.by_user == {"ann": 8, "ben": 1}
        assert await lines[0].call("RESET") == b"RESET"
        lines[1].drop()
        await eventually(lambda: door.server.context.limits.connections.by_user["ann"] <= 6)
        assert isinstance(await logged_in(door, "ann"), Line)


@asynccontextmanager
async def site(tokens: Any = None, **limits: Any) -> AsyncIterator[tuple[HttpServer, Door]]:
    door = Door(users=(ANN, BEN))
    node = replace(door.config.node, base_port=-1)  # HTTP's port is 0 then
    config = replace(door.config, node=node, limits=replace(door.config.limits, **limits))
    services = door.services if tokens is None else replace(door.services, tokens=tokens)
    server = HttpServer(config, services, SystemClock())
    await server.start()
    try:
        yield server, door
    finally:
        await server.stop(1)


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {user}:{SECRET}"}


class SlowTokens(doubles.RecordingTokens):
    """Never has the token that is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    async def get(self, *_: Any, **__: Any) -> Any:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    async def get_many(self, *_: Any, **__: Any) -> Any:
        return await self.get()


async def gone_while_it_logs_in(port: int) -> None:
    """A peer whose host is reset while its secret is checked, which takes some 50 ms."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.write(b"AUTH ann a-password\r\n")
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.abort()


async def test_logins_of_peers_that_have_gone_take_no_place() -> None:
    """Nobody would give it back: the user would be locked out until the node starts again."""
    ann = replace(ANN, secret_hash=hash_secret("a-password"))
    async with Door(users=(ann, BEN), connections_max=10) as door:
        limits, users = door.server.context.limits, door.server.context.users
        checked = []
        authenticate = users.authenticate

        async def noted(*args: Any) -> str:
            try:
                return await authenticate(*args)
            finally:
                checked.append(args)

        users.authenticate = noted
        await asyncio.gather(*(gone_while_it_logs_in(door.server.port) for _ in range(8)))
        async with asyncio.timeout(60):
            while door.server.context.peers.connections or len(checked) < 8:
                await asyncio.sleep(0.01)
        assert limits.connections.by_user == {}
        line = await door.dial()
        assert await line.call("AUTH", "ann", "a-password") == b"OK"


@pytest.mark.parametrize("many", [False, True])
async def test_token_waits_over_http_leave_the_door_to_others(many: bool) -> None:
    tokens = SlowTokens()
    async with site(tokens, http_connections_max=12) as (server, _):
        url = f"http://127.0.0.1:{server.port}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

            async def wait_for_token() -> tuple[int, Any]:
                asked = (
                    client.post(
                        f"{url}/v1/tokens:read",
                        json={"accounts": ["p/a"], "wait": 3600},
                        headers=bearer("ann"),
                    )
                    if many
                    else client.get(f"{url}/v1/tokens/p/a?wait=3600", headers=bearer("ann"))
                )
                async with asked as answer:
                    return answer.status, await answer.json()

            waiting = [asyncio.ensure_future(wait_for_token()) for _ in range(16)]
            await eventually(lambda: sum(one.done() for one in waiting) + tokens.waiting >= 16)
            refused = [one.result() for one in waiting if one.done()]
            assert (tokens.waiting, len(refused)) == (7, 9)  # of nine that may wait, seven
            assert {(status, found["error"]) for status, found in refused} == {(507, "FULL")}
            for path in "/health/live", "/metrics", "/v1/queues":
                async with client.get(url + path, headers=bearer("ben")) as answer:
                    assert answer.status == 200, path
            for one in waiting:
                one.cancel()
            await eventually(lambda: not tokens.waiting)


async def test_idle_connections_of_http_leave_places_for_others() -> None:
    async with site(http_connections_max=20) as (server, _):

        async def ask(user: str) -> tuple[asyncio.StreamWriter, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            credentials = f"Authorization: Bearer {user}:{SECRET}".encode()
            writer.write(b"GET /v1/queues HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % credentials)
            return writer, await reader.readuntil(b"\r\n\r\n")

        heads = [await ask("ann") for _ in range(17)]
        assert [head.split()[1] for _, head in heads] == [b"200"] * 16 + [b"507"]
        assert b"\r\nConnection: close" in heads[-1][1]
        ben, head = await ask("ben")
        assert head.split()[1] == b"200"
        for writer in [ben, *(writer for writer, _ in heads)]:
            writer.close()
