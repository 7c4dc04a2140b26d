"""Takes tasks: asks shards in turn, waits parked at all of them, gives back unwanted tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidewarden.errors import Stale, StoreDown
from tidewarden.store.connection import PATIENCE_S
from tidewarden.store.reply_errors import unanswered
from tidewarden.store.reply_sink import ReplySink

from .sessions.session import Session, gone
from .shards.reply_durability import Unconfirmed
from .shards.resharding import Resharded
from .shards.shard import Shard
from .shards.waitlist import Tries
from .task import Taken
from .task_times import TaskTimes
from .waits.drain import Drain

TOLD_OF_FEWER, TOLD_OF_MORE, ANYHOW = 2, 3, 4  # see take.lua
RETRY_S = 0.5  # after the store refused, or was away
BY_WAKE_UP = -1  # the position of a question that a shard has set off


class TakesUnderWay:
    """
    Keeps the takes of this node that wait or ask several shards.

    A take of one task from one shard is not among them before it waits: most find a task at once.
    """

    def __init__(self, drain: Drain) -> None:
        self.takes: set[Take] = set()
        self.drain = drain
        self.times = TaskTimes()

    def __len__(self) -> int:
        return len(self.takes)


class Take:
    """
    Takes at most ``count`` tasks from ``shards``, in that order; ``receiver`` gets a list.

    At most one question is under way at any time, and the take itself receives its answer. With
    ``until`` (the loop's time, 0: it does not wait) it ends at the first task, or empty when that
    time is over. When its session has closed meanwhile, what arrives goes back without counting as
    an attempt. One that waits outlives the store's absence: it asks again, and fails only when its
    time is over and the store still does not answer. What missed its durability goes back, and the
    take fails, or asks again where calls are sent again.
    """

    # Most takes find a task at their first question: what only others need is not set for each.
    _lease_ms = 0
    _known = False  # to its session, and to the takes under way
    _got: Sequence[Taken] = ()
    _from: Sequence[Shard] = ()
    _seen: Sequence[int] = ()
    _again: Sequence[Shard] = ()
    _parked = False
    _trouble: BaseException | None = None
    _time_is_over = False
    _ended = False
    _timer: asyncio.TimerHandle | None = None
    _lost_until = 0.0  # so long it asks again, though it does not wait; 0: no answer was lost
    _busy = False
    _position = 0  # of the question under way
    _tries: Tries | None = None
    count = 1
    task_id = ""
    anyhow = False
    """Whether the named task is taken although it is buried, or its queue paused."""

    def __init__(
        self,
        under_way: TakesUnderWay,
        session: Session,
        shards: Sequence[Shard],
        until: float,
        receiver: ReplySink,
    ) -> None:
        self._under_way = under_way
        self._session = session
        self._shards = shards
        self._until = until
        self.receiver = receiver

    def ask_once(self, shard: Shard, how: int) -> None:
        """Ask the one shard for one task, and wait only when there is none."""
        self._put_question(shard, 1, how)

    def start(self, count: int, lease_ms: int, task_id: str) -> None:
        """Ask the first shard; the rest follows by itself."""
        self.count = count
        self._lease_ms = lease_ms
        self.task_id = task_id
        self._join()
        self._ask_all()

    def wait_behind(self, shard: Shard) -> None:
        """Wait behind the takes that wait already: the shard is known to hold nothing."""
        self._wakes = shard.wakes
        if self._may_wait(None):
            self._asked_all()

    def _join(self) -> None:
        self._known = True
        self._under_way.takes.add(self)
        self._session.takes.add(self)

    @property
    def _waits(self) -> bool:
        return self._until > 0

    @property
    def _over(self) -> bool:
        """Return whether the take was answered, or its caller has gone."""
        return self._ended or self.receiver.done()

    @property
    def queues(self) -> set[str]:
        """Return the queues in which the take waits."""
        return {shard.queue for shard in self._shards}

    @property
    def arrived(self) -> list[tuple[str, str, int]]:
        """Return queue, id and lease of the tasks that it has while it goes on asking."""
        return [] if self._over else [(task.queue, task.id, task.lease) for task in self._got]

    # --- asking

    def _ask_all(self) -> None:
        self._seen = [shard.wakes for shard in self._shards]
        self._ask(0)

    def _ask(self, position: int) -> None:
        """
        Ask the shards from ``position`` on, one after the other.

        Shards that are known to hold nothing are passed by.
        """
        if self._waits and not self.task_id and self._trouble is None:
            while position < len(self._shards) and self._shards[position].known_empty.holds(
                self._shards[position]
            ):
                position += 1
        if self._over or position == len(self._shards) or len(self._got) >= self.count:
            self._asked_all()
            return
        shard = self._shards[position]
        self._position = position
        self._take_from(shard, self.count - len(self._got), self._waits, bool(shard.parked))

    def _take_from(self, shard: Shard, count: int, wait: bool, more: bool) -> None:
        """Ask for so many. ``more``: other takes wait there."""
        # Of several shards, one that gave less than was asked for is passed by next time: so this
        # node has to be told of more.
        if self.anyhow:
            how = ANYHOW
        elif more and not self.task_id:
            how = TOLD_OF_MORE
        elif wait and len(self._shards) > 1:
            how = TOLD_OF_FEWER
        else:
            how = int(wait and not self._got)
        self._put_question(shard, count, how)

    def _put_question(self, shard: Shard, count: int, how: int) -> None:
        self._busy = True
        self._asked = shard
        self._wanted = count
        self._how = how
        self._wakes = shard.wakes
        shard.take(
            self,
            count,
            self._lease_ms,
            how,
            self.task_id,
            self._session.uuid,
            first=self._parked,
        )

    # --- the answer to a question

    def done(self) -> bool:
        """
        Return False, because tasks that were taken for a consumer that has gone have to go back.
        """
        return False

    def set_result(self, rows: Any, /) -> None:
        """Take the answer: tasks, perhaps none."""
        self._busy = False
        self._trouble = None
        shard = self._asked
        tries, self._tries = self._tries, None  # what follows may be another question
        tasks = taken_from(shard, rows)
        if len(tasks) < self._wanted and not self.task_id:
            told = self._how >= TOLD_OF_FEWER or (self._how > 0 and not tasks)
            shard.known_empty.found(shard, self._wakes, told=told)
        if self._over or (self._session.closed and not self._known):
            give_back(tasks, [shard] * len(tasks))
            self.cancel()
        else:
            if tasks:
                self._got = [*self._got, *tasks]
                self._from = [*self._from, *([shard] * len(tasks))]
            self._go_on()
        if tries is not None:
            tries.tried(self, bool(tasks))

    def set_exception(self, error: BaseException, /) -> None:
        """Take the answer: the question was refused, or its outcome is unknown."""
        self._busy = False
        tries, self._tries = self._tries, None
        has_come = isinstance(error, Unconfirmed) and error.item
        if tries is not None and tries.along and not has_come and not isinstance(error, Resharded):
            self._went_with_others(error)
        else:
            self._failed(self._asked, error)
        if tries is not None:
            tries.tried(self, None)

    def _go_on(self) -> None:
        """Go on after the answer to the question under way."""
        if self._position == BY_WAKE_UP:
            self._tried()
        elif not self._known:
            self._asked_once()
        else:
            self._ask(self._position + 1)

    def _asked_once(self) -> None:
        """Go on after the one shard answered its only question, unless the take ends now."""
        if self._got or self._may_wait(None):
            self._asked_all()

    def _may_wait(self, error: BaseException | None) -> bool:
        """
        Return whether the take goes on, waiting, after its only question.

        Otherwise it ends now, with nothing or the error.
        """
        shared = self._session.shared
        if self._over:
            return False
        if shared is not None and shared.lost:
            self._end(error=gone(shared))
        elif self._waits and not self._session.closed and not self._under_way.drain.started:
            self._seen = [self._wakes]
            self._join()
            return True
        else:
            self._end(error=error)
        return False

    def _went_with_others(self, error: BaseException) -> None:
        """Go on waiting: what failed was the call of puts that the take went along with."""
        if self._time_is_over:
            self._end(error=error)
        elif not self._over:
            self._tried()

    def _failed(self, shard: Shard, error: BaseException) -> None:
        """Note that a question was refused, or that its outcome is unknown."""
        if isinstance(error, Unconfirmed) and error.item:
            give_back(taken_from(shard, error.item), [shard] * len(error.item))
            if not shard.gate.flies:
                self._trouble = error
                self._end(error=error)
                return
        if isinstance(error, Resharded) and self._waits:
            # these shards are the queue's no longer: whoever waits here asks again
            self._trouble = None
            self._time_over()
        elif isinstance(error, StoreDown | Stale | Unconfirmed) and self._asks_again(error):
            self._trouble = error
            if not self._waits and not self._known:
                self._join()
            if self._known or self._may_wait(error):
                self._ask_later()
        else:
            self._trouble = error
            shared = self._session.shared
            if shared is not None and shared.lost and not self._known:
                error = gone(shared) if isinstance(error, StoreDown | Stale) else error
            self._end(error=error)

    def _asks_again(self, error: BaseException) -> bool:
        """
        Return whether the take asks again, though its time be over, or it does not wait.

        Where stores replicate and the primary was lost, it does so for a while. What it may have
        got there is released: see :mod:`.sessions.lost_takes`.
        """
        if self._got or self._over:
            return False
        if self._waits and not self._time_is_over:
            return True
        if self.task_id:  # it may be this take that has it
            return False
        if self._session.closed or self._under_way.drain.started:
            return False
        if not self._asked.gate.flies:
            return False
        now = asyncio.get_running_loop().time()
        if unanswered(error) or isinstance(error, Unconfirmed):
            self._lost_until = self._lost_until or now + PATIENCE_S
        return now < self._lost_until

    def _ask_later(self) -> None:
        """Wait on and ask anew: the store is away, or this node has to register again."""
        self._unpark()
        self._again = ()
        if self._waits:
            self._arm()
        asyncio.get_running_loop().call_later(RETRY_S, self._ask_all)

    # --- waiting

    def _arm(self) -> None:
        """
        Set the timer of a take that has to wait; one that finds a task at once never needs it.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._until, self._time_over)

    def _asked_all(self) -> None:
        if self._over:
            return
        if self._got or not self._waits or self._time_is_over:
            self._end()
            return
        self._arm()
        # A wake-up that came between a shard's answer and now is not lost: ask again where there
        # was one.
        if any(shard.wakes != seen for shard, seen in zip(self._shards, self._seen, strict=True)):
            self._ask_all()
            return
        self._parked = True
        for shard in self._shards:
            shard.park(self)
            if self._over:  # the shard is retired: at a later one nobody would take it out again
                return

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            for shard in self._shards:
                shard.unpark(self)

    @property
    def free(self) -> bool:
        """Return whether a shard can try the take now."""
        return not self._busy and not self._over

    def try_shard(self, shard: Shard, tries: Tries | None, *, more: bool) -> None:
        """Take from a shard in which tasks may be ready; the take is free."""
        self._tries = tries
        self._position = BY_WAKE_UP
        self._take_from(shard, self.count, True, more)

    def try_later(self, shard: Shard) -> None:
        """Take from a shard in which tasks may be ready, as soon as the take is free."""
        if shard not in self._again:
            self._again = [*self._again, shard]

    def _tried(self) -> None:
        if self._got or self._time_is_over:
            self._end()
        elif self._again:
            shard, *self._again = self._again
            self.try_shard(shard, None, more=len(shard.parked) > 1)

    # --- the end

    def stop_waiting(self) -> None:
        """Answer with the tasks that the take has, as if the waiting time were over."""
        self._time_over()

    def _time_over(self) -> None:
        self._timer = None
        self._time_is_over = True
        if not self._busy and not (self._trouble is not None and self._asks_again(self._trouble)):
            self._end(error=self._trouble)

    def _end(self, error: BaseException | None = None) -> None:
        if self._over:
            return
        self._ended = True
        if self._got:
            shard = self._from[0]
            self._session.hold(self._got, shard.now_ms, shard.time())
            self._under_way.times.taken(self._got, self._from)
        self._leave()
        if error is not None and not self._got:
            self.receiver.set_exception(error)
        else:
            self.receiver.set_result(self._got or [])

    def fail(self, error: BaseException) -> None:
        """End the take with an error: its session has ended, or its queue was dropped."""
        if not self._over:
            self._ended = True
            self._leave()
            self.receiver.set_exception(error)

    def cancel(self) -> None:
        """End the take now, because its consumer or this node goes; its tasks go back."""
        if self._ended:
            return
        self._ended = True
        give_back(self._got, self._from)
        self._leave()
        if not self.receiver.done():
            if isinstance(self.receiver, asyncio.Future):
                self.receiver.cancel()
            else:
                self.receiver.set_exception(asyncio.CancelledError())

    def caller_left(self, future: asyncio.Future[Any]) -> None:
        """Cancel the take if the future that it answers was cancelled."""
        if future.cancelled():
            self.cancel()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unpark()
        if self._known:
            self._under_way.takes.discard(self)
            self._session.takes.discard(self)


def taken_from(shard: Shard, rows: Sequence[Any]) -> list[Taken]:
    """Make the tasks of take.lua's rows."""
    return [Taken(shard.queue, row[0].decode("utf-8", "surrogateescape"), *row[1:]) for row in rows]


def give_back(tasks: Sequence[Taken], shards: Sequence[Shard]) -> None:
    """Give tasks back whose consumer has gone: see :func:`hand_back`."""
    for task, shard in zip(tasks, shards, strict=True):
        hand_back(shard, task.id, task.lease)


def hand_back(shard: Shard, task_id: str, lease: int) -> None:
    """
    Make a task ready again, without counting the attempt.

    Where the store is away, its lease is looked for as that of a lost take is.
    """
    shard.end(task_id, lease, "release").add_done_callback(lambda done: _handed_back(shard, done))


def _handed_back(shard: Shard, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and isinstance(done.exception(), StoreDown):
        shard.lost_take()
