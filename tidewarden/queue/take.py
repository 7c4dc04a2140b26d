"""
One take under way: it asks its shards in turn, waits parked at all of them, and hands back what
nobody is there for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tidewarden.errors import Stale, StoreDown

from .sessions.session import Session
from .shards.reply_durability import Unconfirmed
from .shards.resharding import Resharded
from .shards.shard import Shard
from .shards.waitlist import Tries
from .task import Taken

TOLD_OF_FEWER, TOLD_OF_MORE = 2, 3  # see take.lua
RETRY_S = 0.5  # after the store refused, or was away


class Take:
    """
    A take of at most ``count`` tasks from ``shards``, in that order; :attr:`future` gets the tasks.

    At most one script of it is under way at any time. With ``until`` (the loop's time, 0: it does
    not wait) it ends at the first task, or empty when that time is over. When its session has
    closed meanwhile, what arrives goes back without counting as an attempt. One that waits outlives
    the store's absence: it asks again, and fails only when its time is over and the store still
    does not answer. What missed its durability goes back, and the take fails.
    """

    __slots__ = (
        "_again",
        "_busy",
        "_ended",
        "_from",
        "_got",
        "_lease_ms",
        "_loop",
        "_on_end",
        "_parked",
        "_seen",
        "_session",
        "_shards",
        "_timer",
        "_trouble",
        "_until",
        "_waits",
        "count",
        "future",
        "task_id",
    )

    def __init__(
        self,
        session: Session,
        shards: Sequence[Shard],
        *,
        until: float,
        on_end: Callable[[Take], None],
        count: int = 1,
        lease_ms: int = 0,
        task_id: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Taken]] = self._loop.create_future()
        self._session = session
        self._shards = shards
        self.count = count
        self._lease_ms = lease_ms
        self.task_id = task_id
        self._waits = until > 0
        self._on_end = on_end
        self._got: list[Taken] = []
        self._from: list[Shard] = []
        self._seen: list[int] = []
        self._again: list[Shard] = []
        self._busy = False
        self._parked = False
        self._trouble: BaseException | None = None
        self._ended = False
        self._until = until
        self._timer: asyncio.TimerHandle | None = None
        self.future.add_done_callback(self._released)

    @property
    def arrived(self) -> list[tuple[str, str, int]]:
        """Queue, id and lease of what it has got while it goes on asking."""
        return (
            [] if self.future.done() else [(task.queue, task.id, task.lease) for task in self._got]
        )

    def start(self) -> None:
        """Ask the first shard; the rest follows by itself."""
        self._seen = [shard.wakes for shard in self._shards]
        self._ask(0)

    def resume(self, wakes: int, error: BaseException | None) -> None:
        """
        Go on where its one shard was asked already, at its wake-up number ``wakes``, and had
        nothing or failed.
        """
        self._seen = [wakes]
        if error is None:
            self._asked_all()
        else:
            self._trouble = error
            self._ask_later()

    def _ask(self, position: int) -> None:
        """
        Ask the shards from ``position`` on, one after the other; those that are known to hold
        nothing are passed by.
        """
        if self._waits and not self.task_id and self._trouble is None:
            while position < len(self._shards) and self._shards[position].bare.holds(
                self._shards[position]
            ):
                position += 1
        if self.future.done() or position == len(self._shards) or len(self._got) >= self.count:
            self._asked_all()
            return
        shard = self._shards[position]
        count = self.count - len(self._got)
        self._take_from(
            shard, count, self._waits, bool(shard.parked), lambda: self._ask(position + 1)
        )

    def _take_from(
        self,
        shard: Shard,
        count: int,
        wait: bool,
        more: bool,
        then: Callable[[], None],
        tries: Tries | None = None,
    ) -> None:
        """
        Ask for so many; ``then`` follows unless that failed. ``more``: other takes wait there.
        """
        # Of several shards, one that gave less than was asked for is passed by next time: so this
        # node has to be told of more.
        if more and not self.task_id:
            how = TOLD_OF_MORE
        elif wait and len(self._shards) > 1:
            how = TOLD_OF_FEWER
        else:
            how = int(wait and not self._got)
        self._busy = True
        question = _Question(self, shard, count, how, then, tries)
        shard.take(
            question,
            count,
            self._lease_ms,
            how,
            self.task_id,
            self._session.uuid,
            first=self._parked,
        )

    def came(self, question: _Question, rows: Sequence[Any]) -> None:
        """An answer: tasks, perhaps none."""
        self._busy = False
        self._trouble = None
        shard = question.shard
        tasks = taken_from(shard, rows)
        question.noted(len(tasks))
        if self.future.done():
            give_back(tasks, [shard] * len(tasks))
            return
        self._got += tasks
        self._from += [shard] * len(tasks)
        question.then()

    def went_with_others(self, error: BaseException) -> None:
        """
        What failed was the call of puts that it went along with: it goes on waiting where it
        stands.
        """
        self._busy = False
        if self._ended:
            self._end(error=error)
        elif not self.future.done():
            self._tried()

    def failed(self, shard: Shard, error: BaseException) -> None:
        """A question was refused, or nobody knows."""
        self._busy = False
        self._trouble = error
        if isinstance(error, Unconfirmed) and error.item:
            give_back(taken_from(shard, error.item), [shard] * len(error.item))
            self._end(error=error)
        elif isinstance(error, Resharded) and self._waits:
            self._trouble = None
            # these shards are the queue's no longer: whoever waits here asks again
            self._time_over()
        elif (
            isinstance(error, StoreDown | Stale | Unconfirmed)
            and self._waits
            and not (self._got or self._ended or self.future.done())
        ):
            self._ask_later()
        else:
            self._end(error=error)

    def _ask_later(self) -> None:
        """
        The store is away, or this node has to register again: the take goes on waiting, and asks
        anew.
        """
        if self._parked:
            self._parked = False
            for shard in self._shards:
                shard.unpark(self)
        self._again.clear()
        self._arm()
        self._loop.call_later(RETRY_S, self.start)

    def _arm(self) -> None:
        """
        It has to wait: only now a timer is needed, which a take that finds a task at once never is.
        """
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._time_over)

    def _asked_all(self) -> None:
        if self.future.done():
            return
        if self._got or not self._waits or self._ended:
            self._end()
            return
        self._arm()
        # A wake-up that came between a shard's answer and now is not lost: ask again where there
        # was one.
        missed = [i for i, shard in enumerate(self._shards) if shard.wakes != self._seen[i]]
        if missed:
            self.start()
            return
        self._parked = True
        for shard in self._shards:
            shard.park(self)

    @property
    def free(self) -> bool:
        """Whether a shard can try it now."""
        return not self._busy and not self.future.done()

    def try_shard(self, shard: Shard, tries: Tries | None, *, more: bool) -> None:
        """Called by a shard in which something may be ready, when it is free."""
        self._take_from(shard, self.count, True, more, self._tried, tries)

    def try_later(self, shard: Shard) -> None:
        """Likewise, when it is not."""
        if shard not in self._again:
            self._again.append(shard)

    def _tried(self) -> None:
        if self._got or self._ended:
            self._end()
        elif self._again:
            shard = self._again.pop(0)
            self.try_shard(shard, None, more=len(shard.parked) > 1)

    def stop_waiting(self) -> None:
        """Answer with what there is, as if the waiting time were over."""
        self._time_over()

    def _time_over(self) -> None:
        self._timer = None
        self._ended = True
        if not self._busy:
            self._end(error=self._trouble)

    def _end(self, error: BaseException | None = None) -> None:
        if self.future.done():
            return
        if error is not None and not self._got:
            self.future.set_exception(error)
        else:
            if self._got:
                self._session.hold(self._got, self._from[0].now_ms)
            self.future.set_result(self._got)

    def _released(self, _future: asyncio.Future[list[Taken]]) -> None:
        """The future is done, or the caller cancelled it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._parked:
            for shard in self._shards:
                shard.unpark(self)
        if self.future.cancelled():
            give_back(self._got, self._from)
        self._on_end(self)


class _Question:
    """What a take asks one shard, under way; it receives the shard's answer."""

    __slots__ = ("_count", "_how", "_take", "_tries", "_wakes", "shard", "then")

    def __init__(
        self,
        take: Take,
        shard: Shard,
        count: int,
        how: int,
        then: Callable[[], None],
        tries: Tries | None,
    ) -> None:
        self._take = take
        self.shard = shard
        self._count = count
        self._how = how
        self.then = then
        self._tries = tries
        self._wakes = shard.wakes

    def done(self) -> bool:
        return False  # what was taken for one that has gone has to go back

    def set_result(self, rows: Any, /) -> None:
        self._take.came(self, rows)
        if self._tries is not None:
            self._tries.tried(self._take, bool(rows))

    def set_exception(self, error: BaseException, /) -> None:
        has_come = isinstance(error, Unconfirmed) and error.item
        if (
            self._tries is not None
            and self._tries.along
            and not has_come
            and not isinstance(error, Resharded)
        ):
            self._take.went_with_others(error)
        else:
            self._take.failed(self.shard, error)
        if self._tries is not None:
            self._tries.tried(self._take, None)

    def noted(self, came: int) -> None:
        """So many came: what that says of the shard."""
        if came < self._count and not self._take.task_id:
            told = self._how >= TOLD_OF_FEWER or (self._how > 0 and came == 0)
            self.shard.bare.found(self.shard, self._wakes, told=told)


def taken_from(shard: Shard, rows: Sequence[Any]) -> list[Taken]:
    """The tasks of take.lua's rows."""
    return [Taken(shard.queue, row[0].decode("utf-8", "surrogateescape"), *row[1:]) for row in rows]


def give_back(tasks: Sequence[Taken], shards: Sequence[Shard]) -> None:
    """Nobody is there any more for what was taken: see :func:`hand_back`."""
    for task, shard in zip(tasks, shards, strict=True):
        hand_back(shard, task.id, task.lease)


def hand_back(shard: Shard, task_id: str, lease: int) -> None:
    """
    A task is ready again, and the attempt does not count. Where the store is away, its lease is
    looked for as a stray's is.
    """
    shard.end(task_id, lease, "release").add_done_callback(lambda done: _handed_back(shard, done))


def _handed_back(shard: Shard, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and isinstance(done.exception(), StoreDown):
        shard.lost_take()
