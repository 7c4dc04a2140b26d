"""Doors that encrypt."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import redis.asyncio
import typer
from support.doors import doubles
from support.providers import certificate
from support.waiting import eventually

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR
from tidewarden.client import AsyncClient
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.config.tls import expiry_of, expiry_warning, fault_of, server_context
from tidewarden.errors import ConfigError
from tidewarden.server import HttpServer
from tidewarden.server.access import admission
from tidewarden.server.resp import connection
from tidewarden.server.resp.server import RespServer

SECRET = doubles.SECRET


@asynccontextmanager
async def doors(cert: str, key: str) -> AsyncIterator[tuple[RespServer, HttpServer]]:
    """Both doors, on free ports, with that certificate."""
    door = doubles.Door(users=(doubles.ADMIN,))
    door.queues.catalog.time = now
    node = replace(door.config.node, tls_cert=cert, tls_key=key)
    parts = (door.services, SystemClock())
    resp = RespServer(replace(door.config, node=node), *parts)
    http = HttpServer(replace(door.config, node=replace(node, base_port=-1)), *parts)
    await resp.start()
    await http.start()
    try:
        yield resp, http
    finally:
        await http.stop(0)
        await resp.stop(0)


async def now() -> list[bytes]:
    return [b"1795258800", b"0"]


@pytest.fixture
def pem(tmp_path: Path) -> tuple[str, str]:
    return certificate.make(tmp_path)


async def peer_certificate(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py_and_httpx_come_in_by_tls(pem: tuple[str, str], protocol: int) -> None:
    async with doors(*pem) as (resp, http):
        options: dict[str, Any] = {
            "username": "admin",
            "password": SECRET,
            "ssl": True,
            "ssl_ca_certs": pem[0],
        }
        async with redis.asyncio.Redis(
            host="127.0.0.1", port=resp.port, protocol=protocol, **options
        ) as client:
            assert await client.execute_command("Q.PUT", "q", "x" * 300_000, "ID", "a") == b"a"
            row = (await client.execute_command("Q.TAKE", "WAIT", 5000, "FROM", "q"))[0]
            assert len(row[3]) == 300_000
        context = ssl.create_default_context(cafile=pem[0])
        headers = {"Authorization": f"Bearer admin:{SECRET}"}
        async with httpx.AsyncClient(verify=context, trust_env=False, headers=headers) as client:
            answer = await client.get(f"https://127.0.0.1:{http.port}/v1/status")
        assert answer.status_code == 200
        assert answer.json()["role"]


async def test_the_sdk_comes_in_by_tls(pem: tuple[str, str]) -> None:
    async with doors(*pem) as (resp, _):
        url = f"rediss://admin:{quote(SECRET)}@127.0.0.1:{resp.port}?ca={pem[0]}"
        async with AsyncClient(url) as client:
            assert await client.queue("q").put(b"x", id="a")


@pytest.mark.thorough
async def test_the_command_line_comes_in_by_tls(
    pem: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    async with doors(*pem) as (resp, _):
        there = f"admin:{quote(SECRET)}@127.0.0.1:{resp.port}"

        def asked(url: str) -> Any:
            with connected(url, Path(DATA_DIR)) as line:
                return line.call("ECHO", "hello")

        assert await asyncio.to_thread(asked, f"rediss://{there}?ca={pem[0]}") == "hello"
        assert (
            await asyncio.to_thread(asked, f"redis://127.0.0.1:1,rediss://{there}?ca={pem[0]}")
            == "hello"
        )
        for wrong, said in (
            (f"redis://{there}", "(a node with a certificate: rediss://…?ca=FILE)"),
            (f"rediss://{there}", "CERTIFICATE_VERIFY_FAILED"),
            (f"rediss://{there}?ca=/nowhere", "No such file"),
            (
                f"rediss://{there}?cafile={pem[0]}",
                "there is no option 'cafile'; allowed: redis://",
            ),
        ):
            with pytest.raises(typer.Exit):
                await asyncio.to_thread(asked, wrong)
            assert said in capsys.readouterr().err


async def test_without_tls_nobody_comes_in(pem: tuple[str, str]) -> None:
    async with doors(*pem) as (resp, http):
        reader, writer = await asyncio.open_connection("127.0.0.1", resp.port)
        writer.write(b"*1\r\n$4\r\nPING\r\n")
        async with asyncio.timeout(20):
            assert b"PONG" not in await reader.read()
        writer.close()
        with pytest.raises(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(f"http://127.0.0.1:{http.port}/health/live")
        assert not resp.context.peers.connections


async def test_a_peer_that_goes_frees_what_it_held(
    pem: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with doors(*pem) as (resp, _):
        context = ssl.create_default_context(cafile=pem[0])
        _, writer = await asyncio.open_connection("127.0.0.1", resp.port, ssl=context)
        writer.write(
            doubles.framed(("AUTH", "admin", SECRET)) + doubles.framed("Q.TAKE WAIT 60000 FROM q")
        )
        async with asyncio.timeout(20):
            await eventually(lambda: resp.context.waiting != 0)
            writer.close()
            while resp.context.peers.connections or resp.context.waiting:
                await asyncio.sleep(0.001)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def open_ends() -> list[tuple[int, int]]:
    """Local and foreign port of each TCP connection of this machine that is established."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(int(row[1][9:], 16), int(row[2][9:], 16)) for row in rows if row[3] in ("01", "08")]


async def test_one_too_many_is_told_and_does_not_linger(
    pem: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it never says goodbye, for which TLS would wait half a minute."""
    monkeypatch.setattr(connection, "LINGER_S", 0.3)

    def silent(port: int) -> tuple[ssl.SSLSocket, bytes]:
        plain = socket.create_connection(("127.0.0.1", port), 20)
        secured = ssl.create_default_context(cafile=pem[0]).wrap_socket(
            plain, server_hostname="127.0.0.1"
        )
        return secured, secured.recv(200)

    async with doors(*pem) as (resp, _):
        resp.context.peers.connections_max = 0
        first, said = await asyncio.to_thread(silent, resp.port)
        with first:
            assert said.startswith(b"-FULL This node has as many connections as it may.")
            async with asyncio.timeout(20):
                while any(ends == (resp.port, first.getsockname()[1]) for ends in open_ends()):
                    await asyncio.sleep(0.05)
                await eventually(lambda: not resp.context.lingering)
        assert resp.own_stats()["refused_total"] == 1


async def test_a_fresh_certificate_is_taken_up_and_an_unfit_one_is_not(
    tmp_path: Path, pem: tuple[str, str]
) -> None:
    fresh = certificate.make(tmp_path, "fresh")
    async with doors(*pem) as (resp, http):
        old = await peer_certificate(resp.port)
        for source, target in zip(fresh, pem, strict=True):
            shutil.copy(source, target)
        resp.reload((doubles.ADMIN,))
        http.reload()
        new = await peer_certificate(resp.port)
        assert new != old
        assert await peer_certificate(http.port) == new
        Path(pem[1]).write_text("rubbish")
        resp.reload((doubles.ADMIN,))
        assert await peer_certificate(resp.port) == new


def test_a_certificate_that_ends_is_told_of_in_time(tmp_path: Path) -> None:
    now_s = SystemClock().unix_ms() / 1000
    for days, said in (
        (30, ""),
        (5, "node.tls_cert expires on "),
        (-2, "node.tls_cert has expired on "),
    ):
        cert, key = certificate.make(tmp_path, str(days), days=days)
        assert not fault_of(cert, key), (
            "it serves all the same: whoever does not look at the date goes on"
        )
        warning = expiry_warning(expiry_of(cert), now_s)
        assert warning.startswith(said)
        assert bool(warning) is bool(said)
    assert expiry_of("") == expiry_of(str(tmp_path / "none")) == expiry_of(key) == 0.0
    assert not expiry_warning(0.0, now_s)


def test_what_is_wrong_with_the_files_is_said(tmp_path: Path, pem: tuple[str, str]) -> None:
    other, locked = (
        certificate.make(tmp_path, "other"),
        certificate.make(tmp_path, "locked", b"word"),
    )
    (tmp_path / "rubbish").write_text("rubbish")
    assert fault_of(*pem) == ""
    assert "belong together" in fault_of(pem[0], other[1])
    assert "belong together" in fault_of(str(tmp_path / "rubbish"), pem[1])
    assert "encrypted" in fault_of(*locked)
    assert "No such file" in fault_of("/no/such", pem[1])
    assert server_context("", "") is None


def test_the_configuration_wants_both_and_fitting(tmp_path: Path, pem: tuple[str, str]) -> None:
    assert load(None, {}, {"node.tls_cert": pem[0], "node.tls_key": pem[1]}).node.tls_cert == pem[0]
    for flags, problem in (
        ({"node.tls_cert": pem[0]}, "node.tls_key: found none; allowed with node.tls_cert"),
        ({"node.tls_key": pem[1]}, "node.tls_cert: found none; allowed with node.tls_key"),
        ({"node.tls_cert": pem[0], "node.tls_key": str(tmp_path)}, "allowed: two PEM files"),
    ):
        with pytest.raises(ConfigError) as found:
            load(None, {}, flags)
        assert problem in str(found.value)


async def test_a_strangers_handshake_is_paid_for_and_a_users_is_given_back(
    pem: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(cafile=pem[0])
    async with doors(*pem) as (resp, _), asyncio.timeout(30):
        ticks = iter(range(1 << 30))
        monkeypatch.setattr(resp.admission, "meter", lambda: next(ticks) * 0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", resp.port, ssl=context)
        writer.write(doubles.framed(("AUTH", "admin", SECRET)))
        assert await reader.readline() == b"+OK\r\n"
        assert resp.admission.budget.left_s(resp.context.clock.monotonic()) == pytest.approx(
            admission.BURST_S, abs=0.001
        )
        before = next(ticks)
        writer.write(doubles.framed(("ECHO", "x" * 500_000)))
        assert len(await reader.readexactly(500_000 + 11)) == 500_011
        assert next(ticks) == before + 1, "its bytes are not measured any more"
        _, unauthenticated = await asyncio.open_connection("127.0.0.1", resp.port, ssl=context)
        # As the last charge left it: what time gives back since does not count.
        assert resp.admission.budget.left_s(0.0) < admission.BURST_S - 0.000_5
        for _ in range(20):
            unauthenticated.write(doubles.framed("PING"))
            await asyncio.sleep(0.001)
        await eventually(lambda: resp.admission.held_total)
        for one in (writer, unauthenticated):
            one.transport.abort()
