"""The refresh request against servers that behave as badly as the network allows."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import parse_qsl

import pytest
from support.providers.raw_provider import OK, ask, listening, provider, server

from tidewarden.clock import SystemClock
from tidewarden.config.load import Secret
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, NoAnswer, RequestNotSent, classify


async def test_a_whole_answer() -> None:
    seen = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(OK)

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, HttpAnswer)
    assert (outcome.status, outcome.body) == (200, b'{"access_token":"a"}')
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /token HTTP/1.1\r\n")
    assert dict(parse_qsl(body.decode())) == {
        "grant_type": "refresh_token",
        "refresh_token": "r-token",
    }
    assert b"application/x-www-form-urlencoded" in head
    assert b"accept: application/json" in head.lower()


async def test_a_refused_connection_was_never_sent() -> None:
    async with server(None) as url:  # type: ignore[arg-type]
        pass  # The port is free again.
    outcome = await ask(url)
    assert isinstance(outcome, RequestNotSent)
    assert outcome.reason == "refused"


async def test_a_name_that_does_not_resolve_was_never_sent() -> None:
    outcome = await ask("http://no-such-host.invalid/token")
    assert isinstance(outcome, RequestNotSent)
    assert outcome.reason == "dns"


async def test_a_certificate_that_is_not_trusted_was_never_sent(tmp_path: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(tmp_path))

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    # The server's view of the failed handshake.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with listening(serve, context) as port:
        outcome = await ask(f"https://127.0.0.1:{port}/token")
    assert isinstance(outcome, RequestNotSent)
    assert outcome.reason == "tls"


async def test_closed_after_the_whole_request_is_unknown() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(talk) as url:
        assert isinstance(await ask(url), NoAnswer)


async def test_reset_after_the_whole_request_is_unknown() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with server(talk) as url:
        assert isinstance(await ask(url), NoAnswer)


async def test_an_answer_that_was_cut_is_kept_as_far_as_it_came() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK[:-5])
        writer.close()

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, HttpAnswer)
    assert (outcome.status, outcome.body) == (200, b'{"access_token"')
    assert "ended without" in outcome.cut
    verdict = classify(outcome, 0)
    assert (verdict.outcome, verdict.keep_body) == ("unknown", True)


async def test_a_whole_pair_in_an_answer_that_was_cut_is_a_pair() -> None:
    """
    Its length was wrong, or the connection was reset after the last byte: there is no other refresh
    token.
    """
    body = b'{"access_token":"a","refresh_token":"r.1"}'

    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
            + body
        )
        writer.close()

    async with server(talk) as url:
        verdict = classify(await ask(url), 0)
    assert verdict.pair is not None
    assert verdict.pair.refresh_token == "r.1"


async def test_half_a_form_is_no_pair() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length:"
            b" 99\r\n\r\n"
        )
        writer.write(head + b"access_token=half-a-tok")
        writer.close()

    async with server(talk) as url:
        verdict = classify(await ask(url), 0)
    assert (verdict.outcome, verdict.keep_body) == ("unknown", True)


@pytest.mark.parametrize(
    ("status", "outcome"), [(403, "unavailable"), (503, "unavailable"), (401, "invalid_client")]
)
@pytest.mark.parametrize("body", [b"<html>" + b"x" * 70_000, b"<html>"], ids=["long", "cut"])
async def test_an_error_is_known_by_its_status_however_its_page_ends(
    status: int, outcome: str, body: bytes
) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} No\r\nContent-Type: text/html\r\nContent-Length: 70006\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    async with server(talk) as url:
        assert classify(await ask(url), 0).outcome == outcome


async def test_long_headers_cost_no_answer() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            OK.replace(b"\r\n\r\n", b"\r\nContent-Security-Policy: " + b"x" * 20_000 + b"\r\n\r\n")
        )

    async with server(talk) as url:
        assert classify(await ask(url), 0).outcome == "ok"


async def test_what_fails_before_the_first_byte_was_never_sent(tmp_path: Any) -> None:
    """A file that a client proves itself by was there at the start and is not now."""
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        writer.write(OK)

    gone = str(tmp_path / "gone.pem")
    async with server(talk) as url:
        for settings in (
            {"auth": "private_key_jwt", "jwt_key_file": gone},
            {"tls_cert": gone, "tls_key": gone},
            {"tls_ca": gone},
            {"auth": "post", "client_secret": Secret("\udce9")},
        ):
            outcome = await ask(url, **settings)
            assert isinstance(outcome, RequestNotSent), settings
            assert outcome.reason == "misconfigured"
            assert classify(outcome, 0).scope == "client"
    assert requests == []


async def test_a_kept_connection_that_closes_under_the_next_request_is_unknown_and_not_repeated() -> (
    None
):
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        if len(requests) == 1:
            writer.write(OK)
        else:
            writer.close()

    async with server(talk) as url:
        exchange = TokenEndpoint()
        assert isinstance(await exchange.refresh(provider(url), "one"), HttpAnswer)
        assert isinstance(await exchange.refresh(provider(url), "two"), NoAnswer)
        await exchange.close()
    assert len(requests) == 2


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"]
)
async def test_garbage_is_unknown(garbage: bytes) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        writer.close()

    async with server(talk) as url:
        assert isinstance(await ask(url), NoAnswer)


async def test_html_in_a_200_is_an_answer_for_others_to_judge() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
        )

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, HttpAnswer)
    assert outcome.headers["content-type"] == "text/html"


async def test_a_dripping_body_ends_in_time() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        for _ in range(1000):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with server(talk) as url:
        async with asyncio.timeout(3):
            outcome = await ask(url, timeout_s=0.5)
    assert isinstance(outcome, HttpAnswer)
    assert outcome.cut == "no whole answer within 0.5 s"
    assert classify(outcome, 0).outcome == "unknown"


async def test_a_silent_server_ends_in_time() -> None:
    async def talk(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3)

    async with server(talk) as url:
        async with asyncio.timeout(3):
            assert isinstance(await ask(url, timeout_s=0.3), NoAnswer)


async def test_an_endless_body_is_cut() -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"x" * 70_000)
        await writer.drain()
        await asyncio.sleep(3)

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, HttpAnswer)
    assert (len(outcome.body), outcome.cut) == (65_536, "its body has more than 65536 bytes")


async def test_what_would_leave_too_late_does_not_leave() -> None:
    """The clock is read when there is a connection: a pause while it is made counts, too."""
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        writer.write(OK)

    class Paused(SystemClock):
        behind_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.behind_s

    clock = Paused()
    exchange = TokenEndpoint(clock=clock)
    async with server(talk) as url:
        by = clock.monotonic() + 5
        clock.behind_s = 6.0
        late = await exchange.refresh(provider(url), "r-token", send_by=by)
        assert isinstance(late, RequestNotSent)
        assert late.reason == "late"
        assert classify(late, 0).scope == "ours"
        clock.behind_s = 0.0
        assert isinstance(await exchange.refresh(provider(url), "r-token", send_by=by), HttpAnswer)
        await exchange.close()
    assert len(requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    requests = []

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        writer.write(
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
        )

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, HttpAnswer)
    assert outcome.status == 307
    assert len(requests) == 1


@pytest.mark.parametrize("value", ["12", "Fri, 31 Dec 2100 23:59:59 GMT"])
async def test_429_brings_its_headers(value: str) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 429 Slow\r\nRETRY-AFTER: {value}\r\nContent-Length: 0\r\n\r\n".encode()
        )

    async with server(talk) as url:
        outcome = await ask(url)
    assert isinstance(outcome, HttpAnswer)
    assert (outcome.status, outcome.headers["retry-after"]) == (429, value)


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
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return str(certificate), str(private)
