"""TLS handshakes that fail: bounded in time and number, told in words, and the door goes on."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.providers import certificate
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.config.tls import server_context
from tidewarden.server.access import tls_handshakes as module
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.tls_handshakes import TlsHandshakes


class Echo(asyncio.Protocol):
    """Answers with what it is told. ``alive``: those that have a connection."""

    alive = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        Echo.alive += 1

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        Echo.alive -= 1


class Door:
    def __init__(self, cert: str, key: str, at_once: int = 100) -> None:
        context = server_context(cert, key)
        assert context is not None
        self.mismatches = ProtocolMismatch("RESP", SystemClock())
        self.handshakes = TlsHandshakes(context, lambda: at_once, self.mismatches)
        self.trusted = ssl.create_default_context(cafile=cert)

    async def dial(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def echo(self) -> None:
        """It serves."""
        reader, writer = await self.dial(self.trusted)
        writer.write(b"hello")
        async with asyncio.timeout(20):
            assert await reader.readexactly(5) == b"hello"
        writer.close()

    async def refused(self, count: int) -> None:
        async with asyncio.timeout(20):
            await eventually(lambda: self.mismatches.total >= count)


@asynccontextmanager
async def door(pem: tuple[str, str], at_once: int = 100) -> AsyncIterator[Door]:
    made = Door(*pem, at_once)
    server = await asyncio.get_running_loop().create_server(
        lambda: made.handshakes.meet(Echo), "127.0.0.1", 0
    )
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        async with asyncio.timeout(20):
            await eventually(lambda: not Echo.alive)


@pytest.fixture
def pem(tmp_path: Path) -> tuple[str, str]:
    return certificate.make(tmp_path)


Scene = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Scene:
    """In the loop of the tests, and in that of a node."""
    return request.param  # type: ignore[no-any-return]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text.partition("door: ")[2] for text in caplog.messages if "sent away" in text]


@pytest.mark.parametrize(
    "plain", [b"*1\r\n$4\r\nPING\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100]
)
def test_plain_bytes(
    run: Scene, pem: tuple[str, str], plain: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with door(pem) as subject:
            reader, writer = await subject.dial()
            writer.write(plain)
            async with asyncio.timeout(20):
                assert b"PONG" not in await reader.read()
            writer.close()
            await subject.refused(1)
            await subject.echo()

    run(scene())
    assert said(caplog) == ["it speaks no TLS, and this port nothing else (node.tls_cert is set)"]


def test_a_client_of_an_old_version(
    run: Scene, pem: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A hello of TLS 1.1, by hand: no client of today makes one."""
    suites = b"\x00\x04\xc0\x13\x00\x2f"
    body = b"\x03\x02" + bytes(32) + b"\x00" + suites + b"\x01\x00"
    hello = b"\x01" + len(body).to_bytes(3) + body

    async def scene() -> None:
        async with door(pem) as subject:
            reader, writer = await subject.dial()
            writer.write(b"\x16\x03\x01" + len(hello).to_bytes(2) + hello)
            async with asyncio.timeout(20):
                await reader.read()
            writer.close()
            await subject.refused(1)

    run(scene())
    assert said(caplog) == ["it speaks no TLS of version 1.2 or later"]


def test_a_client_that_does_not_trust_us(
    run: Scene, pem: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def distrust(port: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), 20)
        with plain, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")

    async def scene() -> None:
        async with door(pem) as subject:
            await asyncio.to_thread(distrust, subject.port)
            await subject.refused(1)
            await subject.echo()

    run(scene())
    (why,) = said(caplog)
    assert why.startswith("no TLS handshake with it: ")
    assert "unknown ca" in why


def test_without_a_server_name(run: Scene, pem: tuple[str, str]) -> None:
    """A client that sends no SNI is served: there is one certificate."""

    async def scene() -> None:
        async with door(pem) as subject:
            subject.trusted.check_hostname = False
            context = subject.trusted
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", subject.port, ssl=context, server_hostname=""
            )
            writer.write(b"hello")
            async with asyncio.timeout(20):
                assert await reader.readexactly(5) == b"hello"
            writer.close()

    run(scene())


def test_who_looks_at_the_port_and_goes_is_not_worth_a_word(
    run: Scene, pem: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with door(pem) as subject:
            for _ in range(5):
                _, writer = await subject.dial()
                writer.close()
            async with asyncio.timeout(20):
                await eventually(lambda: not subject.handshakes.under_way)
            await subject.echo()
            assert subject.mismatches.total == 0

    run(scene())
    assert not caplog.messages


def test_the_silent_are_few_and_do_not_stay(
    run: Scene,
    pem: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with door(pem, at_once=3) as subject:
            silent = [await subject.dial() for _ in range(3)]
            async with asyncio.timeout(20):
                await eventually(lambda: len(subject.handshakes.under_way) >= 3)
                late, writer = await subject.dial()
                # an end or a reset, as the kernel has it
                await asyncio.gather(late.read(), return_exceptions=True)
                writer.transport.abort()
            silent[0][1].transport.abort()
            async with asyncio.timeout(20):
                await eventually(lambda: len(subject.handshakes.under_way) != 3)
            await subject.echo()
            for _, writer in silent:
                writer.transport.abort()
        monkeypatch.setattr(module, "HANDSHAKE_S", 0.2)
        async with door(pem) as subject:
            reader, writer = await subject.dial()
            async with asyncio.timeout(20):
                await asyncio.gather(reader.read(), return_exceptions=True)
            writer.transport.abort()
            await subject.refused(1)
            assert not subject.handshakes.under_way

    run(scene())
    assert said(caplog) == [
        "it is one too many: the handshakes of 3 are not over",
        "it did not end its TLS handshake within 0.2 s",
    ]
