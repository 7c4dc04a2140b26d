"""
Ends a dead node's leases early, where a used refresh token works for a while longer.

An intent lasts as long as the longest request, whatever becomes of its node; where that is longer
than the grace, the account would be lost although the answer could be had again. So when half of
the grace is over, such a request is made again. See ``tokens/lua/rescue.lua``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_store import AccountStore

from .refresher import lease_ms_of

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 0.5
DEAD_S = 10.0
"""A node that is missed may be declared dead so long afterwards, shard by shard."""
SLACK_S = 5.0
"""The usual longest time from the end of a lease until its account's turn."""
LEFT_MS = 500
MOST = 500


class Rescue:
    """
    Looks for one node.

    Args:
        queues: of accounts, by provider.
        nodes: how many nodes live.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        queues: Mapping[str, str],
        accounts: AccountStore,
        clock: Clock,
        nodes: Callable[[], int],
    ) -> None:
        self._queues = queues
        self._graces: dict[str, int] = {}
        self._concerned = asyncio.Event()
        self.change(providers)
        self._accounts = accounts
        self._clock = clock
        self._nodes = nodes

    def change(self, providers: Mapping[str, Provider]) -> None:
        """Use these providers from now on."""
        self._graces = {
            self._queues[name]: int(one.grace_s * 1000)
            for name, one in providers.items()
            if _concerned(one)
        }
        if self._graces:
            self._concerned.set()
        else:
            self._concerned.clear()

    async def run(self) -> None:
        """
        Look when fewer nodes live than before, for ever, while any provider is concerned.
        """
        living, rounds = 0, -1
        while True:
            await self._concerned.wait()
            most = int((DEAD_S + max(self._graces.values()) / 1000) / LOOK_S)
            rounds = most if rounds < 0 else rounds  # one may have died before this one began
            now = self._nodes()
            rounds = most if now < living else rounds
            living = now
            if rounds:
                rounds -= 1
                try:
                    await self.look()
                except errors.Error as error:
                    log.debug("what dead nodes had under way is looked for later: %s", error)
            await sleep(self._clock, LOOK_S)

    async def look(self) -> int:
        """Look once everywhere: how many accounts go on. Raises what the store raises."""
        found = 0
        for queue, grace_ms in list(self._graces.items()):
            args = (grace_ms, LEFT_MS, MOST)
            looks = (
                self._accounts.script("tokens.rescue", queue, shard, args)
                for shard in range(await self._accounts.shards(queue))
            )
            found += sum(await asyncio.gather(*looks))
        if found:
            log.warning(
                "%d refreshes that dead nodes had under way are made again, within the grace", found
            )
        return found


def _concerned(provider: Provider) -> bool:
    """
    Return whether a dead node's lease would outlast the grace.

    Where it would not, there is no need for haste, and nothing is sent twice.
    """
    lasts_s = lease_ms_of(provider) / 1000 + SLACK_S
    return provider.rotation == "single_use" and 0 < provider.grace_s <= lasts_s
