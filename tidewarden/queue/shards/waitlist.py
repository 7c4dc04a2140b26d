"""
Keeps the takes that wait in one shard, oldest first.

The waitlist decides how many of them are tried when tasks may be ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tidewarden.store.connection import Arg

if TYPE_CHECKING:
    from .shard import Shard

TRIES_MAX = 16  # takes that are tried in one round
# Waiting takes that are looked at for one call of puts: many may be busy, or want another task.
LOOKS_MAX = 256
RETRY_S = 0.5  # after a round of which a try failed


class Waiter(Protocol):
    """Shows a waiting take to a shard."""

    count: int
    """The most tasks that it takes."""
    task_id: str
    """The only task it wants, or "". If such a take finds nothing, others may find a task."""

    @property
    def free(self) -> bool:
        """Return whether the take can be tried: it has no question under way, and has not ended."""

    def try_shard(self, shard: Shard, tries: Tries, *, more: bool) -> None:
        """
        Take from ``shard`` now, and tell ``tries`` the outcome. ``more``: further takes wait there.
        """

    def try_later(self, shard: Shard) -> None:
        """Take from ``shard`` once it is not busy any more, unless it has ended then."""

    def stop_waiting(self) -> None:
        """End the take with the tasks that it has."""

    def fail(self, error: BaseException) -> None:
        """End the take with the error."""


class Tries(Protocol):
    """
    Hears of the outcomes of tries.

    ``along``: the tries go with others' puts, whose failure is not theirs.
    """

    along: bool

    def tried(self, waiter: Waiter, found: bool | None) -> None:
        """Note whether ``waiter`` has found a task; None: its try failed."""


class Waitlist:
    """
    Tries the takes that wait in ``shard``, in rounds.

    A round tries one take, and the next one twice as many, as long as all of them find something
    and there is more.

    A try that is not told of more leaves the node registered in the shard (see ``lua/take.lua``),
    so that it is woken when the next task becomes ready. While a take waits here, its node is
    registered, or a round is to come.
    """

    along = False
    __slots__ = (
        "_all_found",
        "_along",
        "_failed",
        "_left",
        "_seen",
        "_shard",
        "_size",
        "_timer",
        "parked",
    )

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.parked: dict[Waiter, None] = {}
        self._left = 0  # tries of the round that are under way
        self._size = 1
        self._seen = 0
        self._all_found = False
        self._failed = False
        self._along = _Along(self)
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """
        Begin a round, because tasks may be ready.

        A round under way sees at its end that the shard has been woken.
        """
        self._along.pays = True
        if self._left == 0:
            self._size = 1
            self._round()

    def go_along(self, ids: Sequence[Arg], tasks: int, tasks_max: int) -> None:
        """
        Try the oldest takes in the call that puts ``ids``.

        As many are tried as its ``tasks`` that are ready at once suffice for. A take that wants one
        task is tried if that is among ``ids``. Together they take at most ``tasks_max``.
        """
        if not self._along.pays:
            return
        chosen: list[Waiter] = []
        for waiter in itertools.islice(self.parked, LOOKS_MAX):
            if tasks <= 0 or waiter.count > tasks_max:
                break
            if waiter.free and (not waiter.task_id or waiter.task_id in ids):
                chosen.append(waiter)
                tasks -= waiter.count
                tasks_max -= waiter.count
        more = len(self.parked) > len(chosen)
        for waiter in chosen:
            waiter.try_shard(self._shard, self._along, more=more)

    def _round(self) -> None:
        chosen = self._oldest(self._size)
        if not chosen:
            return
        self._left, self._seen, self._all_found, self._failed = (
            len(chosen),
            self._shard.wakes,
            True,
            False,
        )
        more = len(self.parked) > len(chosen)
        for waiter in chosen:
            waiter.try_shard(self._shard, self, more=more)

    def _oldest(self, most: int) -> list[Waiter]:
        """
        Return so many takes that are free, and with them earlier ones that want one task alone.

        A busy take will look by itself.
        """
        chosen: list[Waiter] = []
        for waiter in self.parked:
            if not waiter.free:
                waiter.try_later(self._shard)
                continue
            chosen.append(waiter)
            most -= not waiter.task_id
            if most == 0:
                break
        return chosen

    def tried(self, waiter: Waiter, found: bool | None) -> None:
        if found is None:
            self._failed = True
        elif not found and not waiter.task_id:
            self._all_found = False
        self._left -= 1
        if self._left > 0 or not self.parked:
            return
        if self._failed:
            self.retry_later()
        elif self._shard.wakes != self._seen:
            self._size = min(2 * self._size, TRIES_MAX) if self._all_found else 1
            self._round()

    def retry_later(self) -> None:
        """
        Try again after a while.

        The store may have removed this node from those that it wakes, and no take has registered it
        again.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._shard.wake()


class _Along:
    """
    Hears of the outcomes of tries that went along with puts.

    ``pays``: whether the latest try found a task, or there was a wake-up since.
    """

    along = True
    __slots__ = ("_waitlist", "pays")

    def __init__(self, waitlist: Waitlist) -> None:
        self._waitlist = waitlist
        self.pays = True

    def tried(self, _waiter: Waiter, found: bool | None) -> None:
        if found is None:
            self._waitlist.retry_later()
        else:
            # A try is in vain where the queue is paused, or the tasks' lanes are busy.
            self.pays = found
