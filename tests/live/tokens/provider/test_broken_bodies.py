"""Bodies that are not what their headers say, or break off: a pair that came is used or kept."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest
from support.providers.raw_provider import ask, server

from tidewarden.tokens.provider.http_post import BODY_BYTES_MAX
from tidewarden.tokens.provider.token_response import HttpAnswer, classify

PAIR = b'{"access_token":"a.1","refresh_token":"r.1","expires_in":3600}'
FORM = b"access_token=a.1&refresh_token=r.1&expires_in=3600"
NOISE = b"\x8b\x01\x80" + bytes(range(128, 180))
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(PAIR), PAIR)


def coded(body: bytes, coding: str, kind: str = "application/json") -> bytes:
    return (
        f"Content-Type: {kind}\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def answered(rest: bytes, *, close: bool = False) -> HttpAnswer:
    """What is found in an answer that says OK, then ``rest``."""

    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + rest)
        if close:
            writer.close()

    async with server(talk) as url, asyncio.timeout(60):
        outcome = await ask(url, timeout_s=50.0)
    assert isinstance(outcome, HttpAnswer)
    return outcome


@pytest.mark.parametrize(
    "rest",
    [
        coded(PAIR, "gzip"),
        coded(PAIR, "br"),
        coded(PAIR, "deflate"),
        coded(FORM, "gzip", "application/x-www-form-urlencoded"),
        coded(gzip.compress(PAIR), "gzip"),
        coded(gzip.compress(PAIR)[:-8] + bytes(8), "X-GZip"),
        coded(zlib.compress(PAIR), "deflate"),
        coded(zlib.compress(PAIR, wbits=-15), "deflate"),
        coded(gzip.compress(gzip.compress(PAIR)), "gzip, gzip"),
        coded(PAIR, "identity"),
        CHUNKS + b"zz\r\n",
        b"Content-Length: %d\r\n\r\n%s\r\n\x00\xff" % (len(PAIR), PAIR),
    ],
    ids=[
        "unpacked by a proxy",
        "never packed",
        "plain as deflate",
        "a form",
        "gzip",
        "wrong checksum",
        "deflate",
        "raw deflate",
        "twice",
        "identity",
        "broken chunk",
        "more than was said",
    ],
)
async def test_a_pair_is_found_whatever_is_said_of_its_body(rest: bytes) -> None:
    verdict = classify(await answered(rest), 0)
    assert verdict.pair is not None
    assert verdict.pair.refresh_token == "r.1"


@pytest.mark.parametrize("rest", [coded(gzip.compress(PAIR)[:-12], "gzip"), CHUNKS[:-12]])
async def test_a_pair_that_came_before_the_body_broke_off_is_used(rest: bytes) -> None:
    verdict = classify(await answered(rest, close=True), 0)
    assert verdict.pair is not None
    assert verdict.pair.refresh_token == "r.1"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip", "deflate", "no word\x7f", "gzip," * 999])
async def test_what_cannot_be_undone_is_kept_as_it_came(coding: str) -> None:
    answer = await answered(coded(NOISE, coding))
    verdict = classify(answer, 0)
    assert (verdict.outcome, verdict.keep_body) == ("unknown", True)
    assert answer.as_it_came == NOISE
    assert "cannot be undone" in verdict.message
    assert len(verdict.message) < 200


async def test_a_body_grows_no_longer_than_a_plain_one_may_be() -> None:
    bomb = gzip.compress(PAIR[:-1] + b" " * 30_000_000 + b"}")
    assert len(bomb) < BODY_BYTES_MAX
    answer = await answered(coded(bomb, "gzip"))
    assert len(answer.body) == BODY_BYTES_MAX
    assert answer.cut == f"its body has more than {BODY_BYTES_MAX} bytes"
    assert answer.as_it_came == bomb
    verdict = classify(answer, 0)
    assert verdict.pair is not None
    assert verdict.pair.refresh_token == "r.1"
