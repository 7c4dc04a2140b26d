"""Tokens that are kept: for how long, which of two answers counts, and what no node can say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.growth import entries

from tidewarden.client.auth.token_cache import ACCOUNTS_MAX, RECHECK_S, REFUSED_S, TokenCache
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
    assert hands.asked == [0, 0]


async def test_of_two_answers_that_cross_the_newer_generation_stays(
    hands: Hands, cache: TokenCache
) -> None:
    first = await cache.get("a/b")
    slow = asyncio.Event()
    hands.gates = [slow]
    hands.now += 61
    old = asyncio.ensure_future(cache.get("a/b"))  # answered generation 1, which is on its way
    await asyncio.sleep(0)
    hands.answer = lambda newer: token(2, 200_000, 300_000)
    found = await cache.newer("a/b", first)
    assert found is not None
    hands.now += 1
    slow.set()
    assert (await old).generation == 2
    assert (await cache.get("a/b")).generation == 2
    assert hands.asked == [0, 0, 1]


async def test_an_account_that_was_put_anew_is_no_refused_one(
    hands: Hands, cache: TokenCache
) -> None:
    hands.answer = lambda newer: token(7)
    await cache.newer("a/b", await cache.get("a/b"))
    hands.answer = lambda newer: token(1, 500_000, 900_000)
    hands.now += 61
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
        assert [(await cache.get("a/b")).generation for _ in range(3)] == [1, 1, 1]
        assert hands.asked == [0, 0]
    else:
        with pytest.raises(Unreachable):
            await cache.get("a/b")


async def test_an_account_that_is_gone_is_told(hands: Hands, cache: TokenCache) -> None:
    await cache.get("a/b")
    hands.answer = lambda newer: NotFound("gone")
    hands.now += 61
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


async def test_of_many_accounts_the_last_are_kept(hands: Hands, cache: TokenCache) -> None:
    for number in range(ACCOUNTS_MAX + 100):
        await cache.get(f"a/{number}")
    assert entries(cache) <= 4 * ACCOUNTS_MAX
    asked = len(hands.asked)
    await cache.get(f"a/{ACCOUNTS_MAX + 99}")
    assert len(hands.asked) == asked
