"""Dialing: who we are at a node, whose turn it is, and the session that all connections share."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from support.doors import doubles as server_doubles
from support.doors.client_harness import Site, site
from support.growth import entries

from tidewarden.client import AsyncClient
from tidewarden.client.address import parse
from tidewarden.client.endpoints import Endpoints, _others
from tidewarden.clock import SystemClock
from tidewarden.errors import Error, NoAuth, WrongPass

NODES = 2


def nodes_of(*urls: str) -> Endpoints:
    return Endpoints([parse(url) for url in urls], SystemClock(), grace_ms=5000, name="test")


def test_a_failed_node_is_left_once_by_all_who_noticed() -> None:
    nodes = nodes_of("redis://a", "redis://b")
    first = nodes.current()
    nodes.failed(first)
    nodes.failed(first)
    assert nodes.current().host == "b"
    nodes.failed(nodes.current())
    assert nodes.current() is first


async def test_all_connections_share_a_session_and_know_the_stores_clock(here: Site) -> None:
    nodes = nodes_of(*here.urls)
    first = await nodes.dial(nodes.current(), None)
    session = nodes.session
    assert session
    assert abs(nodes.store_ms() - time.time() * 1000) < 10_000  # the store runs on this machine
    nodes.failed(nodes.current())
    second = await nodes.dial(nodes.current(), None)
    assert nodes.session == session
    await first.close()
    await second.close()


async def test_a_session_that_has_ended_is_followed_by_another_once(here: Site) -> None:
    nodes = nodes_of(*here.urls)
    lost: list[str] = []
    nodes.on_session_lost = lambda: lost.append("lost")
    nodes.session = "9f6a2c1e-5b7d-4c55-8a9e-0d6c3a1f2b44"
    made = await asyncio.gather(*(nodes.dial(nodes.current(), None) for _ in range(4)))
    assert lost == ["lost"]
    assert nodes.session != "9f6a2c1e-5b7d-4c55-8a9e-0d6c3a1f2b44"
    for connection in made:
        await connection.close()


async def test_who_we_are(node: Any) -> None:
    async with site(node, users=(server_doubles.ADMIN,)) as guarded:
        port = guarded.doors[0].port
        secret = server_doubles.SECRET.replace("%", "%25").replace(" ", "%20")
        for who in (f"admin:{secret}@", f":{secret}@"):
            async with AsyncClient(f"redis://{who}127.0.0.1:{port}", name="me") as client:
                assert "name=me" in await client.execute("CLIENT", "INFO")
                token = await client.token("shop/42", min_ttl_ms=1000, wait_ms=50)
                assert (token.access_token, token.state, token.generation) == ("at-1", "fresh", 4)
        for who, error in (("admin:wrong@", WrongPass), ("", NoAuth)):
            async with AsyncClient(f"redis://{who}127.0.0.1:{port}") as client:
                with pytest.raises(error):
                    await client.queues()


async def test_a_node_without_sessions_is_named(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = here.doors[0].server.context.commands
    table = {word: commands[word] for word in commands.keys() - {b"SESSION", b"session"}}
    monkeypatch.setattr(here.doors[0].server.context, "commands", table)
    async with AsyncClient(here.urls[:1]) as client:
        with pytest.raises(Error, match="serves no sessions, this SDK needs them"):
            await client.queues()


def learned(host: str) -> dict[str, Any]:
    return {"members": {"far": {"address": f"{host}:7420"}, "any": {"address": "0.0.0.0:7430"}}}


async def test_a_learned_node_that_cannot_be_used_is_forgotten(here: Site) -> None:
    nodes = Endpoints(
        [parse(here.urls[0])], SystemClock(), grace_ms=5000, name="t", chance=random.Random(1)
    )
    (given,) = nodes.addresses
    for number in range(3_000):
        nodes.use(_others(learned(f"10.0.{number // 250}.{number % 250}")["members"], given))
        assert len(nodes.addresses) == 2
        nodes.failed(nodes.current())  # the given one, then the learned one
        assert nodes.current().host.startswith("10.0.")
        nodes.failed(nodes.current())
        assert nodes.addresses == (given,)
    nodes.use(_others(learned("10.0.11.249")["members"], given))
    assert nodes.addresses == (given,)
    assert entries(nodes) < 4_000


async def test_a_learned_node_that_has_served_is_tried_again_after_a_restart(here: Site) -> None:
    nodes = Endpoints(
        [parse("redis://10.0.0.1")], SystemClock(), grace_ms=5000, name="t", chance=random.Random(1)
    )
    (given,) = nodes.addresses
    away, useful = parse("redis://10.0.0.2"), parse(here.urls[0])
    connection = await nodes.dial(useful, None)
    await connection.close()
    nodes.use([useful, away])
    for _ in range(3):  # all are away for a while
        for address in nodes.addresses:
            assert nodes.current() is address
            nodes.failed(address)
    assert nodes.addresses == (given, useful)


def test_many_clients_begin_anywhere() -> None:
    urls = [parse(f"redis://{host}") for host in "abc"]
    first = {
        Endpoints(urls, SystemClock(), grace_ms=5000, name="t", chance=random.Random(seed))
        .current()
        .host
        for seed in range(30)
    }
    assert first == {"a", "b", "c"}
