"""Puts tasks: chooses the id and the shard of each, and copies it into the queues of a topic."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import (
    BY_CODE,
    BadArg,
    Error,
    Exists,
    Field,
    Full,
    Internal,
    NotFound,
    NotHeld,
)
from tidewarden.store.reply_sink import fail_reply

from .catalog import Catalog
from .name_lookups import NameLookups
from .partitioning import in_lane, shard_for
from .shards.shard import Shard
from .task import IdMaker, TaskSpec, check_name


def put_error(word: bytes, queue: str, task_id: str) -> Error:
    """Make the error for a word of put.lua."""
    if word == b"EXISTS":
        return Exists(f"the task {task_id} is there already")
    if word == b"NOTHELD":
        return NotHeld(f"the task {task_id} is leased; it cannot be replaced now")
    if word == b"FULL":
        full = f"the queue {queue} is at its capacity; take and acknowledge, or put with "
        return Full(full, Field("wait_ms"))
    return Internal(f"put.lua answered {word!r}")


class Producer:
    """Puts tasks into queues and topics."""

    def __init__(self, catalog: Catalog, clock: Clock, payload_max: int) -> None:
        self._catalog = catalog
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ids = IdMaker()
        self.lookups = NameLookups(catalog)
        self.payload_max = payload_max

    def new_id(self) -> str:
        """Make an id that no other task has."""
        return self._ids.make(self._clock.unix_ms())

    def target(self, queue: str, shards: Sequence[Shard], task: TaskSpec) -> tuple[str, Shard]:
        """
        Return the id under which a task is put into a known queue, and the shard that it lies in.

        Raises: BadArg: the id names another shard than its lane's; what a strategy raises.
        """
        task_id = task.id or self._ids.make(self._clock.unix_ms())
        if task.lane:
            task_id = in_lane(task_id, task.lane, len(shards))
        elif (partitioner := self._catalog.partitioners.get(queue)) is not None:
            task_id = partitioner(task_id, task.payload, own=not task.id)
        return task_id, shard_for(shards, task_id)

    def put(self, queue: str, task: TaskSpec) -> asyncio.Future[str]:
        """
        Put a task into a queue, or into each queue of a topic; return a future of its id.

        Raises: BadArg, TooBig, and what a strategy does (at once); in the future: Exists, NotHeld
        (by ``if_exists``), Full, StoreDown (with the same id a retry is safe).
        """
        task.check(self.payload_max)
        shards = self._catalog.shards.get(queue)
        future: asyncio.Future[str] = self._loop.create_future()
        if shards is not None and queue not in self.lookups.lines:
            self._put(queue, shards, task, future)
            return future

        def begin(links: tuple[str, ...] | None) -> None:
            if links is None:
                self._put(queue, self._catalog.shards[queue], task, future)
            else:
                copies = self._loop.create_task(self.put_to_each(queue, links, task, self.put))
                copies.add_done_callback(lambda copies: hand_on(copies, future))

        self.lookups.join(check_name(queue), begin, future)
        return future

    def _put(
        self, queue: str, shards: Sequence[Shard], task: TaskSpec, future: asyncio.Future[str]
    ) -> None:
        task_id, shard = self.target(queue, shards, task)

        def answered(done: asyncio.Future[Any]) -> None:
            if future.done() or done.cancelled():
                return
            error = done.exception()
            if error is not None:
                future.set_exception(error)
                return
            reply = done.result()
            if type(reply) is bytes:
                future.set_exception(put_error(reply, queue, task_id))
            else:
                future.set_result(task_id)

        shard.put(task_id, task.options(own=not task.id), task.payload).add_done_callback(answered)

    async def put_to_each(
        self,
        topic: str,
        queues: Sequence[str],
        task: TaskSpec,
        put: Callable[[str, TaskSpec], Awaitable[str]],
    ) -> str:
        """
        Put a task into each of these queues, by ``put``, under one id; return the id.

        Raises: the refusal of the first queue; it says that the same put may be repeated, and names
        no queue, because a user who puts into a topic needs no right to its queues.
        """
        copy = dataclasses.replace(task, id=task.id or self.new_id())
        copy.check(self.payload_max)
        answers = await asyncio.gather(
            *(self._put_copy(topic, queue, copy, put) for queue in queues)
        )
        refused = [error.code for error in answers if error is not None]
        if refused:
            rest = "; the others have it" if len(refused) < len(queues) else ""
            # of its word, for some refusals are told more than a message
            raise BY_CODE[refused[0]](
                f"{len(refused)} of the {len(queues)} queues of the topic {topic} refused the task"
                f" ({', '.join(dict.fromkeys(refused))}){rest}. Q.STATS {topic} names them to"
                " whoever may see them. A put with ",
                Field("id"),
                f" {copy.id} may be repeated",
            )
        return copy.id

    async def _put_copy(
        self,
        topic: str,
        queue: str,
        copy: TaskSpec,
        put: Callable[[str, TaskSpec], Awaitable[str]],
    ) -> Error | None:
        """
        Put a topic's task into one of its queues; return the error of its refusal.

        A queue that has ended is not made again: it is none of the topic's any more, so these are
        read anew.
        """
        try:
            if queue not in self._catalog.shards:
                await self._catalog.open(queue)
        except (BadArg, NotFound):
            self._catalog.topics.pop(topic, None)
            return None
        except Error as error:
            return error
        try:
            await put(queue, copy)
        except Error as error:
            if queue in self._catalog.shards:
                return error
            self._catalog.topics.pop(topic, None)
        return None


def hand_on(done: asyncio.Future[str], future: asyncio.Future[str]) -> None:
    """Give ``future`` the outcome of ``done``, unless its caller has gone."""
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        fail_reply(future, error)
    elif not future.done():
        future.set_result(done.result())
