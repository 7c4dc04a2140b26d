"""Tokens that are kept: for how long, which of two answers counts, and what no node can say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import AsyncMock

import pytest
from support.growth import entries
from support.inspect import look_again

from tidewarden.client import AsyncClient, Client
from tidewarden.client.auth import AccountTokens, account_tokens
from tidewarden.client.auth.token_cache import (
    ACCOUNTS_MAX,
    LOOKS_MAX,
    RECHECK_S,
    REFUSED_S,
    TokenCache,
)
from tidewarden.client.replies import Token
from tidewarden.errors import Error, NotFound, Timeout, Unreachable


class Hands:
    """A clock that is set, and a client that answers what a test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[int] = []
        self.answer: Callable[[int], Token | Error] = lambda newer: token(1)
        self.gates: list[asyncio.Event] = []
        self.nodes = self

    def monotonic(self) -> float:
        return self.now

    def store_ms(self) -> float:
        return self.now * 1000

    def begin(self, work: Coroutine[Any, Any, Token]) -> asyncio.Task[Token]:
        return asyncio.get_running_loop().create_task(work)

    async def token(self, account: str, *, newer: int = 0, **_: Any) -> Token:
        self.asked.append(newer)
        found = self.answer(newer)
        if self.gates:
            await self.gates.pop(0).wait()
        if isinstance(found, Error):
            raise found
        return found


def token(generation: int, keep_ms: int = 60_000, life_ms: int = 120_000) -> Token:
    return Token(f"at{generation}", "Bearer", 100_000 + life_ms, generation, "fresh", {}, keep_ms)


async def settled() -> None:
    """Let what was begun run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def cache(hands: Hands) -> TokenCache:
    return TokenCache(hands, hands, min_ttl_ms=0, wait_ms=0)  # type: ignore[arg-type]


async def test_a_token_is_asked_for_again_when_its_time_is_over(
    hands: Hands, cache: TokenCache
) -> None:
    assert await cache.get("a/b") is await cache.get("a/b")
    hands.now += 60.001
    await cache.get("a/b")
    await settled()
    assert hands.asked == [0, 0]


async def test_a_living_token_is_served_at_once_and_looked_at_beside(
    hands: Hands, cache: TokenCache
) -> None:
    await cache.get("a/b")
    gate = asyncio.Event()
    hands.gates, hands.answer = [gate], lambda newer: token(2, 200_000, 300_000)
    hands.now += 60.001
    async with asyncio.timeout(10):
        for _ in range(50):
            assert await cache.get("a/b") == token(1)
            await settled()
            hands.now += 1
    assert hands.asked == [0, 0]  # one at a time
    gate.set()
    await settled()
    assert (await cache.get("a/b")).generation == 2


async def test_an_account_whose_token_cannot_be_kept_is_looked_at_now_and_then(
    hands: Hands, cache: TokenCache
) -> None:
    """Its refresh fails, or is due: the node serves what lives, and says not to keep it."""
    hands.answer = lambda newer: token(1, 0, 600_000)
    for _ in range(100):
        assert (await cache.get("a/b")).generation == 1
        await settled()
        hands.now += RECHECK_S / 10
    assert len(hands.asked) <= 11


async def test_so_many_looks_are_under_way_at_a_time(hands: Hands, cache: TokenCache) -> None:
    names = [f"a/{number}" for number in range(LOOKS_MAX + 50)]
    for name in names:
        await cache.get(name)
    hands.now += 61
    gate = asyncio.Event()
    hands.gates = [gate] * len(names)
    for _ in range(2):
        for name in names:
            await cache.get(name)
        await settled()
    assert len(hands.asked) == len(names) + LOOKS_MAX
    gate.set()
    for name in names:
        await settled()
        await cache.get(name)
    await settled()
    assert len(hands.asked) == 2 * len(names)


async def away(client: AsyncClient) -> AccountTokens:
    """The tokens of an account that is to be looked at again, while no node is there."""
    token_of = client.token
    client.nodes.store_ms = lambda: 0.0  # type: ignore[method-assign]
    client.token = first = AsyncMock(return_value=Token("at", "Bearer", 2**45, 1, "fresh", {}, 0))  # type: ignore[method-assign]
    tokens = AccountTokens("a/b", client)
    await tokens.get_async()
    first.assert_awaited_once()
    client.token = token_of  # type: ignore[method-assign]
    look_again(account_tokens, client, "a/b")
    return tokens


async def test_nothing_goes_on_after_a_close() -> None:
    client = AsyncClient("redis://127.0.0.1:9")
    tokens = await away(client)
    async with asyncio.timeout(20):
        assert (await tokens.get_async()).access_token == "at"
        assert len(asyncio.all_tasks()) > 1
        await client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        waiting = AccountTokens("a/c", client)
        with pytest.raises(Unreachable, match="was closed"):
            await waiting.get_async()


async def test_who_waits_at_a_close_is_told() -> None:
    client = AsyncClient("redis://127.0.0.1:9")
    waiting = asyncio.ensure_future(AccountTokens("a/c", client).get_async())
    await settled()
    await client.close()
    with pytest.raises(Unreachable, match="was closed"):
        await waiting


def test_threads_are_served_at_once_too() -> None:
    with Client("redis://127.0.0.1:9") as client:
        client.bridge.run(away(client.inner))
        tokens = AccountTokens("a/b", client)
        begun = time.monotonic()
        assert [tokens.get().access_token for _ in range(20)] == ["at"] * 20
        assert time.monotonic() - begun < 10  # a wait for the nodes takes 30 s and more


async def test_of_two_answers_that_cross_the_newer_generation_stays(
    hands: Hands, cache: TokenCache
) -> None:
    first = await cache.get("a/b")
    slow = asyncio.Event()
    hands.gates = [slow]
    hands.now += 61
    old = asyncio.ensure_future(cache.get("a/b"))  # answered generation 1, which is on its way
    await settled()
    hands.now += 1
    hands.answer = lambda newer: token(2, 200_000, 300_000)
    found = await cache.newer("a/b", first)
    assert found is not None
    hands.now += 1
    slow.set()
    await settled()
    assert (await old).generation == 1
    assert (await cache.get("a/b")).generation == 2
    assert hands.asked == [0, 0, 1]


async def test_an_account_that_was_put_anew_is_no_refused_one(
    hands: Hands, cache: TokenCache
) -> None:
    hands.answer = lambda newer: token(7)
    await cache.newer("a/b", await cache.get("a/b"))
    hands.answer = lambda newer: token(1, 500_000, 900_000)
    hands.now += 61
    assert (await cache.get("a/b")).generation == 7
    await settled()
    assert (await cache.get("a/b")).generation == 1
    hands.now += 61
    assert (await cache.get("a/b")).generation == 1
    assert hands.asked == [0, 7, 0]


async def test_a_refused_token_is_looked_at_again_soon_and_refreshed_rarely(
    hands: Hands, cache: TokenCache
) -> None:
    first = await cache.get("a/b")
    hands.answer = lambda newer: Timeout("not yet") if newer else token(1)
    assert await cache.newer("a/b", first) is None
    assert await cache.newer("a/b", first) is None
    assert hands.asked == [0, 1]
    hands.now += RECHECK_S + 0.001
    await cache.get("a/b")
    await settled()
    assert hands.asked == [0, 1, 0]
    hands.now += REFUSED_S
    hands.answer = lambda newer: token(2)
    assert await cache.newer("a/b", first) == token(2)
    assert await cache.get("a/b") == token(2)


@pytest.mark.parametrize(("life_ms", "served"), [(120_000, True), (60_000, False)])
async def test_while_no_node_answers_a_living_token_goes_on(
    hands: Hands, cache: TokenCache, life_ms: int, served: bool
) -> None:
    hands.answer = lambda newer: token(1, 60_000, life_ms)
    await cache.get("a/b")
    hands.answer = lambda newer: Unreachable("nobody")
    hands.now += 60.001
    if served:
        for _ in range(3):
            assert (await cache.get("a/b")).generation == 1
            await settled()
        assert hands.asked == [0, 0]
    else:
        with pytest.raises(Unreachable):
            await cache.get("a/b")


async def test_an_account_that_is_gone_is_told(hands: Hands, cache: TokenCache) -> None:
    await cache.get("a/b")
    hands.answer = lambda newer: NotFound("gone")
    hands.now += 61
    assert (await cache.get("a/b")).generation == 1
    await settled()
    with pytest.raises(NotFound):
        await cache.get("a/b")


async def test_who_goes_away_takes_nobody_else_along(hands: Hands, cache: TokenCache) -> None:
    gate = asyncio.Event()
    hands.gates = [gate]
    callers = [asyncio.ensure_future(cache.get("a/b")) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    gate.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [token(1), token(1)]
    assert hands.asked == [0]


@pytest.mark.thorough
async def test_of_many_accounts_the_last_are_kept(hands: Hands, cache: TokenCache) -> None:
    for number in range(ACCOUNTS_MAX + 100):
        await cache.get(f"a/{number}")
    assert entries(cache) <= 4 * ACCOUNTS_MAX
    asked = len(hands.asked)
    await cache.get(f"a/{ACCOUNTS_MAX + 99}")
    assert len(hands.asked) == asked
