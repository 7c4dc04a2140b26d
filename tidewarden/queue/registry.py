"""The queues a node knows: their settings, read from the store once, and the shards that run their scripts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidewarden.clock import Clock
from tidewarden.config import Config
from tidewarden.errors import StoreDown
from tidewarden.queue.placing import shard_of
from tidewarden.queue.settings import QueueSettings, settings_of_new
from tidewarden.queue.shard import Shard, prefix_of
from tidewarden.queue.task import check_name
from tidewarden.store import Link, Scripts
from tidewarden.store.link import Arg

log = logging.getLogger("tidewarden.queue")

SCRIPT_ROOMS = ("tidewarden.queue", "tidewarden.tokens", "tidewarden.scheduler")
SHARED = ("tidewarden.queue", "shard.lua")


def _no_next(_queue: str, _shard: int, _delay_ms: int) -> None:
    """Nobody wants to know what happens next."""


class Registry:
    """
    Queue names, settings and shards of one cluster, as one node sees them.

    ``holder`` (``node.boot``) must be set before the first take. ``views``: whether the store counts views (an embedded one does).
    ``on_next(queue, shard, delay_ms)`` hears when something happens next in a shard.
    """

    def __init__(self, config: Config, link: Link, scripts: Scripts, clock: Clock, *, views: bool) -> None:
        self._config = config
        self.cluster = config.cluster.name
        self._link = link
        self._scripts = scripts
        self._clock = clock
        self._view_keys = (f"{{{self.cluster}}}:view",) if views else ()
        self._loop = asyncio.get_running_loop()
        self._settings: dict[str, QueueSettings] = {}
        self._shards: dict[str, list[Shard]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._registry_key = f"{{{self.cluster}}}:queues"
        self.holder = "-"
        self.on_next: Callable[[str, int, int], None] = _no_next

    async def _open(self, queue: str) -> list[Shard]:
        """The shards of a queue, which is made with the default settings when it is new."""
        shards = self._shards.get(queue)
        if shards is None:
            raw = await self._link.call("HGET", self._registry_key, queue)
            if raw is None:
                settings = settings_of_new(queue)
                made = await self._link.call("HSETNX", self._registry_key, queue, msgspec.json.encode(settings))
                raw = await self._link.call("HGET", self._registry_key, queue)
                if made:
                    await self._link.call("PUBLISH", self._registry_key, queue)
            settings = msgspec.json.decode(raw, type=QueueSettings)
            shards = self._build(queue, settings)
            if settings_of_new(queue) != QueueSettings():
                # The shards' own records begin with the defaults; writing what is there already changes nothing.
                await asyncio.gather(*(shard.run("queue.configure", settings.shard_fields()) for shard in shards))
        return shards

    def _cut(self, queue: str, settings: QueueSettings) -> list[Shard]:
        """The shards of a queue with these settings: those in use, or new ones, which are not in use yet."""
        shards = self._shards.get(queue)
        if shards is not None and len(shards) == settings.shards:
            return shards
        return [
            Shard(
                self._link,
                self._scripts,
                (prefix_of(self.cluster, queue, i), *self._view_keys),
                lambda: self.holder,
                self._next,
            )
            for i in range(settings.shards)
        ]

    def _build(self, queue: str, settings: QueueSettings) -> list[Shard]:
        """These settings are what is stored. Call it in the turn in which the store's answer came, so that a newer one wins."""
        shards = self._cut(queue, settings)
        former = self._shards.get(queue)
        if former is not shards:
            self._shards[queue] = shards
            for old in former or ():
                old.retire()
        self._settings[queue] = settings
        return shards

    def _next(self, shard: Shard, delay_ms: int) -> None:
        self.on_next(shard.queue, shard.index, delay_ms)

    def forget(self, queue: str) -> None:
        """A queue was made, or its settings changed: read them anew, and look at every shard."""
        task = self._loop.create_task(self._reload(queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self, queue: str) -> None:
        try:
            raw = await self._link.call("HGET", self._registry_key, queue)
        except StoreDown as error:
            log.warning("the settings of %s could not be read anew: %s", queue, error)
            return
        if raw is not None:
            for shard in self._build(queue, msgspec.json.decode(raw, type=QueueSettings)):
                self._next(shard, 0)

    def shard_of(self, queue: str, task_id: str) -> int:
        """The shard that an id lies in: the one it carries, else ``crc32(id) % S`` (:mod:`tidewarden.queue.placing`)."""
        return shard_of(task_id, len(self._shards[queue]))

    async def shards(self, queue: str) -> int:
        """How many shards the queue has."""
        return len(await self._open(queue))

    def _lane(self, shards: list[Shard], task_id: str) -> Shard:
        return shards[0] if len(shards) == 1 else shards[shard_of(task_id, len(shards))]

    def _then(self, queue: str, act: Callable[[list[Shard]], asyncio.Future[Any]]) -> asyncio.Future[Any]:
        """Run ``act`` on the queue's shards: at once when they are known, else after they were read."""
        shards = self._shards.get(queue)
        if shards is not None:
            return act(shards)

        async def later() -> Any:
            return await act(await self._open(queue))

        return self._loop.create_task(later())

    async def script_on(
        self, link: Link, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> tuple[int, int, Any]:
        """
        Run a script of one shard on another connection.

        Returns: the store's clock (ms), when anything happens next (ms, -1: nothing), the script's items.
        Raises: what :meth:`script` raises.
        """
        target = (await self._open(queue))[shard]
        now_ms, next_ms, woke, items = await self._scripts.run(link, name, target.keys, (0, self.holder, *args))
        target.heard(now_ms, next_ms, bool(woke))
        return now_ms, next_ms, items

    async def script(self, name: str, queue: str, shard: int, args: Sequence[Arg], *, now_ms: int = 0) -> Any:
        """
        Run a script of any room (``room.file``) on one shard; its items.

        Raises: StoreDown: it may or may not have run; the script's own refusals; Full.
        """
        shards = await self._open(queue)
        return await shards[shard].run(name, args, now_ms)

    async def names(self) -> list[str]:
        """Every queue, sorted; the system's own begin with ``_``."""
        return sorted(name.decode() for name in await self._link.call("HKEYS", self._registry_key))

    async def settings(self, queue: str) -> dict[str, Any]:
        """The queue's settings."""
        await self._open(check_name(queue))
        return msgspec.structs.asdict(self._settings[queue])
