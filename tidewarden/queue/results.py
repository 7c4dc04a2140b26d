"""How tasks end, for those who wait to hear of it; and the wake-ups that other nodes send."""

from __future__ import annotations

import asyncio
from typing import Any

from tidewarden.errors import Full, NoQuorum, Stale, StoreDown
from tidewarden.store.reply_sink import ignore_errors

from .consistency import Consistency
from .partitioning import split_prefix
from .task import check_id, check_name, check_range

AWAY_S = 0.5  # after the store was away
AGAIN_S = 60.0  # so often is asked anew, in case a message was lost without a reconnect


class Results(Consistency):
    """Waiting for a task's end, and what is heard on this holder's wake channel."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._awaited: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._no_endings = False

    async def wait(self, queue: str, task_id: str, wait_ms: int) -> tuple[str, bytes]:
        """
        How the task ends, waiting at most ``wait_ms`` for it.

        Returns: ``done`` and its result, ``buried`` and the reason, ``deleted``; ``unknown``: there
        is no such task, nor was one within ``dedup_ms``; ``timeout``: it has not ended. Raises:
        BadArg; Full: too many wait on this node; StoreDown: the time is over, and the store still
        away.
        """
        check_range(wait_ms, "the time to wait (ms)", 0, self._config.limits.wait_ms)
        await self._open(check_name(queue))
        check_id(task_id)
        if wait_ms and len(self._awaited) >= self._config.limits.waiting_max:
            raise Full(
                f"the ends of {len(self._awaited)} tasks are waited for on this node; that is its"
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
        Set ``nudge`` whenever the task ``(queue, id)`` may have ended; the script that found it
        there notes this node for it.
        """
        self._awaited.setdefault(place, set()).add(nudge)

    def unlisten(self, place: tuple[str, str], nudge: asyncio.Event, *, noted: bool) -> None:
        """
        Set it no more. ``noted``: this node may be noted; when nobody here is left to be told, it
        is so no longer.
        """
        waiters = self._awaited[place]
        waiters.discard(nudge)
        if not waiters:
            del self._awaited[place]
            queue, task_id = place
            if noted and queue in self._shards:
                # else the note goes with the task's end
                taken_back = self._lane(self._shards[queue], task_id).run(
                    "queue.unwait", (task_id,)
                )
                taken_back.add_done_callback(lambda done: self._unnoted(place, done))

    def _unnoted(self, place: tuple[str, str], done: asyncio.Future[Any]) -> None:
        """
        Who listens again was perhaps noted before: a script that the store did not know comes later
        than it was sent.
        """
        ignore_errors(done)
        self._nudge(place)

    async def _ending(
        self, place: tuple[str, str], nudge: asyncio.Event, until: float
    ) -> tuple[str, bytes]:
        """Ask, and ask again at each nudge."""
        queue, task_id = place
        while True:
            nudge.clear()
            again = AGAIN_S
            waits = self._loop.time() < until and not self._no_endings
            try:
                shards = await self._open(queue)
                word, result = await self._lane(shards, task_id).wait(task_id, waits)
                if word != b"waits":
                    return word.decode(), result
            except (StoreDown, Stale, NoQuorum):
                if not waits:
                    raise
                again = AWAY_S
            if not waits:
                return "timeout", b""
            try:
                async with asyncio.timeout_at(min(until, self._loop.time() + again)):
                    await nudge.wait()
            except TimeoutError:
                continue  # the last look, or one in case a message was lost

    def _nudge(self, place: tuple[str, str]) -> None:
        for nudge in self._awaited.get(place, ()):
            nudge.set()

    def _room(self, queue: str, shard: int) -> None:
        """A shard that was at its capacity may have room."""

    def _end_endings(self) -> None:
        """Nobody waits any longer: the node goes down."""
        self._no_endings = True
        for place in self._awaited:
            self._nudge(place)

    def heard(self, channel: bytes, message: bytes) -> None:
        """
        A message of the store's: on this holder's wake channel, or that a queue's settings changed.
        """
        text = message.decode("utf-8", "replace")
        if channel == self._registry_key.encode():
            self.forget(text)
            return
        queue, index, what = text.rsplit(" ", 2)
        if what.startswith("end:"):
            self._nudge((queue, what[4:]))
            return
        if what == "room":
            self._room(queue, int(index))
            return
        shards = self._shards.get(queue)
        if shards is not None and int(index) < len(shards):
            if what == "ready":
                shards[int(index)].wake()
            else:
                shards[int(index)].told(max(0, int(what)))
        if what != "ready":
            self.on_next(queue, int(index), max(0, int(what)))

    def look_again(self, prefix: str) -> None:
        """Messages of one shard may have been missed."""
        _, queue, index = split_prefix(prefix)
        shards = self._shards.get(queue, [])
        if index >= len(shards):
            return
        shards[index].wake()
        for place in self._awaited:
            if place[0] == queue:
                self._nudge(place)
        self._room(queue, index)
        self.on_next(queue, index, 0)

    def wake_all(self) -> None:
        """
        Messages may have been missed: every waiting take is tried again, every other wait asks
        again.
        """
        for shards in self._shards.values():
            for shard in shards:
                shard.wake()
        for place in self._awaited:
            self._nudge(place)
