"""
Serves plain puts, takes and acks: one task, no options, a queue known here that has one shard.

Most requests are of this kind. They go from the door into the shard's batch, and from the script's
reply to the door, without a future between: each of its listeners costs a turn of the loop. A
request that is not plain is refused here with ``None``, before anything was done, and goes the
ordinary way.
"""

from __future__ import annotations

import asyncio

from tidewarden.config.settings import Limits
from tidewarden.store.connection import ReplySink

from .catalog import Catalog
from .consumer import Consumer
from .put import Producer
from .sessions.session import Held, Session
from .sessions.sessions import Sessions
from .shards.batch import never
from .shards.shard import Shard
from .take import TOLD_OF_MORE, Take
from .task import LEASE_NUMBER_MAX
from .waits.drain import Drain


class FastAck:
    """
    Receives the reply to the ack of a task that the session held.

    When the ack's outcome is unknown, the session goes on holding the task.
    """

    __slots__ = ("_consumer", "_entry", "_place", "_receiver", "_session", "done", "set_result")

    def __init__(
        self,
        consumer: Consumer,
        session: Session,
        place: tuple[str, str],
        entry: Held,
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
        self._lookups = producer.lookups.lines
        self._consumer = consumer
        self._sessions = sessions
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._under_way = consumer.under_way
        self._times = consumer.times
        self._payload_max = limits.payload_bytes
        self._wait_max = limits.wait_ms
        self._waiting_max = limits.waiting_max

    def put(self, queue: bytes, payload: bytes, receiver: ReplySink) -> str | None:
        """
        Put a task; return the id that it has when ``receiver`` gets 1.

        The receiver gets a word of put.lua's otherwise.
        """
        shard = self._plain.get(queue) or self._plain_shard(queue)
        size = len(payload)
        if shard is None or size > self._payload_max or shard.queue in self._lookups:
            return None
        task_id = self._producer.new_id()
        shard.add("queue.put", (task_id, "", payload), receiver, (), size)
        return task_id

    def take(
        self, session: Session, queue: bytes, wait_ms: int, receiver: ReplySink
    ) -> Take | None:
        """
        Take one task, waiting ``wait_ms`` for it; ``receiver`` gets a list of it, or an empty one.

        Cancel it when the consumer goes.
        """
        shard = self._plain.get(queue) or self._plain_shard(queue)
        if shard is None or session.is_full:
            return None
        until = 0.0
        if wait_ms:
            if wait_ms > self._wait_max or len(self._under_way) >= self._waiting_max:
                return None
            until = self._loop.time() + wait_ms / 1000
        shared = session.shared
        if shared is not None and (shared.lost or not self._sessions.entered(shared, (shard,))):
            return None
        take = Take(self._under_way, session, (shard,), until, receiver)
        if (
            wait_ms
            and not self._drain.started
            and not session.closed
            and shard.known_empty.holds(shard)
        ):
            take.wait_behind(shard)
        else:
            take.ask_once(shard, TOLD_OF_MORE if shard.parked else 1 if wait_ms else 0)
        return take

    def ack(
        self, session: Session, queue: bytes, task_id: bytes, lease: int, receiver: ReplySink
    ) -> ReplySink | None:
        """Acknowledge a task; ``receiver`` gets 1, or 0: the lease is not current."""
        shard = self._plain.get(queue) or self._plain_shard(queue)
        if shard is None or lease > LEASE_NUMBER_MAX:
            return None
        try:
            name = task_id.decode()
        except UnicodeDecodeError:
            return None
        entry = session.drop(shard.queue, name, lease)
        if entry is not None:
            self._times.ended(entry, "ack", self._loop.time())
            receiver = FastAck(self._consumer, session, (shard.queue, name), entry, receiver)
        shard.add("queue.ack", (name, lease, b""), receiver)
        return receiver

    def _plain_shard(self, queue: bytes) -> Shard | None:
        """Return the one shard of a user's queue that is known here."""
        if not queue.isascii() or queue[:1] == b"_":
            return None
        name = queue.decode()
        shards = self._catalog.shards.get(name)
        if shards is None or len(shards) != 1 or name in self._catalog.partitioners:
            return None
        self._plain[queue] = shards[0]
        return shards[0]
