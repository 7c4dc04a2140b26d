"""
A provider that was put, whose name turns out to be an address of this machine: nobody connects.

What counts is the address at each connection, not what the name was when the provider was put.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.providers.raw_provider import asked, provider

from tidewarden.config.egress import Reach, reach_of
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, RequestNotSent

NAME = "rebound.example"


@dataclass
class Inside:
    """A server of this machine that counts its connections, and says what nobody may read."""

    port: int = 0
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read(1)
        body = json.dumps({"access_token": "inside", "issuer": f"http://127.0.0.1:{self.port}"})
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def inside(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inside]:
    """NAME resolves to that server's address, as the DNS of an attacker would say."""
    found = Inside()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    resolve = socket.getaddrinfo

    def rebound(host: Any, *args: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if host == NAME else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    yield found
    server.close()
    await server.wait_closed()


async def test_a_name_that_leads_inside_is_not_connected_to(inside: Inside) -> None:
    one = replace(provider(f"https://{NAME}:{inside.port}/token"), reach=Reach())
    outcome = await asked(one)
    assert isinstance(outcome, RequestNotSent)
    assert outcome.reason == "misconfigured"
    assert "has an address that is not public" in outcome.message
    assert inside.connections == 0
    # Of the configuration file it may: here TLS fails, so there was a connection.
    assert (await asked(replace(one, reach=None))).reason == "tls"
    assert inside.connections == 1


async def test_every_address_that_leads_inside_says_the_same_open_or_not(inside: Inside) -> None:
    messages = set()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for where in (f"https://{NAME}:{inside.port}", f"https://{NAME}:{port}"):
        one = replace(provider(f"{where}/token"), reach=Reach())
        messages.add((await asked(one)).message)
    for where in (f"http://127.0.0.1:{inside.port}", f"https://127.0.0.1:{port}"):
        one = replace(provider(f"{where}/token"), reach=Reach())
        outcome = await asked(one)
        assert isinstance(outcome, RequestNotSent)
        assert outcome.reason == "misconfigured"
        assert "found an address that is not public" in outcome.message
    assert len(messages) == 1
    assert inside.connections == 0


async def test_metadata_and_revocation_lead_nowhere_inside_either(inside: Inside) -> None:
    base = provider("")
    for issuer in (f"https://{NAME}:{inside.port}", f"http://127.0.0.1:{inside.port}"):
        one = replace(base, token_url="", issuer=issuer, plain_http=True, reach=Reach())
        outcome = await asked(one)
        assert outcome.reason == "discovery"
        assert "not public" in outcome.message
        endpoint = TokenEndpoint()
        for revocation in ("", f"https://{NAME}:{inside.port}/revoke", f"{issuer}/revoke"):
            told = await endpoint.revoke(replace(one, revocation_url=revocation), "r-token")
            assert "not public" in told.message
        await endpoint.close()
    assert inside.connections == 0


async def test_a_proxy_inside_is_not_connected_to(inside: Inside) -> None:
    reach = reach_of([], ["proxy"])
    for host in (NAME, "127.0.0.1"):
        one = replace(
            provider("https://as.example/token"), proxy=f"http://{host}:{inside.port}", reach=reach
        )
        outcome = await asked(one)
        assert outcome.reason == "misconfigured"
        assert "not public" in outcome.message
    assert inside.connections == 0


async def test_what_the_file_names_is_connected_to(inside: Inside) -> None:
    reach = reach_of(["127.0.0.0/8"], [])
    one = replace(provider(f"http://127.0.0.1:{inside.port}/token"), reach=reach)
    assert isinstance(await asked(one), HttpAnswer)
    assert inside.connections == 1
