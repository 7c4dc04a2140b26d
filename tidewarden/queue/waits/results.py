"""Tells callers that wait for a task how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

from tidewarden.config.settings import Limits
from tidewarden.errors import Full, NoQuorum, Stale, StoreDown
from tidewarden.queue.catalog import Catalog
from tidewarden.queue.partitioning import shard_for
from tidewarden.queue.task import check_id, check_name, check_range
from tidewarden.store.reply_sink import ignore_errors

from .wait_lines import AGAIN_S, AWAY_S, woken


class Results:
    """Waits for the ends of tasks."""

    def __init__(self, catalog: Catalog, limits: Limits) -> None:
        self._catalog = catalog
        self._wait_max_ms = limits.wait_ms
        self._waiting_max = limits.waiting_max
        self._over = False
        self._loop = asyncio.get_running_loop()
        self.awaited: dict[tuple[str, str], set[asyncio.Event]] = {}

    async def wait(self, queue: str, task_id: str, wait_ms: int) -> tuple[str, bytes]:
        """
        Return how the task ends, waiting at most ``wait_ms`` for it.

        Returns: ``done`` and its result, ``buried`` and the reason, ``deleted``; ``unknown``: there
        is no such task, nor was one within ``dedup_ms``; ``timeout``: it has not ended. Raises:
        BadArg; Full: too many wait on this node; StoreDown: the time is over, and the store still
        away.
        """
        check_range(wait_ms, "wait_ms", 0, self._wait_max_ms, "the time to wait (ms)")
        await self._catalog.open(check_name(queue))
        check_id(task_id)
        if wait_ms and len(self.awaited) >= self._waiting_max:
            raise Full(
                f"the ends of {len(self.awaited)} tasks are waited for on this node; that is its"
                " limit"
            )
        nudge = asyncio.Event()
        place = (queue, task_id)
        word = ""
        self.listen(place, nudge)
        try:
            word, result = await self._ending(place, nudge, self._loop.time() + wait_ms / 1000)
            return word, result
        finally:
            self.unlisten(place, nudge, noted=wait_ms > 0 and word in ("", "timeout"))

    def listen(self, place: tuple[str, str], nudge: asyncio.Event) -> None:
        """
        Set ``nudge`` whenever the task ``(queue, id)`` may have ended.

        The script that found it there notes this node for it.
        """
        self.awaited.setdefault(place, set()).add(nudge)

    def unlisten(self, place: tuple[str, str], nudge: asyncio.Event, *, noted: bool) -> None:
        """
        Stop setting ``nudge``.

        ``noted``: this node may be noted; when no wait is left here, it is so no longer.
        """
        waiters = self.awaited[place]
        waiters.discard(nudge)
        if not waiters:
            del self.awaited[place]
            queue, task_id = place
            if noted and queue in self._catalog.shards:
                # else the note goes with the task's end
                taken_back = shard_for(self._catalog.shards[queue], task_id).run(
                    "queue.unwait", (task_id,)
                )
                taken_back.add_done_callback(lambda done: self._unnoted(place, done))

    def _unnoted(self, place: tuple[str, str], done: asyncio.Future[Any]) -> None:
        """
        Let new waits ask again: their note in the store may have gone with the former one.

        A script that the store did not know comes later than it was sent.
        """
        ignore_errors(done)
        self.nudge(place)

    async def _ending(
        self, place: tuple[str, str], nudge: asyncio.Event, until: float
    ) -> tuple[str, bytes]:
        """Ask, and ask again at each nudge."""
        queue, task_id = place
        while True:
            nudge.clear()
            again = AGAIN_S
            waits = self._loop.time() < until and not self._over
            try:
                shards = await self._catalog.open(queue)
                word, result = await shard_for(shards, task_id).wait(task_id, waits)
                if word != b"waits":
                    return word.decode(), result
            except (StoreDown, Stale, NoQuorum):
                if not waits:
                    raise
                again = AWAY_S
            if not waits:
                return "timeout", b""
            # without a nudge: the last look, or one in case a message was lost
            await woken(nudge, min(until, self._loop.time() + again))

    def nudge(self, place: tuple[str, str]) -> None:
        """Let the waits for the task ``(queue, id)`` ask: it may have ended."""
        for nudge in self.awaited.get(place, ()):
            nudge.set()

    def nudge_all(self) -> None:
        """Let every wait ask again: messages may have been missed."""
        for place in self.awaited:
            self.nudge(place)

    def end_waits(self) -> None:
        """End every wait, because the node goes down."""
        self._over = True
        self.nudge_all()

    def nudge_queue(self, queue: str) -> None:
        """Let the waits of this queue ask again: messages may have been missed."""
        for place in self.awaited:
            if place[0] == queue:
                self.nudge(place)
