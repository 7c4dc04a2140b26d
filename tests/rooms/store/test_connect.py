"""URLs, passwords that stay out of messages, and what is said when the store cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from tidewarden.errors import BadArg, StoreDown
from tidewarden.store.connect import check_url, open_transport, options_of, redact


class Collected(asyncio.Protocol):
    """A protocol that keeps what it is sent."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


class Told(asyncio.Protocol):
    """A protocol that hears when its connection is lost."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://h:7/3", {"host": "h", "port": 7, "db": 3}),
        ("redis://u:p%40ss@h", {"host": "h", "username": "u", "password": "p@ss"}),
        ("unix:///tmp/s?db=2", {"path": "/tmp/s", "db": 2}),
        ("unix:///tmp/s?password=x", {"path": "/tmp/s", "password": "x"}),
    ],
)
def test_the_parts_of_a_url(url: str, found: dict[str, Any]) -> None:
    options = options_of(url)
    options.pop("connection_class", None)
    assert options == found


@pytest.mark.parametrize(
    "url", ["", "h:6379", "http://h", "redis+cluster://h", "redis://h:port", "redis://h:99999999"]
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(BadArg):
        options_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@h:1", "redis://user:secret@h", "rediss://:secret@h/0", "unix:///p/s?password=secret",
        "unix:///p/s?db=1&password=secret&x=y", "redis://h?Password=secret", "redis://u:a@secret@h", "http://u:secret@h",
    ],
)  # fmt: skip
def test_no_password_in_messages(url: str) -> None:
    assert "secret" not in redact(url)


def test_no_password_in_the_refusal_of_a_url() -> None:
    for url in ("http://u:secret@h", "redis://:secret@h:port"):
        with pytest.raises(BadArg) as caught:
            options_of(url)
        assert "secret" not in str(caught.value)


def test_what_has_no_password_is_shown_as_it_is() -> None:
    for url in ("redis://h:1/2", "unix:///tmp/s?db=1"):
        assert redact(url) == url
    assert redact("redis://user:secret@h:1") == "redis://user:…@h:1"


async def test_the_transport_is_ours_after_the_greeting(valkey: Any) -> None:
    protocol = Collected()
    transport, kept = await open_transport(valkey.url + "?db=3", "a-name", protocol)
    transport.write(b"CLIENT GETNAME\r\n")
    until = asyncio.get_running_loop().time() + 10
    while b"a-name" not in protocol.data:
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.001)
    assert protocol.data == b"$6\r\na-name\r\n"
    assert kept is not None
    transport.close()


async def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(StoreDown, match=r"the store at unix://.*none does not answer"):
        await open_transport(f"unix://{tmp_path}/none", "x", Collected())
    with pytest.raises(StoreDown):
        await open_transport("redis://127.0.0.1:1", "x", Collected())


async def test_a_refused_password_is_said_without_it(valkey: Any) -> None:
    with pytest.raises(StoreDown) as caught:
        await open_transport(f"unix://u:hunter2@{valkey.path}", "x", Collected())
    assert "hunter2" not in str(caught.value)
    assert "refuses the login: " in str(caught.value)
    # An embedded one has a password of its own until it is ready for clients, which is no reason to
    # look for a wrong one.
    assert "it is just starting, or else the user and the password in store.url" in str(
        caught.value
    )


@pytest.mark.thorough
def test_a_connection_that_is_lost_at_any_moment_of_its_beginning_is_told_of() -> None:
    """Under uvloop, as the daemon runs: it refuses late writes in words of its own."""
    dice = Random(1)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(0.02)
                for _ in range(dice.randrange(5)):
                    peer.recv(4096)
                    peer.sendall(b"+OK\r\n" * dice.randrange(1, 4))
                if dice.random() < 0.7:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def connect(outcomes: Counter[str]) -> None:
        url = f"redis://:x@127.0.0.1:{server.getsockname()[1]}/0"
        for _ in range(300):
            peer = Told()
            try:
                transport, _kept = await open_transport(url, "n", peer)
            except StoreDown:
                outcomes["refused"] += 1
                continue
            async with asyncio.timeout(30):
                await peer.lost.wait()
            outcomes["lost"] += 1
            transport.abort()

    outcomes: Counter[str] = Counter()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        uvloop.run(connect(outcomes))
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
    assert outcomes["refused"] > 20
    assert outcomes.total() == 300


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "redis://h?ssl_ca_certs=/ca.pem",
            "ssl_ca_certs, which there is not; those of TLS go with rediss",
        ),
        ("redis://h?sockettimeout=3", "sockettimeout, which there is not"),
        ("redis://h?protocol=3", "protocol, which nodes set themselves"),
        ("redis://h?by=7420", "by, which there is not"),
        ("rediss://h?ssl_ca_certs=/no/ca.pem", "ssl_ca_certs is /no/ca.pem, which is not there"),
        ("rediss://h?ssl_cert_reqs=some", "some"),
    ],
)
def test_an_option_that_cannot_be_is_said_before_anything_is_tried(url: str, said: str) -> None:
    with pytest.raises(BadArg, match=re.escape(said)):
        check_url(url)
    check_url("redis://h?socket_timeout=3&db=2")


async def test_what_tls_trusts_is_read_once_and_again_when_its_file_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading it holds up the event loop: after a failover a dozen connections are opened."""
    read: list[None] = []
    make = ssl.create_default_context

    def counted(*args: Any, **named: Any) -> ssl.SSLContext:
        read.append(None)
        return make(*args, **named)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    usual = ssl.get_default_verify_paths().cafile
    assert usual is not None
    authorities = tmp_path / "ca.pem"
    authorities.write_bytes(Path(usual).read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={authorities}"
    for _ in range(3):
        with pytest.raises(StoreDown, match="does not answer"):
            await open_transport(url, "a-name", asyncio.Protocol())
    assert len(read) == 1
    authorities.write_bytes(Path(usual).read_bytes() + b"\n")
    with pytest.raises(StoreDown):
        await open_transport(url, "a-name", asyncio.Protocol())
    assert len(read) == 2
    with pytest.raises(StoreDown):
        await open_transport(url + "&ssl_cert_reqs=none", "a-name", asyncio.Protocol())
    assert len(read) == 3
