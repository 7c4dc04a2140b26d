"""Strangers at the TLS port of a store, and what its tunnel does for them."""

from __future__ import annotations

import asyncio
import logging
import os
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

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.settings import Node
from tidewarden.errors import ConfigError
from tidewarden.store.embedded import tunnel as module
from tidewarden.store.embedded.tunnel import StoreTunnel, outward_port, store_url, write_upstream

LIMIT_S = 30.0

Scene = Callable[[Coroutine[Any, Any, None]], None]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Site:
    """A tunnel before a store."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.cert, self.key = certificate.make(folder)
        self.node = Node(base_port=free_ports(5), tls_cert=self.cert, tls_key=self.key)
        self.tunnel = StoreTunnel(self.node, folder, Path(store), SystemClock())

    async def dial(self, tls: bool = True) -> Ends:
        context = ssl.create_default_context(cafile=self.cert) if tls else None
        return await asyncio.open_connection("127.0.0.1", self.node.store_port, ssl=context)

    async def served(self) -> None:
        """Somebody is let in, and answered."""
        reader, writer = await self.dial()
        await ping(reader, writer)
        writer.close()


async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"PING\r\n")
    async with asyncio.timeout(LIMIT_S):
        assert await reader.readexactly(7) == b"+PONG\r\n"


async def closed(reader: asyncio.StreamReader) -> None:
    """The other side hangs up."""
    async with asyncio.timeout(LIMIT_S):
        try:
            while await reader.read(65_536):
                pass
        except ConnectionError:
            return


@asynccontextmanager
async def site_of(tmp_path: Path, valkey: Any) -> AsyncIterator[Site]:
    site = Site(tmp_path, valkey.path)
    await site.tunnel.start()
    try:
        yield site
    finally:
        await site.tunnel.stop()
        assert site.tunnel.connections == 0


def test_plain_bytes_are_refused(
    run: Scene, tmp_path: Path, valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with site_of(tmp_path, valkey) as site:
            reader, writer = await site.dial(tls=False)
            writer.write(b"*1\r\n$4\r\nPING\r\n")
            await closed(reader)
            writer.close()
            await site.served()

    run(scene())
    assert "sent away from the store port: it speaks no TLS" in caplog.text


def test_a_stranger_that_says_nothing_is_closed(
    run: Scene,
    tmp_path: Path,
    valkey: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a handshake, and after one."""

    async def scene() -> None:
        async with site_of(tmp_path, valkey) as site:
            for tls in (False, True):
                reader, writer = await site.dial(tls)
                await closed(reader)
                writer.close()
            await eventually(lambda: site.tunnel.connections == 0)

    monkeypatch.setattr(module, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(module, "SAID_S", 0.0)
    run(scene())
    assert "it did not end its TLS handshake within 0.2 s" in caplog.text
    assert "it did not log in within 0.2 s" in caplog.text


async def test_who_has_logged_in_may_be_silent(
    tmp_path: Path, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.5)
    async with site_of(tmp_path, valkey) as site:
        reader, writer = await site.dial()
        await ping(reader, writer)
        idle, idle_writer = await site.dial()
        await closed(idle)  # who came later and said nothing: its time is over
        await ping(reader, writer)
        writer.close()
        idle_writer.close()


async def test_of_too_many_strangers_the_oldest_goes(
    tmp_path: Path, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRANGERS_MAX", 3)
    monkeypatch.setattr(module, "HANDSHAKE_S", 60.0)
    async with site_of(tmp_path, valkey) as site:
        known, known_writer = await site.dial()
        await ping(known, known_writer)
        strangers = [await site.dial(tls=False) for _ in range(3)]
        await site.served()
        await closed(strangers[0][0])
        await ping(known, known_writer)
        for _, writer in (*strangers, (known, known_writer)):
            writer.close()


async def test_errors_of_the_store_let_nobody_in(tmp_path: Path, valkey: Any) -> None:
    guest = module.Guest(module.Door("x", SystemClock(), never, 1), socket.socket(), "a:1")
    with guest.socket:
        assert not guest.hear(b"-NOAUTH Authentication required.\r\n")
        assert not guest.hear(b"-WRONGPASS no\r\n-NOAUTH no\r\n")
        assert guest.hear(b"-NOAUTH Authentication required.\r\n+OK\r\n")


async def never(_: object) -> None:
    raise AssertionError


async def test_a_store_that_is_away_ends_its_callers(tmp_path: Path) -> None:
    site = Site(tmp_path, str(tmp_path / "none"))
    await site.tunnel.start()
    try:
        reader, writer = await site.dial()
        await closed(reader)
        writer.close()
    finally:
        await site.tunnel.stop()


async def test_a_fresh_certificate_counts_for_the_next_connection(
    tmp_path: Path, valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with site_of(tmp_path, valkey) as site:
        old, old_writer = await site.dial()
        await ping(old, old_writer)
        (tmp_path / "fresh").mkdir()
        cert, key = certificate.make(tmp_path / "fresh")
        os.replace(key, site.key)
        await site.served()  # the two do not belong together yet: as before
        os.replace(cert, site.cert)
        await site.served()
        await ping(old, old_writer)
        old_writer.close()
    assert "the certificate of the store's port was not read anew" in caplog.text


async def test_outwards_nothing_is_named_yet(
    tmp_path: Path, valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with site_of(tmp_path, valkey):
        reader, writer = await asyncio.open_connection("127.0.0.1", outward_port(tmp_path))
        await closed(reader)
        writer.close()
    assert "nothing is replicated: no store to follow is named yet" in caplog.text
    with pytest.raises(OSError, match=module.OUTWARD_PORT):
        outward_port(tmp_path)


async def test_outwards_and_inwards_in_one(
    tmp_path: Path, valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A way out that leads to the tunnel's own way in; and one that leads nowhere."""
    async with site_of(tmp_path, valkey) as site:
        for port in (site.node.store_port, free_ports(1)):
            write_upstream(tmp_path, f"127.0.0.1:{port}")
            reader, writer = await asyncio.open_connection("127.0.0.1", outward_port(tmp_path))
            if port == site.node.store_port:
                await ping(reader, writer)
                writer.write_eof()  # TLS has no halves: the whole connection ends
            await closed(reader)
            writer.close()
    assert "the store at 127.0.0.1:" in caplog.text
    assert "cannot be reached" in caplog.text


async def test_a_port_that_is_taken(tmp_path: Path, valkey: Any) -> None:
    site = Site(tmp_path, valkey.path)
    with (
        socket.create_server(("127.0.0.1", site.node.store_port)),
        pytest.raises(ConfigError, match="the store's TLS port"),
    ):
        await site.tunnel.start()


def test_the_url_of_another_nodes_store() -> None:
    plain, own = Node(), Node(tls_cert="/a b/c.pem", tls_key="k")
    assert store_url(plain, "h:7", "daemon", "p@ss") == "redis://daemon:p%40ss@h:7"
    found = "rediss://daemon:p%40ss@h:7?ssl_ca_certs=%2Fa%20b%2Fc.pem"
    assert store_url(own, "h:7", "daemon", "p@ss") == found


@pytest.fixture(
    params=[uvloop.run, pytest.param(asyncio.run, marks=pytest.mark.thorough)],
    ids=["uvloop", "asyncio"],
)
def run(request: pytest.FixtureRequest) -> Scene:
    """In the loop of a store's process, and in that of the tests."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tidewarden.store")
