"""
The HTTP door's bounds: connections, slow heads, slow and huge bodies, pipelines that nobody reads.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp.http_parser
import pytest
from support.doors import doubles
from support.inspect import (
    admission_of,
    authorization_of,
    cluster_of,
    http_handlers_of,
    is_reading_paused,
    listener_of,
    look_at,
    messages_of,
    payload_read_by,
    stall_of,
    tokens_of,
)
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.errors import NoAuth
from tidewarden.server import HttpServer
from tidewarden.server.access import admission, peer
from tidewarden.server.http import listener
from tidewarden.server.http import server as http
from tidewarden.server.resp.server import RespServer

BEARER = f"Authorization: Bearer admin:{doubles.SECRET}".encode()
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def site(
    *, internal: dict[str, Any] | None = None, **limits: int
) -> AsyncIterator[HttpServer]:
    door = doubles.Door(users=(doubles.ADMIN,))
    node = replace(door.config.node, base_port=-1)  # HTTP's port is 0 then
    config = replace(door.config, node=node, limits=replace(door.config.limits, **limits))
    server = HttpServer(config, door.services, SystemClock(), internal=internal)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)


async def connect(server: HttpServer, sent: bytes = b"") -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    return reader, writer


async def answer(stream: Stream) -> tuple[int, Any]:
    reader, _ = stream
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line[15:])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    body = await reader.readexactly(length)
    return int(head.split()[1]), json.loads(body)


async def ended(stream: Stream, limit_s: float = 10.0) -> None:
    with suppress(ConnectionResetError):  # so it ends for who was still sending
        async with asyncio.timeout(limit_s):
            while await stream[0].read(65_536):
                pass


async def hung_up(*streams: Stream) -> None:
    for _, writer in streams:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def asked(path: bytes) -> bytes:
    """A request of a user's."""
    return b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (path, BEARER)


STATUS = asked(b"/v1/status")


async def test_where_few_places_are_left_nobody_keeps_one_between_requests() -> None:
    async with site(http_connections_max=20) as server:
        inside = [await connect(server, LIVE) for _ in range(18)]
        for one in inside:
            assert (await answer(one))[0] == 200
        for _ in range(4):
            late = await connect(server, LIVE)
            head = await late[0].readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nConnection: close\r\n" in head
            await ended(late)
            await hung_up(late)
        for one in inside:  # there is room again
            one[1].write(LIVE)
            assert (await answer(one))[0] == 200
        await hung_up(*inside)


async def test_one_connection_too_many_is_told_and_the_others_go_on() -> None:
    async with site(http_connections_max=3) as server:
        inside = [await connect(server, LIVE) for _ in range(3)]
        assert [await answer(one) for one in inside] == [(200, {"ok": True, "reason": ""})] * 3
        for _ in range(2):
            late = await connect(server, STATUS)
            status, found = await answer(late)
            assert (status, found["error"]) == (507, "FULL")
            assert "3 HTTP connections" in found["message"]
            assert "limits.http_connections_max" in found["message"]
            await ended(late)
            await hung_up(late)
        for one in inside:
            one[1].write(LIVE)
            assert (await answer(one))[0] == 200
        await hung_up(inside.pop())
        await eventually(lambda: listener_of(server).stats()["connections"] != 3)
        inside.append(await connect(server, STATUS))
        assert (await answer(inside[-1]))[0] == 200
        known = {
            "connections": 3,
            "connections_total": 6,
            "refused_total": 2,
            "strangers_refused_total": 0,
        }
        assert listener_of(server).stats() == known
        await hung_up(*inside)


async def test_health_and_metrics_are_answered_however_full_the_door_is() -> None:
    async with site(http_connections_max=1) as server:
        inside = await connect(server, STATUS)
        assert (await answer(inside))[0] == 200
        for path in b"/health/live", b"/health/ready", b"/leader", b"/metrics":
            late = await connect(server, asked(path))
            head = await late[0].readuntil(b"\r\n\r\n")
            assert head.split()[1] in (b"200", b"503"), path
            assert b"\r\nConnection: close\r\n" in head, path
            await ended(late)
            await hung_up(late)
        inside[1].write(STATUS)
        assert (await answer(inside))[0] == 200
        await hung_up(inside)


async def test_nobody_keeps_the_places_of_health_and_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "BEYOND_MAX", 2)
    async with site(http_connections_max=1) as server:
        inside = await connect(server, STATUS)
        assert (await answer(inside))[0] == 200
        # who says nothing is closed for the next one
        idle = [await connect(server) for _ in range(2)]
        for _ in range(3):
            late = await connect(server, LIVE)
            assert (await answer(late))[0] == 200
            await hung_up(late)
        await hung_up(inside, *idle)
    monkeypatch.setattr(listener, "BEYOND_S", 0.2)
    async with site(http_connections_max=1) as server:
        inside = await connect(server, STATUS)
        assert (await answer(inside))[0] == 200
        idle = [await connect(server)]
        await ended(idle[0])  # and after a while anyway
        assert listener_of(server).stats()["connections"] == 1
        await hung_up(*idle, inside)


async def test_who_drips_a_head_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "IDLE_S", 0.5)
    async with site() as server:
        first, silent = await connect(server), await connect(server)
        second = await connect(server, LIVE)
        assert (await answer(second))[0] == 200

        async def drip(stream: Stream) -> None:
            for byte in LIVE[:-2] * 100:
                stream[1].write(bytes((byte,)))
                await asyncio.sleep(0.05)

        drips = [asyncio.create_task(drip(one)) for one in (first, second)]
        await asyncio.gather(*(ended(one) for one in (first, second, silent)))
        for one in drips:
            one.cancel()
        await asyncio.gather(*drips, return_exceptions=True)
        await hung_up(first, second, silent)


async def test_a_body_that_drips_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_S", 0.2)
    async with site() as server:
        head = (
            b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            + BEARER
            + b"\r\n\r\n{"
        )
        slow = await connect(server, head)
        status, found = await answer(slow)
        assert (status, found["error"]) == (504, "TIMEOUT")
        await hung_up(slow)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_at_the_limit_and_one_byte_more(chunked: bool) -> None:
    async with site(payload_bytes=1000, request_bytes=2000) as server:
        # 400: it was read, and is no account
        for size, status in ((1999, 400), (2000, 400), (2001, 413)):
            how = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size) if chunked else b"x" * size
            head = (
                b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\n" + how + b"\r\n" + BEARER + b"\r\n\r\n"
            )
            stream = await connect(server, head + body)
            found = await answer(stream)
            assert (found[0], found[1]["error"]) == (
                status,
                "TOOBIG" if status == 413 else "BADARG",
            )
            await hung_up(stream)


async def test_an_announced_gigabyte_is_refused_before_it_comes() -> None:
    async with site() as server:
        head = (
            b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n"
            + BEARER
            + b"\r\n\r\n"
        )
        stream = await connect(server, head)
        status, found = await answer(stream)
        assert (status, found["error"]) == (413, "TOOBIG")
        await hung_up(stream)


async def test_a_pipeline_that_nobody_reads_stays_in_its_socket() -> None:
    async with site() as server:
        stream = await connect(server)
        transport = stream[1].transport
        sent = 0
        while transport.get_write_buffer_size() < 1 << 20:  # of which the kernel takes some MiB
            stream[1].write(LIVE * 500)
            sent += 500
            await asyncio.sleep(0)
            assert sent < 1_000_000, "the door reads on and on"
        (handler,) = http_handlers_of(server)
        assert len(messages_of(handler)) < 1000
        other = await connect(server, LIVE)
        assert (await answer(other))[0] == 200
        transport.abort()
        await hung_up(other)


async def test_nobody_waits_for_who_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Who gives up after five seconds and asks again would leave one more behind each time, for as
    long as it said.
    """
    began, ended = asyncio.Event(), asyncio.Event()

    async def waits(*_args: Any, **_more: Any) -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with site() as server:
        monkeypatch.setattr(tokens_of(server), "get", waits)
        stream = await connect(
            server, b"GET /v1/tokens/p/a?wait=3600 HTTP/1.1\r\nHost: x\r\n" + BEARER + b"\r\n\r\n"
        )
        await asyncio.wait_for(began.wait(), 10)
        await hung_up(stream)
        await asyncio.wait_for(ended.wait(), 10)


async def stalled(server: HttpServer) -> Stream:
    """Somebody who asks for more than what lies between can hold, and reads nothing."""
    cluster_of(server).seen["text"] = "x" * (20 << 20)
    stream = await connect(server, b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + BEARER + b"\r\n\r\n")
    await eventually(lambda: any(handler.writing_paused for handler in http_handlers_of(server)))
    return stream


async def test_who_reads_nothing_gives_up_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "STALL_S", 0.2)
    async with site(http_connections_max=1) as server:
        stream = await stalled(server)
        async with asyncio.timeout(20):
            await eventually(lambda: not listener_of(server).stats()["connections"])
        other = await connect(server, LIVE)
        assert (await answer(other))[0] == 200
        stream[1].transport.abort()
        await hung_up(other)


async def test_who_reads_slowly_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as server:
        stream = await stalled(server)
        (handler,) = http_handlers_of(server)
        unread = handler.transport.get_write_buffer_size()
        assert unread > 0
        look_at(handler, unread + 1)  # less than at the last look
        assert not handler.transport.is_closing()
        assert stall_of(handler) is not None
        while handler.writing_paused:
            await stream[0].read(65_536)
        assert stall_of(handler) is None
        stream[1].transport.abort()


async def test_what_is_no_http_is_told_once_and_not_quoted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site() as server:
        for rubbish in (
            b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
            b"GET / HTTP/1.1\r\nAuthorization: Bearer s3cret\x00\r\n\r\n",
        ):
            stream = await connect(server, rubbish)
            status, found = await answer(stream)
            assert (status, found["error"]) == (400, "BADARG")
            assert "s3cret" not in found["message"]
            await ended(stream)
            await hung_up(stream)
        assert listener_of(server).stats()["strangers_refused_total"] == 2
    assert [one for one in caplog.messages if "sent away" in one] == [
        "sent away from the HTTP door: it speaks TLS, which is not set up (node.tls_cert)"
    ]
    assert "s3cret" not in caplog.text


async def test_the_kernel_asks_after_those_who_wait() -> None:
    async with site() as server:
        stream = await connect(server, LIVE)
        assert (await answer(stream))[0] == 200
        (handler,) = http_handlers_of(server)
        accepted = handler.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == peer.KEEPALIVE_IDLE_S
        assert (
            accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == peer.UNANSWERED_MS
        )
        await hung_up(stream)


REFUSED = b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n"


async def test_who_goes_while_its_refused_body_is_awaited_leaves_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site() as server:
        stream = await connect(server, REFUSED + b"x" * 1000)
        assert (await answer(stream))[1]["error"] == "NOAUTH"
        await hung_up(stream)
        async with asyncio.timeout(20):
            await eventually(lambda: not listener_of(server).stats()["connections"])
    assert not [one for one in caplog.records if one.exc_info]


async def test_of_a_strangers_body_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While it is not known yet whether it is one: what comes after a few KiB stays in its socket.
    """
    asked, decided = asyncio.Event(), asyncio.Event()

    async def undecided(*_: Any) -> str:
        asked.set()
        await decided.wait()
        raise NoAuth("Nobody.")

    async with site() as server:
        monkeypatch.setattr(authorization_of(server), "user_of", undecided)
        stream = await connect(server, REFUSED + b"x" * 500_000)
        await asyncio.wait_for(asked.wait(), 10)
        (handler,) = http_handlers_of(server)
        async with asyncio.timeout(20):
            await eventually(lambda: is_reading_paused(handler))
        payload = payload_read_by(handler)
        assert 0 < payload.total_bytes <= 2 * listener.BODY_BUFFER_BYTES + admission.CHUNK_BYTES
        decided.set()
        assert (await answer(stream))[1]["error"] == "NOAUTH"
        stream[1].transport.abort()
        await hung_up(stream)


async def test_a_body_that_comes_before_its_request_begins_is_no_long_head() -> None:
    """
    A request is taken from the queue in one turn and begins in the next; what of its body is read
    between these two is no part of a head.
    """
    pieces = listener.UNAUTHENTICATED_BYTES // 1024 + 4
    head = b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\n%b\r\nContent-Length: %d\r\n\r\n"
    async with site() as server:
        stream = await connect(server)
        while not http_handlers_of(server):
            await asyncio.sleep(0)
        (peer_,) = http_handlers_of(server)
        peer_.data_received(head % (BEARER, 1024 * pieces))
        while messages_of(peer_):
            await asyncio.sleep(0)
        for _ in range(pieces):
            peer_.data_received(b" " * 1024)
        assert (await answer(stream))[0] == 400
        await hung_up(stream)


async def test_who_goes_before_its_body_is_read_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may go while nobody waits for its body, which is asked for then."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def reads(*_: Any) -> str:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        gone.set()
        return "admin"

    async with site() as server:
        monkeypatch.setattr(authorization_of(server), "user_of", reads)
        stream = await connect(server, REFUSED + b"x")
        await asyncio.wait_for(asked.wait(), 10)
        stream[1].transport.abort()
        await asyncio.wait_for(gone.wait(), 10)
        await hung_up(stream)
    assert not caplog.records


async def test_a_head_without_end_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as server:
        stream = await connect(server, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100)
        for _ in range(100):
            stream[1].write(b"a: b\r\n" * 100)
            await asyncio.sleep(0)
        await ended(stream)
        await hung_up(stream)
    assert any("sent away from the HTTP door" in text for text in caplog.messages)


async def test_who_sends_a_head_that_is_too_long_is_told_so() -> None:
    async with site() as server:
        head = b"GET /v1/status HTTP/1.1\r\n" + b"a: b\r\n" * 20
        stream = await connect(server, head + b"cookie: %b\r\n" % (b"c" * 6_000) * 3)
        status, body = await answer(stream)
        assert (status, body["error"]) == (431, "TOOBIG")
        assert "may have 16384 bytes" in body["message"]
        await ended(stream)
        await hung_up(stream)


async def test_a_strangers_requests_are_paid_for_and_a_users_are_not() -> None:
    """
    A load balancer's looks at /health are few enough; a flood of them is answered as the budget
    allows.
    """
    asked = 0
    async with site() as server:
        known, unauthenticated = await connect(server), await connect(server)
        head = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + BEARER + b"\r\n\r\n"
        for _ in range(300):
            known[1].write(head)
            assert (await answer(known))[0] == 200
        assert admission_of(server).held_total == 0
        assert len(admission_of(server)) == 1
        unauthenticated[1].write(LIVE * 2000)
        async with asyncio.timeout(20):
            while not admission_of(server).held_total:
                asked += (await answer(unauthenticated))[0] == 200
        unauthenticated[1].transport.abort()
        await hung_up(known, unauthenticated)
    assert asked < 1000


UPGRADE = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"


async def test_what_stands_behind_a_strangers_upgrade_is_not_read() -> None:
    """
    aiohttp keeps it, and reads it when the request is answered: whoever is there has not paid for
    it.
    """
    async with site() as server:
        unauthenticated = await connect(server, (UPGRADE + b"\r\n") * 200)
        assert (await answer(unauthenticated))[0] == 200
        async with asyncio.timeout(20):
            with suppress(ConnectionResetError):
                assert await unauthenticated[0].read() == b""
        known = await connect(
            server, (UPGRADE + BEARER + b"\r\n\r\n").replace(b"/health/live", b"/v1/status") * 2
        )
        assert [(await answer(known))[0] for _ in range(2)] == [200, 200]
        await hung_up(unauthenticated, known)


PACKED = gzip.compress(bytes(8 << 20), mtime=0)


@pytest.mark.parametrize("path", [b"/health/live", b"/v1/status", b"/v1/peers"])
async def test_a_strangers_body_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    """A kilobyte is a megabyte then: of memory, and of time that it does not pay for."""
    unpacked: list[int] = []
    stock = aiohttp.http_parser.DeflateBuffer.feed_data

    def count(self: Any, chunk: bytes, size: int) -> bool:
        unpacked.append(size)
        return stock(self, chunk, size)

    heard: list[bytes] = []
    monkeypatch.setattr(aiohttp.http_parser.DeflateBuffer, "feed_data", count)
    async with site(internal={"/v1/peers": lambda body: heard.append(body) or b"yes"}) as server:
        body = PACKED[:4000]
        head = (
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        )
        stream = await connect(server, head % (path, len(body)) + body)
        async with asyncio.timeout(20):
            await stream[0].readuntil(b"\r\n\r\n")
        await hung_up(stream)
    assert (unpacked, heard) == ([], [body] if path == b"/v1/peers" else [])


@pytest.mark.parametrize(
    ("encoding", "body", "status", "word"),
    [
        ("gzip", gzip.compress(b'{"refresh_token": "r"}', mtime=0), 200, ""),
        ("X-GZip", gzip.compress(b'{"refresh_token": "r"}', mtime=0), 200, ""),
        ("deflate", zlib.compress(b'{"refresh_token": "r"}'), 200, ""),
        ("deflate", zlib.compress(b'{"refresh_token": "r"}', wbits=-15), 200, ""),
        ("identity", b'{"refresh_token": "r"}', 200, ""),
        ("gzip", gzip.compress(b'{"refresh_token": "r"}', mtime=0)[:-1], 400, "BADARG"),
        ("gzip", gzip.compress(b'{"refresh_token": "r"}', mtime=0) + b"x", 400, "BADARG"),
        ("gzip", b"{}", 400, "BADARG"),
        ("br", b"{}", 400, "BADARG"),
        ("gzip", PACKED, 413, "TOOBIG"),
    ],
)
async def test_a_users_body_is_unpacked_within_bounds(
    encoding: str, body: bytes, status: int, word: str
) -> None:
    async with site() as server:
        how = b"Content-Encoding: %b\r\nContent-Length: %d\r\n" % (encoding.encode(), len(body))
        head = b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\n" + how + BEARER + b"\r\n\r\n"
        stream = await connect(server, head + body)
        found = await answer(stream)
        assert (found[0], found[1].get("error", "")) == (status, word)
        await hung_up(stream)


async def test_both_doors_have_one_admission_control() -> None:
    """One in which nobody is yet counts as nothing where only its truth is asked."""
    door = doubles.Door(users=(doubles.ADMIN,))
    shared = admission.AdmissionControl(SystemClock())
    rooms = door.services, SystemClock()
    assert admission_of(HttpServer(door.config, *rooms, admission=shared)) is shared
    assert RespServer(door.config, *rooms, admission=shared).admission is shared
