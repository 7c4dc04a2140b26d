"""
Levels one client's load: what falls due together is refreshed ahead of time, while there is room.

Each node runs one; the first that comes to a shard does that round. A fleet that falls due evenly
is left alone.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_store import AccountStore

log = logging.getLogger("tidewarden.tokens")

# Between two rounds: while there is something to level, while there might be, else.
PERIOD_S = (1.0, 5.0, 30.0)
PERIOD_S_MAX = 480.0
"""
If little falls due the period doubles up to this, and up to a quarter of the horizon: at thousands
of providers the readings alone kept a store busy.
"""
# Accounts of a shard that fall due within the horizon and are not worth a look every few seconds.
FEW = 64
MOVED_MAX = 200  # A script blocks the store while it runs; what is left comes with the next round.
PERIOD_S_MIN = 1 / 16
"""
The pause between two rounds that each move as many as they may: 3,200 accounts of a shard a second.
"""
HORIZON_S_MAX = 6 * 3600.0


class Leveller:
    """
    Levels one client's accounts.

    ``life_s`` tells how long a token lives there; ``room`` tells whether there is room for
    refreshes that could wait.
    """

    def __init__(
        self,
        provider: Provider,
        queue: str,
        accounts: AccountStore,
        clock: Clock,
        life_s: Callable[[], float],
        room: Callable[[], bool],
    ) -> None:
        self._provider = provider
        self._queue = queue
        self._accounts = accounts
        self._clock = clock
        self._life_s = life_s
        self._room = room
        # Levellers of thousands of providers that begin together would ask the store together for
        # ever.
        self._begin_s = PERIOD_S[1] + zlib.crc32(queue.encode()) % 1000 / 1000 * (
            PERIOD_S[2] - PERIOD_S[1]
        )
        self.levelled = 0
        """Accounts that were refreshed ahead of their time by this node's doing."""

    @property
    def wanted(self) -> bool:
        """
        Return whether this provider's work may be levelled.

        It may not if an early refresh is forbidden, or does harm.
        """
        provider = self._provider
        return (
            provider.level_share > 0
            and not provider.not_before_s
            and not provider.kills_access_token
        )

    async def run(self) -> None:
        """Level until cancelled; end at once where nothing may be levelled."""
        period_s, wait_s = PERIOD_S[1], self._begin_s
        while self.wanted:
            await sleep(self._clock, wait_s)
            if not self._room():
                period_s = wait_s = PERIOD_S[1]
                continue
            try:
                period_s = await self.round(period_s)
            except errors.Error as error:
                log.debug("the work of %s is not levelled now: %s", self._provider.name, error)
                period_s = PERIOD_S[1]
            except Exception:  # nobody waits for this task, so its end would not be noticed
                log.exception(
                    "the work of %s is not levelled now, for a reason of ours", self._provider.name
                )
                period_s = PERIOD_S[2]
            wait_s = period_s

    async def round(self, period_s: float) -> float:
        """
        Level every shard once; return the seconds until the next round.

        Raises what the store raises.
        """
        life_s = self._life_s()
        horizon_ms = int(min(life_s * self._provider.level_share, HORIZON_S_MAX) * 1000)
        if horizon_ms < 1000 * PERIOD_S[1]:
            return PERIOD_S[2]  # So short a life leaves nothing to level.
        found = await self._accounts.level_all(
            self._queue, horizon_ms, int(period_s * 1000), MOVED_MAX, int(life_s * 1000)
        )
        most = max(moved for moved, _ in found)
        self.levelled += sum(moved for moved, _ in found)
        if most >= MOVED_MAX:
            return max(PERIOD_S_MIN, min(period_s, PERIOD_S[0]) / 2)
        if most:
            return PERIOD_S[0] if most < MOVED_MAX // 4 else min(period_s, PERIOD_S[0])
        if max(due for _, due in found) >= FEW:
            return PERIOD_S[1]
        return max(PERIOD_S[2], min(2 * period_s, PERIOD_S_MAX, horizon_ms / 4000))
