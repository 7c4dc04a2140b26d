"""
A refresh through a forward proxy: a tunnel for https, and what is told when the proxy will not.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
import ssl
from pathlib import Path

import pytest
from support.providers.certificate import make
from support.providers.forward_proxy import forward_proxy
from support.providers.raw_provider import OK, ask, listening, provider, server

from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, RequestNotSent, classify

USER, PASSWORD = "egress", "p:w/d-hunter2"
WANTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
WITH_PASSWORD = "http://egress:p%3Aw%2Fd-hunter2@127.0.0.1:{port}"


async def test_https_goes_through_a_tunnel_and_the_proxy_sees_none_of_it(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(OK)

    cert, key = make(tmp_path, "provider")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with server(talk, context) as url, forward_proxy(WANTED) as proxy:
        known = provider(url, tls_ca=cert, proxy=WITH_PASSWORD.format(port=proxy.port))
        exchange = TokenEndpoint()
        outcomes = [await exchange.refresh(known, f"r{at}") for at in range(3)]
        await exchange.close()
    assert all(isinstance(outcome, HttpAnswer) and outcome.status == 200 for outcome in outcomes)
    where = url.removeprefix("https://").removesuffix("/token")
    assert proxy.asked == [f"CONNECT {where} HTTP/1.1"]  # One connection for all.
    assert [request.split(b"\r\n")[0] for request in seen] == [b"POST /token HTTP/1.1"] * 3
    assert not any(b"proxy-authorization" in request.lower() for request in seen)


async def test_plain_http_is_passed_on_by_the_proxy() -> None:
    seen: list[bytes] = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(OK)

    async with server(talk) as url, forward_proxy(WANTED) as proxy:
        outcome = await ask(url, proxy=WITH_PASSWORD.format(port=proxy.port))
    assert isinstance(outcome, HttpAnswer)
    assert proxy.asked == [f"POST {url} HTTP/1.1"]
    assert seen[0].startswith(b"POST /token HTTP/1.1")


async def test_discovery_and_revocation_go_the_same_way() -> None:
    asked: list[bytes] = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(request)
        writer.write(OK)

    async with server(talk) as url, forward_proxy(WANTED) as proxy:
        known = provider(url, revocation_url=url, proxy=WITH_PASSWORD.format(port=proxy.port))
        exchange = TokenEndpoint()
        await exchange.revoke(known, "r")
        issuer = url.removesuffix("/token")
        looked_up = dataclasses.replace(known, name="q", token_url="", issuer=issuer, timeout_s=0.5)
        await exchange.refresh(looked_up, "r")
        await exchange.close()
    assert proxy.asked[0] == f"POST {url} HTTP/1.1"
    assert proxy.asked[1].startswith(f"GET {issuer}/.well-known/")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("line", "reason", "scope"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required", "proxy", "ours"),
        (b"HTTP/1.1 403 hunter2", "proxy", "ours"),
        (b"HTTP/1.1 502 Bad Gateway", "refused", "provider"),
        (b"HTTP/1.1 504 Gateway Timeout", "refused", "provider"),
        (b"nonsense", "refused", "provider"),
    ],
)
async def test_a_proxy_that_will_not_has_sent_nothing(
    line: bytes, reason: str, scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with forward_proxy(refuses=line) as proxy:
        there = WITH_PASSWORD.format(port=proxy.port)
        known = provider("https://login.example.org/token", proxy=there)
        exchange = TokenEndpoint()
        outcome = await exchange.refresh(known, "r")
        revoked = await exchange.revoke(
            dataclasses.replace(known, revocation_url=known.token_url), "r"
        )
        await exchange.close()
    assert isinstance(outcome, RequestNotSent)
    verdict = classify(outcome, 0)
    assert (verdict.outcome, verdict.scope, verdict.answered) == (reason, scope, False)
    assert revoked.outcome == "failed"
    for text in (outcome.message, verdict.brief, revoked.message, repr(known), caplog.text):
        assert "hunter2" not in text


async def test_a_proxy_that_is_not_there_is_our_own_matter() -> None:
    async with forward_proxy() as proxy:
        pass  # The port is free again.
    outcome = await ask("https://login.example.org/token", proxy=f"http://127.0.0.1:{proxy.port}")
    assert isinstance(outcome, RequestNotSent)
    assert (outcome.reason, classify(outcome, 0).scope) == ("proxy", "ours")
    assert outcome.message == "no connection to the proxy: Connection refused"
    gone = await ask("https://login.example.org/token", proxy="http://no-such-host.invalid:3128")
    assert isinstance(gone, RequestNotSent)
    assert (gone.reason, gone.message) == ("dns", "the proxy's name does not resolve")


async def test_a_proxy_that_says_nothing_is_waited_for_as_long_as_for_a_connection() -> None:
    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with listening(serve) as port:
        there = f"http://127.0.0.1:{port}"
        outcome = await ask("https://login.example.org/token", proxy=there, connect_timeout_s=0.3)
    assert isinstance(outcome, RequestNotSent)
    assert outcome.reason == "connect_timeout"
