"""
Logs at the start which accounts in the store no configured provider is for.

A provider was renamed, say, or given another client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from tidewarden import errors
from tidewarden.config.provider import QUEUE_PREFIX

from .account_store import AccountStore

log = logging.getLogger("tidewarden.tokens")


class UnconfiguredAccounts:
    """
    Names accounts in the store that no configured provider is for.

    ``names``: every queue there is. ``configured``: those of this node's providers.
    """

    def __init__(
        self,
        accounts: AccountStore,
        names: Callable[[], Awaitable[list[str]]],
        configured: Collection[str],
    ) -> None:
        self._accounts = accounts
        self._names = names
        self._configured = configured

    async def say(self) -> None:
        """
        Name these accounts in the log. Never raises: it says nothing if the store does not answer.
        """
        try:
            for queue in sorted(set(await self._names()) - set(self._configured)):
                if queue.startswith(QUEUE_PREFIX):
                    self._say(queue, (await self._accounts.stats(queue))["total"])
        except errors.Error as error:
            log.debug("accounts without a provider were not looked for: %s", error)

    def _say(self, queue: str, accounts: int) -> None:
        if accounts:
            provider, _, client = queue.removeprefix(QUEUE_PREFIX).partition(":")
            log.warning(
                "%d accounts of the provider %s and its client %s lie in the store, which this node"
                " is not configured for: it does not refresh them (docs/providers.md, Names)",
                accounts,
                provider,
                client,
            )
