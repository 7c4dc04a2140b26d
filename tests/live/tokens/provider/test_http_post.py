"""One POST by aiohttp's connections and parser: what it sends, and answers of every form."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.inspect import CONNECT, connector_of, heads_of
from support.providers.raw_provider import OK, provider, server

from tidewarden.clock import SystemClock
from tidewarden.tokens.provider.http_post import HEADS_MAX, HttpPost, LateError, RequestProgress
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, RequestNotSent

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextlib.asynccontextmanager
async def poster(**headers: str) -> AsyncIterator[HttpPost]:
    async with aiohttp.TCPConnector(limit=4) as connector:
        timeout = aiohttp.ClientTimeout(total=None, connect=5, sock_connect=5)
        yield HttpPost(connector, timeout, {"accept": "*/*", **headers}, SystemClock())


async def post(
    made: HttpPost, url: str, body: bytes = b"a=b", coming: RequestProgress | None = None
) -> HttpAnswer:
    async with asyncio.timeout(30):
        return await made.post(url, made.head(url, {}), body, coming or RequestProgress())


async def test_a_request_is_what_the_server_reads() -> None:
    seen = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(OK)

    async with (
        server(talk) as url,
        poster(**{"Transfer-Encoding": "chunked", "x-kind": "a b"}) as made,
    ):
        target = f"{url}/ö?q=1 2"
        head = made.head(target, {"authorization": "Basic x"})
        assert head is made.head(target, {"authorization": "Basic x"})
        assert head != made.head(target, {"authorization": "Basic y"})
        await made.post(target, head, "grüße".encode(), RequestProgress())
        where = url.removeprefix("http://").removesuffix("/token")
    assert seen == [
        f"POST /token/%C3%B6?q=1+2 HTTP/1.1\r\nHost: {where}\r\nAccept: */*\r\nX-Kind: a"
        " b\r\nAuthorization: Basic x\r\nContent-Length: 7\r\n\r\ngrüße".encode()
    ]


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (HEAD + b"Content-Length: 4\r\n\r\nwxyz", b"wxyz"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nwx\r\n2;ext=1\r\nyz\r\n0\r\nTrailer: 1\r\n\r\n", b"wxyz"),
        (HEAD + b"\r\nwxyz", b"wxyz"),
        (b"HTTP/1.0 200 OK\r\n\r\nwxyz", b"wxyz"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + b"Content-Length: 1\r\n\r\nw", b"w"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (HEAD + b"Content-Length: 4\r\nConnection: close\r\n\r\nwxyz", b"wxyz"),
    ],
    ids=["length", "chunked", "until closed", "http 1.0", "interim", "no content", "closing"],
)  # fmt: skip
async def test_every_form_of_an_answer(raw: bytes, body: bytes) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(raw), 7):  # however it comes
            writer.write(raw[at : at + 7])
            await writer.drain()
            await asyncio.sleep(0)
        if b"Content-Length" not in raw and b"chunked" not in raw and b" 204 " not in raw:
            writer.close()

    async with server(talk) as url, poster() as made:
        for _ in range(2):
            assert (await post(made, url)).body == body


async def test_connections_are_kept_unless_the_server_closes_them() -> None:
    peers = []
    closing = b""

    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        writer.write(OK.replace(b"\r\n\r\n", b"\r\n" + closing + b"\r\n", 1))

    async with server(talk) as url, poster() as made:
        await post(made, url)
        closing = b"Connection: close\r\n"
        await post(made, url)
        await post(made, url)
    assert peers[0] == peers[1] != peers[2]


async def test_an_answer_that_nobody_asked_for_is_nobodys() -> None:
    """
    Some servers say 408 on an idle connection; the next request there must not take it for its own.
    """
    requests = []
    answered = asyncio.Event()

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        writer.write(OK)
        if len(requests) == 1:
            await answered.wait()
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n{"access_token":"another"}')

    async with server(talk) as url, poster() as made:
        await post(made, url, b"one")
        ((kept, _),) = next(iter(connector_of(made)._conns.values()))
        answered.set()
        async with asyncio.timeout(30):
            while not kept.should_close:
                await asyncio.sleep(0.01)
        answer = await post(made, url, b"two")
    assert answer.body == b'{"access_token":"a"}'
    assert len(requests) == 2


async def test_a_second_answer_to_one_request_is_dropped() -> None:
    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
        writer.write(one + request[-3:] + (one + b"xxx" if request.endswith(b"one") else b""))

    async with server(talk) as url, poster() as made:
        assert [(await post(made, url, body)).body for body in (b"one", b"two")] == [b"one", b"two"]


async def test_how_far_it_came_is_known_when_it_breaks_off() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Retry-After: 3\r\nContent-Length: 9\r\n\r\nwxyz")
        await writer.drain()
        writer.close()

    coming = RequestProgress()
    async with server(talk) as url, poster() as made:
        with pytest.raises(aiohttp.ClientError):
            await post(made, url, coming=coming)
    assert (coming.status, coming.body, coming.headers["retry-after"]) == (200, b"wxyz", "3")


async def test_what_cannot_be_a_request_is_none() -> None:
    async with poster() as made:
        for url in ("http://[", "ftp://x/"):
            with pytest.raises(aiohttp.InvalidURL):
                made.head(url, {})
        with pytest.raises(ValueError, match="line break"):
            made.head("http://x/", {"Authorization": "a\r\nHost: evil"})
        for number in range(2 * HEADS_MAX):
            assert made.head(f"http://x/{number}", {}).startswith(f"POST /{number} ".encode())
        assert len(heads_of(made)) <= HEADS_MAX
        kept = dict(heads_of(made))
        assert b"Once" in made.head("http://x/", {"Authorization": "Once"}, keep=False)
        assert heads_of(made) == kept


async def test_too_late_is_not_sent_and_the_connection_stays() -> None:
    peers = []

    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        writer.write(OK)

    async with server(talk) as url, poster() as made:
        await post(made, url)
        with pytest.raises(LateError):
            await made.post(
                url, made.head(url, {}), b"late", RequestProgress(), send_by=time.monotonic() - 1
            )
        await post(made, url)
    assert len(peers) == 2
    assert peers[0] == peers[1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(aiohttp.ServerDisconnectedError(), "refused"), (None, "connect_timeout")],
    ids=["closed", "hangs"],
)
async def test_whatever_ends_it_before_it_is_written_was_never_sent(
    error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, known = TokenEndpoint(), provider("http://127.0.0.1:9/", timeout_s=0.1)

    async def connect(_self: HttpPost, _url: str) -> Any:
        if error is not None:
            raise error
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpPost, CONNECT, connect)
    outcome = await exchange.refresh(known, "r-token")
    await exchange.close()
    assert isinstance(outcome, RequestNotSent)
    assert outcome.reason == reason
