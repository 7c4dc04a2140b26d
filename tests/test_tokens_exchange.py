"""The refresh request against servers that behave as badly as the network allows."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import pytest

from tidewarden.config import Provider, Secret
from tidewarden.tokens.answers import Answer, Outcome, Unheard, Unsent
from tidewarden.tokens.exchange import Exchange, credentials

pytestmark = pytest.mark.live

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"access_token":"a"}'
Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[str]:
    """A raw server: ``talk`` gets each whole request and the writer; yields the URL."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
                    await talk(head + await reader.readexactly(int(lengths[0].split(b":")[1])), writer)
        finally:
            writer.transport.abort()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/token"
    finally:
        running.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # The aborted transports are closed in the next turn.


def provider(url: str, **settings: Any) -> Provider:
    known: dict[str, Any] = {"client_id": "c0", "client_secret": Secret("hush"), "timeout_s": 3.0}
    return Provider(name="p", token_url=url, **(known | settings))


async def ask(url: str, token: str = "r-token", **settings: Any) -> Outcome:
    exchange = Exchange()
    try:
        return await exchange.refresh(provider(url, **settings), token)
    finally:
        await exchange.close()


async def test_a_whole_answer() -> None:
    seen = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(OK)

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, Answer)
    assert (outcome.status, outcome.body) == (200, b'{"access_token":"a"}')
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /token HTTP/1.1\r\n")
    assert dict(parse_qsl(body.decode())) == {"grant_type": "refresh_token", "refresh_token": "r-token"}
    assert b"application/x-www-form-urlencoded" in head
    assert b"accept: application/json" in head.lower()


async def test_a_refused_connection_was_never_sent() -> None:
    async with server(None) as url:  # type: ignore[arg-type]
        pass  # The port is free again.
    outcome = await ask(url)
    assert isinstance(outcome, Unsent)
    assert outcome.reason == "refused"


async def test_a_name_that_does_not_resolve_was_never_sent() -> None:
    outcome = await ask("http://no-such-host.invalid/token")
    assert isinstance(outcome, Unsent)
    assert outcome.reason == "dns"


async def test_a_certificate_that_is_not_trusted_was_never_sent(tmp_path: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(tmp_path))

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    running = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    running.get_loop().set_exception_handler(lambda *_: None)  # The server's view of the failed handshake.
    port = running.sockets[0].getsockname()[1]
    outcome = await ask(f"https://127.0.0.1:{port}/token")
    running.close()
    assert isinstance(outcome, Unsent)
    assert outcome.reason == "tls"


async def test_closed_after_the_whole_request_is_unknown() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(talk) as url:
        assert isinstance(await ask(url), Unheard)


async def test_reset_after_the_whole_request_is_unknown() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with server(talk) as url:
        assert isinstance(await ask(url), Unheard)


async def test_closed_within_the_answer_is_unknown() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK[:-5])
        writer.close()

    async with server(talk) as url:
        assert isinstance(await ask(url), Unheard)


async def test_a_kept_connection_that_closes_under_the_next_request_is_unknown_and_not_repeated() -> None:
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        if len(requests) == 1:
            writer.write(OK)
        else:
            writer.close()

    async with server(talk) as url:
        exchange = Exchange()
        assert isinstance(await exchange.refresh(provider(url), "one"), Answer)
        assert isinstance(await exchange.refresh(provider(url), "two"), Unheard)
        await exchange.close()
    assert len(requests) == 2


@pytest.mark.parametrize("garbage", [b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"])
async def test_garbage_is_unknown(garbage: bytes) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        writer.close()

    async with server(talk) as url:
        assert isinstance(await ask(url), Unheard)


async def test_html_in_a_200_is_an_answer_for_others_to_judge() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, Answer)
    assert outcome.headers["content-type"] == "text/html"


async def test_a_dripping_body_ends_in_time() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with server(talk) as url:
        async with asyncio.timeout(3):
            outcome = await ask(url, timeout_s=0.5)
    assert outcome == Unheard("no whole answer within 0.5 s")


async def test_a_silent_server_ends_in_time() -> None:
    async def talk(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3)

    async with server(talk) as url:
        async with asyncio.timeout(3):
            assert isinstance(await ask(url, timeout_s=0.3), Unheard)


async def test_an_endless_body_is_cut() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"x" * 70_000)
        await writer.drain()
        await asyncio.sleep(3)

    async with server(talk) as url:
        assert await ask(url) == Unheard("HTTP 200 with a body over 65536 bytes")


async def test_a_redirect_is_not_followed() -> None:
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, Answer)
    assert outcome.status == 307
    assert len(requests) == 1


@pytest.mark.parametrize("value", ["12", "Fri, 31 Dec 2100 23:59:59 GMT"])
async def test_429_brings_its_headers(value: str) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 429 Slow\r\nRETRY-AFTER: {value}\r\nContent-Length: 0\r\n\r\n".encode())

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, Answer)
    assert (outcome.status, outcome.headers["retry-after"]) == (429, value)


async def test_cookies_do_not_leak_from_one_account_to_the_next() -> None:
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request.lower())
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: session=alice; Path=/\r\n\r\n"))

    async with server(talk) as url:
        # By name too: cookie jars treat addresses apart.
        for address in (url, url.replace("127.0.0.1", "localhost")):
            exchange = Exchange()
            for token in ("alice", "bob"):
                assert isinstance(await exchange.refresh(provider(address), token), Answer)
            await exchange.close()
    assert len(requests) == 4
    assert not any(b"cookie" in request for request in requests)


SECRET = "s3cr%t+:/ &=é"


def test_basic_is_form_encoded_first() -> None:
    headers, form = credentials(provider("http://x/", client_id="c:0 %", client_secret=Secret(SECRET)))
    assert form == {}
    kind, _, coded = headers["Authorization"].partition(" ")
    name, _, secret = base64.b64decode(coded).decode().partition(":")
    assert kind == "Basic"
    assert (unquote_plus(name), unquote_plus(secret)) == ("c:0 %", SECRET)  # As RFC 6749, 2.3.1 has the server do.


def test_basic_raw_is_not() -> None:
    headers, form = credentials(provider("http://x/", auth="basic_raw", client_secret=Secret("s%+:/")))
    assert (base64.b64decode(headers["Authorization"].split()[1]), form) == (b"c0:s%+:/", {})


def test_in_the_body_or_not_at_all() -> None:
    assert credentials(provider("http://x/", auth="post"))[1] == {"client_id": "c0", "client_secret": "hush"}
    for settings in ({"auth": "none"}, {"auth": "post", "client_secret": Secret("")}, {"client_secret": Secret("")}):
        headers, form = credentials(provider("http://x/", **settings))
        assert form == {"client_id": "c0"}
        assert "Authorization" not in headers


@pytest.mark.parametrize("auth", ["basic", "post"])
async def test_a_secret_with_odd_characters_arrives(auth: str) -> None:
    seen = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        given = [line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization: basic ")]
        if given:
            seen.append(unquote_plus(base64.b64decode(given[0].split()[2]).decode().partition(":")[2]))
        else:
            seen.append(dict(parse_qsl(body.decode()))["client_secret"])
        writer.write(OK)

    async with server(talk) as url:
        await ask(url, auth=auth, client_secret=Secret(SECRET))
    assert seen == [SECRET]


async def test_no_secret_in_logs_or_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 hush r-token\r\nX: hush\r\n\x00 hush r-token\r\n\r\n" if b"bad" in request else OK)

    async with server(talk) as url:
        outcomes = [
            await ask(url),
            await ask(url, token="bad-r-token"),
            await ask(url.replace("http:", "https:"), token="r-token"),
            await ask("http://no-such-host.invalid/?client_secret=hush", token="r-token"),
        ]
    assert "hush" not in caplog.text + repr(outcomes)
    assert "r-token" not in caplog.text + repr(outcomes)


def _certificate(folder: Any) -> tuple[str, str]:
    """A self-signed certificate and its key, as files."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return str(certificate), str(private)
