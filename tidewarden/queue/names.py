"""The cluster's names of queues and topics, as they lie in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from tidewarden.errors import Full
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg

from .partitioning import prefix_of
from .settings import QueueSettings


class QueueNames:
    """
    One hash for the queues (name → settings, JSON), one for the topics (name → names of queues).

    ``on_refused(error)`` hears of each script of a shard, or of sessions, that was refused.
    """

    def __init__(self, cluster: str, link: StoreClient, scripts: Scripts) -> None:
        self.cluster = cluster
        self.holder = "-"
        self.on_refused: Callable[[BaseException], object] = bool
        self._link = link
        self._scripts = scripts
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._registry_key = f"{{{cluster}}}:queues"
        self._topics_key = f"{{{cluster}}}:topics"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let it run beside everything else."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _by_name(self, script: str, *args: Arg) -> asyncio.Future[Any]:
        """Run a script on the cluster's names of queues and topics."""
        return self._scripts.run(
            self._link, script, (f"{{{self.cluster}}}",), (0, self.holder, *args)
        )

    async def _make(
        self, queue: str, settings: QueueSettings, queues_max: int = 0
    ) -> tuple[bytes, bytes]:
        """
        What a name stands for, as of ``queue.create_queue``.

        The system's queues, and with 0 all, are made however many there are.

        Raises: StoreDown; Full: the store's memory, or there are ``queues_max`` queues.
        """
        most = 0 if queue.startswith("_") else queues_max
        what, raw = await self._by_name(
            "queue.create_queue", queue, msgspec.json.encode(settings), most
        )
        if what == b"full":
            found = (
                f"there is no queue {queue}, and the cluster has {int(raw):,} already, of at most"
                f" {most:,}"
            )
            raise Full(f"{found}; use one that is there, or raise limits.queues_max on every node")
        return what, raw

    def reachable(self, queue: str, shard: int) -> bool:
        """Whether there is a connection to where that shard lies."""
        link = self._link.link_of(prefix_of(self.cluster, queue, shard))
        return link is not None and link.up

    def time(self) -> asyncio.Future[list[bytes]]:
        """
        The store's clock: whole seconds since 1970, and microseconds. Raises (in the future):
        StoreDown.
        """
        return self._link.call("TIME")

    async def names(self) -> list[str]:
        """
        Every queue, sorted; the system's own begin with ``_``. A name that is no text is no
        queue's: it is left out.
        """
        raw = await self._link.call("HKEYS", self._registry_key)
        return sorted(name.decode() for name in raw if name.isascii())
