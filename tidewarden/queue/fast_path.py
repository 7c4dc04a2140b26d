"""
The plain put, take and ack: of one task, without options, of a queue known here that has one shard.

Most requests are of this kind. They go from the door into the shard's batch, and from the script's
reply to the door, without a future between: each of its listeners costs a turn of the loop.
Whatever is not plain is refused here with ``None``, before anything was done, and goes the ordinary
way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidewarden.config.settings import Limits
from tidewarden.errors import Stale, StoreDown
from tidewarden.store.connection import ReplySink

from .catalog import Catalog
from .consumer import Consumer
from .drain import Drain
from .put import Producer
from .sessions.session import Session
from .sessions.sessions import Sessions, gone
from .shards.batch import never
from .shards.reply_durability import Unconfirmed
from .shards.resharding import Resharded
from .shards.shard import PROMOTED_MAX, TASK_BYTES, Shard
from .take import TOLD_OF_MORE, Take, hand_back
from .task import LEASE_NUMBER_MAX, Taken

ONE = (PROMOTED_MAX,)


class FastTake:
    """
    One such take. Its receiver gets the task's row (id, lease, payload, attempt, deadline, lease
    end), or None: none came.
    """

    __slots__ = (
        "_cancelled",
        "_consumer",
        "_drain",
        "_receiver",
        "_session",
        "_shard",
        "_take",
        "_until",
        "_wakes",
    )

    def __init__(
        self,
        consumer: Consumer,
        drain: Drain,
        session: Session,
        shard: Shard,
        until: float,
        receiver: ReplySink,
    ) -> None:
        self._consumer = consumer
        self._drain = drain
        self._session = session
        self._shard = shard
        self._until = until  # 0: it does not wait
        self._receiver = receiver
        self._wakes = shard.wakes
        self._take: Take | None = None
        self._cancelled = False

    def done(self) -> bool:
        return False  # what was taken for one that has gone has to go back

    def set_result(self, rows: Any, /) -> None:
        session, shard = self._session, self._shard
        if not rows:
            shard.bare.found(shard, self._wakes, told=self._until > 0)
            self.wait(None)
            return
        row = rows[0]
        task_id = row[0].decode("utf-8", "surrogateescape")
        if self._cancelled or session.closed:
            hand_back(shard, task_id, row[1])
            self.cancel()
        else:
            session.hold_one(shard.queue, task_id, row[1], row[5], shard.now_ms)
            self._receiver.set_result(row)

    def set_exception(self, error: BaseException, /) -> None:
        if isinstance(error, Resharded) and self._until and not self._cancelled:
            # this shard is the queue's no longer: who waits here asks again
            self._receiver.set_result(None)
        elif isinstance(error, Unconfirmed) and error.item:
            for row in error.item:
                hand_back(self._shard, row[0].decode("utf-8", "surrogateescape"), row[1])
            if not self._cancelled:
                self._receiver.set_exception(error)
        elif isinstance(error, StoreDown | Stale | Unconfirmed):
            self.wait(error)
        elif not self._cancelled:
            self._receiver.set_exception(error)

    def cancel(self) -> None:
        """Its consumer goes, or this node: it ends now, and what comes yet goes back."""
        if self._take is not None:
            self._take.future.cancel()
        elif not self._cancelled:
            self._cancelled = True
            self._receiver.set_exception(asyncio.CancelledError())

    def wait(self, error: BaseException | None) -> None:
        """Nothing came: go on as an ordinary take, when there is time left."""
        if self._cancelled:
            return
        shared = self._session.shared
        if shared is not None and shared.lost:
            self._receiver.set_exception(gone(shared))
        elif self._until and not self._session.closed and not self._drain.started:
            self._take = take = self._consumer.begin_take(self._session, [self._shard], self._until)
            take.future.add_done_callback(self._came)
            take.resume(self._wakes, error)
        elif error is not None:
            self._receiver.set_exception(error)
        else:
            self._receiver.set_result(None)

    def _came(self, done: asyncio.Future[list[Taken]]) -> None:
        if done.cancelled():
            self._receiver.set_exception(asyncio.CancelledError())
            return
        error = done.exception()
        if error is not None:
            self._receiver.set_exception(error)
            return
        for task in done.result():
            row = (
                task.id.encode("utf-8", "surrogateescape"),
                task.lease,
                task.payload,
                task.attempt,
                task.deadline_ms,
                task.lease_end_ms,
            )
            self._receiver.set_result(row)
            return
        self._receiver.set_result(None)


class FastAck:
    """
    An ack of what the session held: when nobody knows its end, the session goes on holding the
    task.
    """

    __slots__ = ("_consumer", "_entry", "_place", "_receiver", "_session", "done", "set_result")

    def __init__(
        self,
        consumer: Consumer,
        session: Session,
        place: tuple[str, str],
        entry: tuple[int, int],
        receiver: ReplySink,
    ) -> None:
        self._consumer = consumer
        self._session = session
        self._place = place
        self._entry = entry
        self._receiver = receiver
        self.done = never
        self.set_result = receiver.set_result

    def set_exception(self, error: BaseException, /) -> None:
        self._consumer.hold_again(self._session, {self._place: self._entry})
        self._receiver.set_exception(error)


class FastPath:
    """Puts, takes and acks single tasks, or returns None when the case is not plain."""

    def __init__(
        self,
        catalog: Catalog,
        producer: Producer,
        consumer: Consumer,
        sessions: Sessions,
        limits: Limits,
        drain: Drain,
    ) -> None:
        self._plain = catalog.plain
        self._catalog = catalog
        self._producer = producer
        self._consumer = consumer
        self._sessions = sessions
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._takes = consumer.takes
        self._payload_max = limits.payload_bytes
        self._wait_max = limits.wait_ms
        self._waiting_max = limits.waiting_max

    def put(self, queue: bytes, payload: bytes, receiver: ReplySink) -> str | None:
        """
        Put a task; the id it has when ``receiver`` gets 1. It gets a word of put.lua's otherwise.
        """
        shard = self._plain.get(queue) or self._plain_shard(queue)
        size = len(payload)
        if shard is None or size > self._payload_max:
            return None
        task_id = self._producer.new_id()
        shard.add("queue.put", (task_id, "", payload), receiver, (), size)
        return task_id

    def take(
        self, session: Session, queue: bytes, wait_ms: int, receiver: ReplySink
    ) -> FastTake | None:
        """
        Take one task, waiting ``wait_ms`` for it; see :class:`FastTake`. Cancel it when the
        consumer goes.
        """
        shard = self._plain.get(queue) or self._plain_shard(queue)
        if shard is None or session.is_full:
            return None
        until = 0.0
        if wait_ms:
            if wait_ms > self._wait_max or len(self._takes) >= self._waiting_max:
                return None
            until = self._loop.time() + wait_ms / 1000
        waits: str | int = TOLD_OF_MORE if shard.parked else 1 if wait_ms else 0
        shared = session.shared
        if shared is not None:
            if shared.lost or not self._sessions.entered(shared, (shard,)):
                return None
            waits = f"{waits}{shared.uuid}"
        take = FastTake(self._consumer, self._drain, session, shard, until, receiver)
        if wait_ms and not self._drain.started and not session.closed and shard.bare.holds(shard):
            take.wait(None)  # behind those who wait already
            return take
        shard.add("queue.take", (1, 0, waits, ""), take, ONE, TASK_BYTES)
        return take

    def ack(
        self, session: Session, queue: bytes, task_id: bytes, lease: int, receiver: ReplySink
    ) -> ReplySink | None:
        """The task is done; ``receiver`` gets 1, or 0: the lease is not current."""
        shard = self._plain.get(queue) or self._plain_shard(queue)
        if shard is None or lease > LEASE_NUMBER_MAX:
            return None
        try:
            name = task_id.decode()
        except UnicodeDecodeError:
            return None
        entry = session.drop(shard.queue, name, lease)
        if entry is not None:
            receiver = FastAck(self._consumer, session, (shard.queue, name), entry, receiver)
        shard.add("queue.ack", (name, lease, b""), receiver)
        return receiver

    def _plain_shard(self, queue: bytes) -> Shard | None:
        """The one shard of a user's queue that is known here."""
        if not queue.isascii() or queue[:1] == b"_":
            return None
        name = queue.decode()
        shards = self._catalog.shards.get(name)
        if shards is None or len(shards) != 1 or name in self._catalog.partitioners:
            return None
        self._plain[queue] = shards[0]
        return shards[0]
