"""Providers that answer without end: nothing grows, and the connection ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest
from aiohttp.http import RawResponseMessage
from support.providers.raw_provider import CONTINUE, Flood, asked, listening, provider

from tidewarden.bounded_connector import INTERIM_MAX
from tidewarden.config.load import Provider
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, NoAnswer

LONG = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 60_000 + b"\r\n\r\n"
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"access_token":"a"}'
MESSAGES_MAX = 400
"""Parsed heads that may be alive at a time: those of a slice that was just parsed."""


def heads() -> int:
    return sum(type(one) is RawResponseMessage for one in gc.get_objects())


@pytest.mark.parametrize("more", [CONTINUE * 2000, LONG, CONTINUE])
async def test_interim_answers_without_end_end_the_connection(more: bytes) -> None:
    flood = Flood(b"", more)
    async with listening(flood.serve) as port, asyncio.timeout(60):
        outcome = await asked(provider(f"http://127.0.0.1:{port}/token", timeout_s=50.0))
        assert isinstance(outcome, NoAnswer)
        assert "ended without an answer" in outcome.message
        await flood.cut_off.wait()
    assert heads() < MESSAGES_MAX


async def test_as_many_as_are_allowed_are_passed_over() -> None:
    for count in (1, INTERIM_MAX):
        flood = Flood(CONTINUE * count + ANSWER, b"")
        async with listening(flood.serve) as port, asyncio.timeout(60):
            outcome = await asked(provider(f"http://127.0.0.1:{port}/token"))
        assert isinstance(outcome, HttpAnswer)
        assert outcome.status == 200


async def test_answers_that_nobody_asked_for_end_an_idle_connection() -> None:
    flood = Flood(ANSWER, ANSWER * 1000)
    async with listening(flood.serve) as port, asyncio.timeout(60):
        endpoint = TokenEndpoint()
        outcome = await endpoint.refresh(provider(f"http://127.0.0.1:{port}/token"), "r-token")
        assert isinstance(outcome, HttpAnswer)
        await flood.cut_off.wait()
        assert heads() < MESSAGES_MAX
        await endpoint.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda endpoint, one: endpoint.refresh(one, "r-token"),
        lambda endpoint, one: endpoint.revoke(one, "r-token"),
    ],
)
async def test_metadata_and_revocations_are_bounded_likewise(
    ask: Callable[[TokenEndpoint, Provider], asyncio.Future[object]],
) -> None:
    flood = Flood(b"", CONTINUE * 2000)
    async with listening(flood.serve) as port, asyncio.timeout(60):
        where = f"http://127.0.0.1:{port}"
        endpoint = TokenEndpoint()
        one = Provider(
            name="p", client_id="c", auth="none", issuer=where, timeout_s=40.0,
            revocation_url=f"{where}/revoke",
        )  # fmt: skip
        await ask(endpoint, one)
        await flood.cut_off.wait()
        assert heads() < MESSAGES_MAX
        await endpoint.close()
