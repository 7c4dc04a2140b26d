"""
Companion tasks: work that goes with each account now and then, put while its token can be kept fresh, dropped when not.

A task's id is ``COMPANION:provider/name``, so that there is one at most; it is put for the account's next time, of which
there is one in each interval, whenever its token was refreshed. So nothing has to be remembered, and a put that was lost
is made up for by the next refresh. Consumers read the token when they do the work, not before: ``T.GET``.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config import Companion
from tidewarden.queue.task import NewTask

log = logging.getLogger("tidewarden.tokens")

WAITING_MAX = 100_000
AT_ONCE = 100
AWAY_S = 1.0
ID_BYTES_MAX = 200

Put = Callable[[str, NewTask], Awaitable[str]]
"""``Queues.put``."""
Drop = Callable[[str, str], Awaitable[int]]
"""Deletes a task, whoever holds it: queue and id."""


class Companions:
    """Of one node. :meth:`fresh` and :meth:`over` return at once; :meth:`run` does what they note."""

    def __init__(self, companions: Mapping[str, Companion], put: Put, drop: Drop, clock: Clock) -> None:
        self._companions = companions
        self._put = put
        self._drop = drop
        self._clock = clock
        self._waiting: OrderedDict[str, bool] = OrderedDict()
        self._noted = asyncio.Event()
        self.lost = 0
        """Notes that came while too many waited for the store: the next refresh makes up for them."""

    def fresh(self, account: str) -> None:
        """The token of ``provider/name`` lives, and can be refreshed."""
        self._note(account, True)

    def over(self, account: str) -> None:
        """The account is dead, or gone."""
        self._note(account, False)

    async def run(self) -> None:
        """Put and drop tasks, for ever."""
        if not self._companions:
            return
        while True:
            await self._noted.wait()
            some = [self._waiting.popitem(last=False) for _ in range(min(AT_ONCE, len(self._waiting)))]
            try:
                await asyncio.gather(*(self._do(account, lives) for account, lives in some))
            except errors.Error as error:
                log.warning("companion tasks of %d accounts wait: %s %s", len(some), error.code, error)
                for account, lives in some:
                    self._waiting.setdefault(account, lives)  # What was noted since is newer.
                await sleep(self._clock, AWAY_S)
            if not self._waiting:
                self._noted.clear()

    def _note(self, account: str, lives: bool) -> None:
        if not self._companions:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popitem(last=False)
            self.lost += 1
        self._waiting[account] = lives
        self._noted.set()

    async def _do(self, account: str, lives: bool) -> None:
        provider, _, name = account.partition("/")
        for companion in self._companions.values():
            if companion.providers and provider not in companion.providers:
                continue
            task_id = f"{companion.name}:{account}"
            if len(task_id) > ID_BYTES_MAX:
                log.warning("%s has too long a name for companion tasks of %s", account, companion.name)
                continue
            try:
                if not lives:
                    await self._drop(companion.queue, task_id)
                    continue
                at_ms = next_time(account, self._clock.unix_ms(), int(companion.interval_s * 1000))
                words = {"{account}": account, "{provider}": provider, "{name}": name}
                payload = companion.payload
                for word, text in words.items():
                    payload = payload.replace(word, text)
                await self._put(companion.queue, NewTask(payload.encode(), id=task_id, at_ms=at_ms))
            except (errors.StoreDown, errors.Full):
                raise
            except errors.Error as error:
                log.warning("companion task %s in %s: %s %s", task_id, companion.queue, error.code, error)


def next_time(account: str, now_ms: int, interval_ms: int) -> int:
    """The account's next time, later than ``now_ms``: one in each interval, all accounts' spread evenly over it."""
    offset_ms = zlib.crc32(account.encode()) % interval_ms
    return ((now_ms - offset_ms) // interval_ms + 1) * interval_ms + offset_ms
