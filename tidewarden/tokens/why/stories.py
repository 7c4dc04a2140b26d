"""
Reads what is known of an account or a provider, and has its story told, without the store too.

It does so while the store is away, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.accounts.cache import Cache
from tidewarden.tokens.limits.client_record import parse_record, read_client
from tidewarden.tokens.policy import failures

from .account import account_story, away_story
from .provider import provider_story
from .story import ClientSeen, Story
from .troubles import Subject

AWAY_S = 5.0
"""A store that has not answered for so long is told to be away."""


class Stories:
    """Tells stories for one node."""

    def __init__(
        self,
        ledger: AccountStore,
        queue_of: Mapping[str, str],
        cache: Cache,
        clock: Clock,
        *,
        confirm_s: float = failures.CONFIRM_S,
        give_up_s: float = failures.GIVE_UP_S,
    ) -> None:
        """``queue_of``: the queues by provider."""
        self._ledger = ledger
        self._queue_of = queue_of
        self._cache = cache
        self._clock = clock
        self._confirm_s = confirm_s
        self._give_up_s = give_up_s

    async def account(self, provider: Provider, name: str) -> dict[str, Any]:
        """The story of an account. Raises: NotFound."""
        queue = self._queue_of[provider.name]

        async def read() -> Story:
            reading, seen = await asyncio.gather(self._ledger.get(queue, name), self._client(queue))
            if reading.row is None:
                raise errors.NotFound(f"there is no account {provider.name}/{name}")
            return account_story(
                Subject(
                    provider,
                    name,
                    reading.row,
                    reading.troubles,
                    seen,
                    reading.now_ms,
                    self._confirm_s,
                    self._give_up_s,
                )
            )

        left_ms = self._cache.left_ms(f"{provider.name}/{name}")
        return await self._or_away(read, provider, name, left_ms)

    async def provider(self, provider: Provider) -> dict[str, Any]:
        """The story of a provider."""
        queue = self._queue_of[provider.name]

        async def read() -> Story:
            found = await self._ledger.figures(queue)
            seen = ClientSeen(parse_record(found.client), found.clock_ms, found.lag_ms)
            return provider_story(provider, seen, found.counts)

        return await self._or_away(read, provider, "", 0)

    async def _client(self, queue: str) -> ClientSeen:
        return ClientSeen(*await read_client(queue, self._ledger))

    async def _or_away(
        self, read: Callable[[], Awaitable[Story]], provider: Provider, name: str, left_ms: int
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(AWAY_S):
                return (await read()).shown()
        except TimeoutError:
            reason = f"it has not answered for {AWAY_S:g} s"
        except (errors.StoreDown, errors.NoQuorum) as error:
            reason = str(error)
        return away_story(provider, name, left_ms, reason, self._clock.unix_ms()).shown()
