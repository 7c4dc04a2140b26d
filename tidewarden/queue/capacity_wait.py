"""
Puts that wait for room in a queue with a capacity: in the order they came, woken by what is
removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any

from tidewarden.errors import Draining, Error, Exists, Full, Internal, NotHeld

from .partitioning import in_lane
from .results import AGAIN_S, Results
from .task import TaskSpec, check_name, check_range

Line = deque[asyncio.Event]


def put_error(word: bytes, queue: str, task_id: str) -> Error:
    """What put.lua's word for a task means."""
    if word == b"EXISTS":
        return Exists(f"the task {task_id} is there already")
    if word == b"NOTHELD":
        return NotHeld(f"the task {task_id} is leased; it cannot be replaced now")
    if word == b"FULL":
        return Full(f"the queue {queue} is at its capacity; take and acknowledge, or put with WAIT")
    return Internal(f"put.lua answered {word!r}")


class CapacityWait(Results):
    """
    One line of waiting puts for each shard; only the first of a line asks, the next when it is
    through.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lines: dict[tuple[str, int], Line] = {}
        self.draining = False

    async def put_waiting(self, queue: str, task: TaskSpec, wait_ms: int) -> str:
        """
        Put a task, waiting at most ``wait_ms`` for room when the queue is at its capacity; its id.

        Raises: what a put does; Full: there was no room in time, or too many wait on this node;
        Draining.
        """
        check_range(wait_ms, "WAIT", 0, self._config.limits.wait_ms)
        task.check(self._config.limits.payload_bytes)
        links = await self._links_of(check_name(queue))
        if links is not None:
            end = self._loop.time() + wait_ms / 1000

            def waiting(one: str, copy: TaskSpec) -> Awaitable[str]:
                return self.put_waiting(one, copy, max(0, round((end - self._loop.time()) * 1000)))

            return await self._put_to_each(queue, links, task, waiting)
        own = not task.id
        task_id = task.id or self._ids.make(self._clock.unix_ms())
        if task.lane:
            task_id = in_lane(task_id, task.lane, len(self._shards[queue]))
        elif queue in self._choosers:
            task_id = self._choosers[queue](task_id, task.payload, own=own)
        if sum(map(len, self._lines.values())) >= self._config.limits.waiting_max:
            raise Full("too many puts wait for room on this node (limits.waiting_max)")
        place = (queue, self._lane(self._shards[queue], task_id).index)
        line = self._lines.setdefault(place, deque())
        turn = asyncio.Event()
        if not line:
            turn.set()
        line.append(turn)
        try:
            until = self._loop.time() + wait_ms / 1000
            return await self._put_in_turn(
                queue, task_id, (task.options(own, waits=True), task.payload), turn, until
            )
        finally:
            first = line[0] is turn
            line.remove(turn)
            if not line:
                del self._lines[place]
            elif first:
                line[0].set()

    async def _put_in_turn(
        self, queue: str, task_id: str, body: tuple[str, bytes], turn: asyncio.Event, until: float
    ) -> str:
        while True:
            try:
                async with asyncio.timeout_at(min(until, self._loop.time() + AGAIN_S)):
                    await turn.wait()
            except TimeoutError:
                if self._loop.time() >= until:
                    raise put_error(b"FULL", queue, task_id) from None
            if self.draining:
                raise Draining(
                    "This node is going down and waits for nothing any more. Connect to another."
                )
            turn.clear()  # before the question: word of room that comes with its answer is not lost
            reply = await self._lane(await self._open(queue), task_id).put(task_id, *body)
            if type(reply) is not bytes:
                return task_id
            if reply != b"FULL":
                raise put_error(reply, queue, task_id)

    def _room(self, queue: str, shard: int) -> None:
        line = self._lines.get((queue, shard))
        if line:
            line[0].set()

    def wake_all(self) -> None:
        """Messages may have been missed: whoever waits for anything looks again."""
        super().wake_all()
        self._topics.clear()
        for place in self._lines:
            self._room(*place)

    def _end_lines(self) -> None:
        for line in self._lines.values():
            for turn in line:
                turn.set()
