"""Who reads at the HTTP door while users are read anew."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.doors.http_site import ALICE, site
from support.inspect import users_read_at


async def reading(subject: Any, count: int) -> None:
    async with asyncio.timeout(20):
        while len(users_read_at(subject.server)) != count:
            await asyncio.sleep(0.01)


@pytest.fixture
def go_on() -> asyncio.Event:
    return asyncio.Event()


async def held(subject: Any, go_on: asyncio.Event) -> None:
    """The tokens answer when ``go_on`` is set."""

    async def wait(*_args: Any, **_more: Any) -> Any:
        await go_on.wait()
        return []

    subject.door.tokens.get = subject.door.tokens.get_many = wait


async def test_who_waits_for_a_token_under_rights_of_before_is_cut_off(
    go_on: asyncio.Event,
) -> None:
    async with site(users=True) as subject:
        await held(subject, go_on)
        bearer = f"Host: x\r\nAuthorization: {ALICE['Authorization']}\r\n"
        body = '{"accounts": ["p/a"], "wait": 3600}'
        streams = []
        for asked in (
            f"GET /v1/tokens/p/a?wait=3600 HTTP/1.1\r\n{bearer}\r\n",
            f"POST /v1/tokens:read HTTP/1.1\r\n{bearer}Content-Length: {len(body)}\r\n\r\n{body}",
        ):
            streams.append(await asyncio.open_connection("127.0.0.1", subject.server.port))
            streams[-1][1].write(asked.encode())
        await reading(subject, 2)
        subject.server.reload({"somebody"})
        assert len(users_read_at(subject.server)) == 2
        subject.server.reload({"admin"})
        for reader, writer in streams:
            async with asyncio.timeout(20):
                assert not await reader.read()  # it hung up
            writer.close()
        await reading(subject, 0)


async def test_who_writes_is_answered(go_on: asyncio.Event) -> None:
    async with site(users=True) as subject:
        began = asyncio.Event()

        async def put(*_args: Any, **_more: Any) -> Any:
            began.set()
            await go_on.wait()
            raise aiohttp.web.HTTPGone

        subject.door.tokens.put_told = put
        asked = asyncio.ensure_future(
            subject.ask("PUT", "/v1/tokens/p/a", headers=ALICE, data=b'{"refresh_token": "r"}')
        )
        await asyncio.wait_for(began.wait(), 20)
        subject.server.reload({"admin"})
        go_on.set()
        assert (await asyncio.wait_for(asked, 20))[0] == 410


async def test_a_node_that_goes_before_its_line_is_open_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = asyncio.Event()
    can_prepare = web.WebSocketResponse.can_prepare

    def hang_up(line: web.WebSocketResponse, request: web.BaseRequest) -> Any:
        assert request.transport is not None
        request.transport.abort()
        gone.set()
        return can_prepare(line, request)

    async def serve(*_: Any) -> None:
        raise AssertionError("nobody is there")

    monkeypatch.setattr(web.WebSocketResponse, "can_prepare", hang_up)
    async with site(lines={"/line": serve}) as subject:
        address = f"http://127.0.0.1:{subject.server.port}/line"
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.ws_connect(address)
        await gone.wait()
    assert "Error handling request" not in caplog.text
