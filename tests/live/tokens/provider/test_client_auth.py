"""How a client says who it is to a provider, and that its secrets show nowhere else."""

from __future__ import annotations

import asyncio
import base64
import logging
from urllib.parse import parse_qsl, unquote_plus

import pytest
from support.providers.raw_provider import OK, ask, provider, server

from tidewarden.config.load import Secret
from tidewarden.tokens.provider.client_auth import by_secret as credentials
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, classify

SECRET = "s3cr%t+:/ &=é"


async def test_cookies_do_not_leak_from_one_account_to_the_next() -> None:
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request.lower())
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: session=alice; Path=/\r\n\r\n"))

    async with server(talk) as url:
        # By name too: cookie jars treat addresses apart.
        for address in (url, url.replace("127.0.0.1", "localhost")):
            exchange = TokenEndpoint()
            for token in ("alice", "bob"):
                assert isinstance(await exchange.refresh(provider(address), token), HttpAnswer)
            await exchange.close()
    assert len(requests) == 4
    assert not any(b"cookie" in request for request in requests)


def test_basic_is_form_encoded_first() -> None:
    headers, form = credentials(
        provider("http://x/", client_id="c:0 %", client_secret=Secret(SECRET))
    )
    assert form == {}
    kind, _, coded = headers["Authorization"].partition(" ")
    name, _, secret = base64.b64decode(coded).decode().partition(":")
    assert kind == "Basic"
    # As RFC 6749, 2.3.1 has the server do.
    assert (unquote_plus(name), unquote_plus(secret)) == ("c:0 %", SECRET)


def test_basic_raw_is_not() -> None:
    headers, form = credentials(
        provider("http://x/", auth="basic_raw", client_secret=Secret("s%+:/"))
    )
    assert (base64.b64decode(headers["Authorization"].split()[1]), form) == (b"c0:s%+:/", {})


def test_in_the_body_or_not_at_all() -> None:
    assert credentials(provider("http://x/", auth="post"))[1] == {
        "client_id": "c0",
        "client_secret": "hush",
    }
    for settings in (
        {"auth": "none"},
        {"auth": "tls"},
        {"auth": "post", "client_secret": Secret("")},
        {"client_secret": Secret("")},
    ):
        headers, form = credentials(provider("http://x/", **settings))
        assert form == {"client_id": "c0"}
        assert "Authorization" not in headers


@pytest.mark.parametrize("auth", ["basic", "post"])
async def test_a_secret_with_odd_characters_arrives(auth: str) -> None:
    seen = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        given = [
            line
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"authorization: basic ")
        ]
        if given:
            seen.append(
                unquote_plus(base64.b64decode(given[0].split()[2]).decode().partition(":")[2])
            )
        else:
            seen.append(dict(parse_qsl(body.decode()))["client_secret"])
        writer.write(OK)

    async with server(talk) as url:
        await ask(url, auth=auth, client_secret=Secret(SECRET))
    assert seen == [SECRET]


async def test_no_secret_in_logs_or_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 hush r-token\r\nX: hush\r\n\x00 hush r-token\r\n\r\n"
            if b"bad" in request
            else OK
        )

    async with server(talk) as url:
        outcomes = [
            await ask(url),
            await ask(url, token="bad-r-token"),
            await ask(url.replace("http:", "https:"), token="r-token"),
            await ask("http://no-such-host.invalid/?client_secret=hush", token="r-token"),
        ]
    assert "hush" not in caplog.text + repr(outcomes)
    assert "r-token" not in caplog.text + repr(outcomes)


async def test_what_an_error_text_quotes_of_the_request_is_not_said_again() -> None:
    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        body = b'{"error": "invalid_request", "error_description": "r:1|%s of hush"}' % (b"x" * 5)
        writer.write(b"HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with server(talk) as url:
        known = provider(url, revocation_url=url)
        exchange = TokenEndpoint()
        verdict = classify(await exchange.refresh(known, "r:1|xxxxx"), 0)
        revoked = await exchange.revoke(known, "r:1|xxxxx")
        await exchange.close()
    assert verdict.message == "HTTP 400 invalid_request … of …"
    assert revoked.outcome == "failed"
    assert "r:1" not in revoked.message
    assert "hush" not in revoked.message
