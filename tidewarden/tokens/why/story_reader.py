"""Reads the facts of an account or a provider, and tells its story, also without the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.queue.reads.near_reads import ALONE, Mark
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.accounts.cache import Cache
from tidewarden.tokens.accounts.near_accounts import NearAccounts
from tidewarden.tokens.limits.client_record import parse_record, read_client
from tidewarden.tokens.policy import failures

from .facts import account_facts, away_facts, client_facts
from .story import Story, account_story, away_story, provider_story

AWAY_S = 5.0
"""A store that has not answered for so long counts as away."""


class StoryReader:
    """Tells stories for one node."""

    def __init__(
        self,
        accounts: AccountStore,
        queue_of: Mapping[str, str],
        cache: Cache,
        clock: Clock,
        patience: failures.Patience,
        near: NearAccounts | None = None,
    ) -> None:
        """
        Find each provider's queue in ``queue_of``.

        Read the node's own copy of the data by ``near``; None: it has none.
        """
        self._near = near
        self._accounts = accounts
        self._queue_of = queue_of
        self._cache = cache
        self._clock = clock
        self._patience = patience

    async def account(self, provider: Provider, name: str) -> Story:
        """
        Tell the story of an account; from a copy that stands in for the primary it has the mark.

        Raises: NotFound.
        """
        queue = self._queue_of[provider.name]

        async def read(accounts: AccountStore, mark: Mark) -> Story:
            reading, seen = await asyncio.gather(
                accounts.get(queue, name), read_client(queue, accounts, copied=bool(mark))
            )
            if reading.row is None and mark:
                raise errors.NoQuorum(f"{ALONE}, and this node's copy has no such account")
            if reading.row is None:
                raise errors.NotFound(f"there is no account {provider.name}/{name}")
            client = client_facts(provider, *seen)
            facts = account_facts(
                client, name, reading.row, reading.troubles, reading.now_ms, self._patience
            )
            return account_story(facts) | mark

        left_ms = self._cache.left_ms(f"{provider.name}/{name}")
        return await self._or_away(read, provider, name, left_ms)

    async def provider(self, provider: Provider) -> Story:
        """Tell the story of a provider; it has the mark likewise."""
        queue = self._queue_of[provider.name]

        async def read(accounts: AccountStore, mark: Mark) -> Story:
            found = await accounts.figures(queue)
            record = parse_record(found.client)
            facts = client_facts(provider, record, found.clock_ms, found.lag_ms, found.counts)
            return provider_story(facts) | mark

        return await self._or_away(read, provider, "", 0)

    async def _or_away(
        self,
        read: Callable[[AccountStore, Mark], Awaitable[Story]],
        provider: Provider,
        name: str,
        left_ms: int,
    ) -> Story:
        """
        Tell a story by ``read``, or that the store is away.

        ``left_ms``: how long the token that this node served last of the account still lives; 0: it
        does not.
        """
        try:
            async with asyncio.timeout(AWAY_S):
                if self._near is None:
                    return await read(self._accounts, {})
                return await self._near.answered(self._accounts, read)
        except TimeoutError:
            reason = f"it has not answered for {AWAY_S:g} s"
        except (errors.StoreDown, errors.NoQuorum) as error:
            reason = str(error)
        now_ms = self._clock.unix_ms()
        return away_story(away_facts(provider, name, left_ms, reason, now_ms))
