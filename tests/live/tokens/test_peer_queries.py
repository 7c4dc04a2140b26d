"""
What one node asks another about a refresh whose outcome it does not know: who may ask, and how.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from support.tokens.peer_doors import door, served

from tidewarden.config.load import Cluster, Config, Node
from tidewarden.tokens.journal.journal_records import JournalAnswer
from tidewarden.tokens.journal.peer_queries import (
    PeerReply,
    Peers,
    Question,
    mac_of,
    reply_to,
)
from tidewarden.tokens.vault.key_store import KeyStore

SECRET = "the cluster's"


def test_only_whoever_knows_the_secret_may_ask() -> None:
    mac = mac_of(SECRET)
    body = msgspec.msgpack.encode(Question(b"n" * 16, "q", "a", 1, 2))
    assert mac.question(mac.of(body) + body, Question) == Question(b"n" * 16, "q", "a", 1, 2)
    for raw in (
        b"",
        body,
        mac_of("another").of(body) + body,
        mac.of(body) + body + b"x",
        mac.of(b"x") + b"x",
    ):
        assert mac.question(raw, Question) is None


def test_a_reply_is_to_its_own_question() -> None:
    mac = mac_of(SECRET)
    one, other = (mac.of(body) + body for body in (b"one", b"other"))
    message = reply_to(one, PeerReply("none"), mac)
    assert mac.open(message, b"reply", b"one") is not None
    assert mac.open(message, b"reply", b"other") is None
    assert mac.open(other) == b"other"


def peers_of(address: str, secret: str = SECRET) -> Peers:
    members = {"n0": address, "n1": "127.0.0.1:1"}
    config = Config(cluster=Cluster(name="t", members=members), node=Node(name="n1"))
    return Peers(config, mac_of(secret))


async def test_a_node_that_cannot_be_asked_is_away() -> None:
    mac = mac_of(SECRET)

    def answer(raw: bytes) -> bytes | None:
        question = mac.question(raw, Question)
        return reply_to(raw, PeerReply("busy"), mac) if question is not None else None

    async with door(answer) as address, door(lambda _: b"rubbish") as odd:
        for where, secret, holder, state in (
            (address, SECRET, "n0.1", "busy"),
            (address, "another", "n0.1", "away"),
            (address, SECRET, "n7.1", "away"),
            (odd, SECRET, "n0.1", "away"),
            ("127.0.0.1:8", SECRET, "n0.1", "away"),
        ):
            peers = peers_of(where, secret)
            assert (await peers.ask(holder, "q", "a", 1, 1)).state == state
            await peers.close()


async def test_a_node_that_is_no_member_is_asked_where_it_says_that_it_listens(
    valkey: Any, tmp_path: Path
) -> None:
    """A worker; and whoever has its address now does not answer for it."""
    mac = mac_of(SECRET)
    async with scripted_provider() as endpoint:
        config = Config(cluster=Cluster(name="t"), node=Node(name="w0"))
        async with harness.node(
            valkey,
            tmp_path,
            harness.provider(endpoint.url),
            "w0",
            config=config,
            cluster_secret=SECRET,
            go=False,
        ) as worker:
            key_store = KeyStore(worker.link.call, "t")
            assert await key_store.address_of("w0") == Node().address == "127.0.0.1:7420"
            async with door(worker.tokens.answer_peer) as address:

                async def look_up(node: str) -> str:
                    return {"w0": address, "w1": address}.get(node, "")

                peers = Peers(Config(cluster=Cluster(name="t")), mac, dict, look_up)
                found = [
                    (await peers.ask(holder, "q", "a", 1, 1)).state
                    for holder in ("w0.1", "w1.1", "w2.1")
                ]
                await peers.close()
    assert found == ["none", "away", "away"]


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.5", "10.0.0.5:7420"), ("::1", "[::1]:7420"), ("0.0.0.0", ""), ("::", "")],
)
def test_where_a_node_says_that_it_listens(host: str, address: str) -> None:
    assert Node(host=host).address == address


async def test_a_reply_that_comes_in_pieces_is_heard_whole() -> None:
    mac = mac_of(SECRET)
    long = JournalAnswer(1, "q", "a", 1, 1, b"r" * 9000, 0, 0)

    async def asked(request: web.Request) -> web.StreamResponse:
        body = reply_to(await request.read(), PeerReply("answer", long, 1, b"k"), mac)
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        for at in range(0, len(body), 3000):
            await response.write(body[at : at + 3000])
            await asyncio.sleep(0.05)
        return response

    async with served(asked) as address:
        peers = peers_of(address)
        reply = await peers.ask("n0.1", "q", "a", 1, 1)
        await peers.close()
    assert (reply.state, reply.answer) == ("answer", long)
