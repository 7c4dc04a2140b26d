"""
Puts companion tasks: work for each account now and then, while its token can be kept fresh.

They are dropped when it cannot.

A task's id is ``COMPANION:provider/name``, so that there is one at most; it is put for the
account's next time, of which there is one in each interval, whenever its token was refreshed. So
nothing has to be remembered, and a put that was lost is made up for by the next refresh. Consumers
read the token when they do the work, not before: ``T.GET``.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Companion
from tidewarden.log import OncePer
from tidewarden.queue.task import TaskSpec

log = logging.getLogger("tidewarden.tokens")

WAITING_MAX = 100_000
AT_ONCE = 100
AWAY_S = 1.0
SAY_S = 60.0
ID_BYTES_MAX = 200

Put = Callable[[str, TaskSpec], Awaitable[str]]
"""``Queues.put``."""
Drop = Callable[[str, str], Awaitable[int]]
"""Deletes a task of a queue by its id, although the task may be leased."""


class Companions:
    """
    Puts and drops companion tasks.

    :meth:`fresh` and :meth:`over` note accounts and return at once; :meth:`run` puts and drops.
    """

    def __init__(
        self, companions: Mapping[str, Companion], put: Put, drop: Drop, clock: Clock
    ) -> None:
        self._put = put
        self._drop = drop
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._lost = 0
        """Lost notes of companions that are gone."""
        self.change(companions)

    def change(self, companions: Mapping[str, Companion]) -> None:
        """Replace the companions; notes that wait for a changed one use its new settings."""
        for name, line in list(self._lines.items()):
            if companions.get(name) == line.companion:
                continue
            del self._lines[name]
            self._lost += line.lost
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()
            if name in companions:
                self._add(companions[name], line)
        for name, companion in companions.items():
            if name not in self._lines:
                self._add(companion)

    def _add(self, companion: Companion, former: _Line | None = None) -> None:
        line = self._lines[companion.name] = _Line(companion, self._put, self._drop, self._clock)
        if former is not None:
            line.take_over(former)
        if self._group is not None:
            self._tasks[companion.name] = self._group.create_task(line.run())

    def fresh(self, account: str) -> None:
        """Note that the token of ``provider/name`` lives, and can be refreshed."""
        for line in self._lines.values():
            line.note(account, True)

    def over(self, account: str) -> None:
        """Note that the account is dead, or gone."""
        for line in self._lines.values():
            line.note(account, False)

    @property
    def lost(self) -> int:
        """
        Count the notes that were lost because too many waited; the next refresh makes up for them.
        """
        return self._lost + sum(line.lost for line in self._lines.values())

    async def run(self) -> None:
        """Put and drop tasks, for ever."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name, line in self._lines.items():
                self._tasks[name] = group.create_task(line.run())
            await asyncio.Event().wait()


class _Line:
    """Queues the notes for one companion, so that one whose queue is full holds up no other."""

    def __init__(self, companion: Companion, put: Put, drop: Drop, clock: Clock) -> None:
        self.companion = companion
        self._put = put
        self._drop = drop
        self._clock = clock
        self._waiting: OrderedDict[str, bool] = OrderedDict()
        self._noted = asyncio.Event()
        self._complaints = OncePer(clock, SAY_S)
        self.lost = 0

    def take_over(self, former: _Line) -> None:
        """Take over the notes of the companion that this one replaces."""
        for account, lives in former._waiting.items():
            self.note(account, lives)

    def note(self, account: str, lives: bool) -> None:
        """Note that the account lives, or that it does not, from now on."""
        providers = self.companion.providers
        if providers and account.partition("/")[0] not in providers:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popitem(last=False)
            self.lost += 1
        self._waiting[account] = lives
        self._noted.set()

    async def run(self) -> None:
        """Put and drop the tasks of noted accounts, for ever."""
        while True:
            await self._noted.wait()
            some = [
                self._waiting.popitem(last=False) for _ in range(min(AT_ONCE, len(self._waiting)))
            ]
            ends = await asyncio.gather(
                *(self._do(account, lives) for account, lives in some), return_exceptions=True
            )
            late = [(note, end) for note, end in zip(some, ends, strict=True) if end is not None]
            for (account, lives), end in late:
                if not isinstance(end, errors.Error):
                    raise end
                self._waiting.setdefault(account, lives)  # What was noted since is newer.
            if late:
                self._say(f"of {len(late)} accounts wait: {late[0][1]}")
                await sleep(self._clock, AWAY_S)
            if not self._waiting:
                self._noted.clear()

    async def _do(self, account: str, lives: bool) -> None:
        """Raises: Error: it can be tried again."""
        companion, (provider, _, name) = self.companion, account.partition("/")
        task_id = f"{companion.name}:{account}"
        if len(task_id) > ID_BYTES_MAX:
            self._say(f"cannot be put for accounts with so long a name as {account}")
            return
        try:
            if not lives:
                await self._drop(companion.queue, task_id)
                return
            at_ms = next_time(account, self._clock.unix_ms(), int(companion.interval_s * 1000))
            words = {"{account}": account, "{provider}": provider, "{name}": name}
            payload = companion.payload
            for word, text in words.items():
                payload = payload.replace(word, text)
            await self._put(companion.queue, TaskSpec(payload.encode(), id=task_id, at_ms=at_ms))
        except (errors.BadArg, errors.TooBig, errors.NotFound) as error:
            self._say(f"cannot be put in {companion.queue}: {error}")

    def _say(self, what: str) -> None:
        """Log what happened to the companion's tasks, once a minute."""
        if self._complaints.passes():
            log.warning("companion tasks of %s %s", self.companion.name, what)


def next_time(account: str, now_ms: int, interval_ms: int) -> int:
    """
    Return the account's next time, later than ``now_ms``.

    It has one in each interval, and all accounts' are spread evenly over it.
    """
    offset_ms = zlib.crc32(account.encode()) % interval_ms
    return ((now_ms - offset_ms) // interval_ms + 1) * interval_ms + offset_ms
