"""
Keeps puts that wait for room in a queue with a capacity.

They wait in the order they came, and removals wake them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tidewarden.config.settings import Limits
from tidewarden.errors import Full
from tidewarden.queue.catalog import Catalog
from tidewarden.queue.partitioning import shard_for
from tidewarden.queue.put import Producer, put_error
from tidewarden.queue.task import TaskSpec, check_name, check_range

from .drain import Drain
from .wait_lines import AGAIN_S, Turn, WaitLines


class CapacityWait:
    """Keeps one line of waiting puts for each shard."""

    def __init__(self, catalog: Catalog, producer: Producer, limits: Limits, drain: Drain) -> None:
        self._catalog = catalog
        self._producer = producer
        self._wait_max_ms = limits.wait_ms
        self._waiting_max = limits.waiting_max
        self._loop = asyncio.get_running_loop()
        self.lines: WaitLines[tuple[str, int]] = WaitLines(drain)

    async def put(self, queue: str, task: TaskSpec, wait_ms: int) -> str:
        """
        Put a task, waiting at most ``wait_ms`` for room if the queue is full; return its id.

        Raises: what a put does; Full: there was no room in time, or too many wait on this node;
        Draining.
        """
        check_range(wait_ms, "wait_ms", 0, self._wait_max_ms)
        task.check(self._producer.payload_max)
        links = await self._producer.lookups.links_of(check_name(queue))
        if links is not None:
            end = self._loop.time() + wait_ms / 1000

            def waiting(one: str, copy: TaskSpec) -> Awaitable[str]:
                return self.put(one, copy, max(0, round((end - self._loop.time()) * 1000)))

            return await self._producer.put_to_each(queue, links, task, waiting)
        shards = await self._catalog.open(queue)
        task_id, shard = self._producer.target(queue, shards, task)
        if self.lines.waiting >= self._waiting_max:
            raise Full("too many puts wait for room on this node (limits.waiting_max)")
        with self.lines.join((queue, shard.index)) as turn:
            until = self._loop.time() + wait_ms / 1000
            return await self._put_in_turn(
                queue, task_id, (task.options(not task.id, waits=True), task.payload), turn, until
            )

    async def _put_in_turn(
        self, queue: str, task_id: str, body: tuple[str, bytes], turn: Turn, until: float
    ) -> str:
        while True:
            try:
                await turn.wait(until, self._loop.time() + AGAIN_S)
            except TimeoutError:
                raise put_error(b"FULL", queue, task_id) from None
            turn.begin()
            reply = await shard_for(await self._catalog.open(queue), task_id).put(task_id, *body)
            if type(reply) is not bytes:
                return task_id
            if reply != b"FULL":
                raise put_error(reply, queue, task_id)

    def wake(self, queue: str, shard: int) -> None:
        """Wake the first put in line: a shard that was at its capacity may have room."""
        self.lines.wake((queue, shard))

    def wake_all(self) -> None:
        """Let the first of each line ask again: messages may have been missed."""
        self.lines.wake_all()

    def end_waits(self) -> None:
        """Refuse every waiting put, because the node goes down."""
        self.lines.end_waits()
