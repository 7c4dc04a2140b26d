"""
Gives notice, some days ahead, that an account's refresh token ends at a fixed time.

Every node looks every ten minutes at the shards that know of any; the first that comes leaves the
notices in the shard's outbox, from where they are told like all else that becomes of accounts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.tokens.accounts.account_store import AccountStore

from .outbox import Having

log = logging.getLogger("tidewarden.tokens")

CONSENTS = "account_consents"
"""The key of those whose consents end, in each shard that has some (see lua/prelude.lua)."""
LOOK_S = 600.0
AWAY_S = 10.0
PAGE = 200
PAUSE_S = 0.01  # Between two shards: other work goes first.


class Consents:
    """Looks for consents that end soon, by :meth:`run`, until cancelled."""

    def __init__(
        self,
        accounts: AccountStore,
        queues: Iterable[str],
        having: Having,
        days: Sequence[int],
        told: Callable[[str, int], None],
        clock: Clock,
    ) -> None:
        """
        Watch the accounts in ``queues``.

        ``having`` is ``Queues.having``; ``told`` hears in which queue and shard notices were left.
        """
        self._accounts = accounts
        self._queues = queues
        self._having = having
        self._days = sorted(set(days))
        self._told = told
        self._clock = clock

    async def run(self) -> None:
        """Leave notices that are due, for ever; return at once where none are wanted."""
        while self._days:
            try:
                await self.look()
                pause_s = LOOK_S
            except errors.Error as error:
                log.warning("that consents end is told later: %s %s", error.code, error)
                pause_s = AWAY_S
            except Exception:  # nobody waits for this task, so its end would not be noticed
                log.exception("that consents end is told later, for a reason of ours")
                pause_s = LOOK_S
            await sleep(self._clock, pause_s)

    async def look(self) -> None:
        """
        Leave all notices that are due now.

        Raises what the store raises; notices that were not left stay due.
        """
        for queue, shard in await self._having(list(self._queues), CONSENTS):
            more = True
            while more:
                left, more = await self._accounts.consents(queue, shard, PAGE, self._days)
                if left:
                    self._told(queue, shard)
                await sleep(self._clock, PAUSE_S)
