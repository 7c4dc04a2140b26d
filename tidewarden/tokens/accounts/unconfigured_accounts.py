"""
Tells which accounts in the store no configured provider is for.

A provider was renamed, say, or given another client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from tidewarden import errors
from tidewarden.clock import Clock, sleep_or
from tidewarden.config.provider import QUEUE_PREFIX

from .account_store import AccountStore

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 600.0


class UnconfiguredAccounts:
    """
    Counts accounts in the store that no configured provider is for, and names them in the log.

    ``names``: every queue there is. ``configured``: those of this node's providers, as they are
    now.
    """

    def __init__(
        self,
        accounts: AccountStore,
        names: Callable[[], Awaitable[list[str]]],
        configured: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        self._accounts = accounts
        self._names = names
        self._configured = configured
        self._clock = clock
        self._changed = asyncio.Event()
        self._found: dict[str, int] = {}

    def change(self) -> None:
        """Note that the providers have changed."""
        self._changed.set()

    def warning(self) -> str:
        """Return how many there are, in words; empty: none."""
        accounts = sum(self._found.values())
        return (
            f"{accounts:,} accounts in the store are not refreshed: no provider of this node's"
            " configuration is for them"
            if accounts
            else ""
        )

    async def run(self) -> None:
        """Look for them at the start, after each change of the providers, and now and then."""
        while True:
            self._changed.clear()
            await self._look()
            await sleep_or(self._changed, self._clock, self._clock.monotonic() + LOOK_S)

    async def _look(self) -> None:
        try:
            found = {
                queue: (await self._accounts.stats(queue))["total"]
                for queue in sorted(set(await self._names()) - set(self._configured()))
                if queue.startswith(QUEUE_PREFIX)
            }
        except errors.Error as error:
            log.debug("accounts without a provider were not looked for: %s", error)
            return
        before, self._found = self._found, {queue: many for queue, many in found.items() if many}
        for queue in sorted(self._found.keys() - before.keys()):
            _say(queue, found[queue])


def _say(queue: str, accounts: int) -> None:
    provider, _, client = queue.removeprefix(QUEUE_PREFIX).partition(":")
    log.warning(
        "%d accounts of the provider %s and its client %s lie in the store, which this node"
        " is not configured for: it does not refresh them (docs/providers.md, Names)",
        accounts,
        provider,
        client,
    )
