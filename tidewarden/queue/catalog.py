"""
The queues a node knows: their settings, read from the store once, and the shards that run their
scripts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Config
from tidewarden.errors import BadArg, Error, Internal, NotFound, Stale, StoreDown
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.durability.durability import SYSTEM, Durability
from tidewarden.store.memory import ClusterMemory, StoreMemory
from tidewarden.store.scripts.loader import EACH

from .names import QueueNames
from .partitioning import Partitioner, chooser_of, load_strategies, prefix_of, shard_of
from .settings import QueueSettings, settings_from, settings_of_new
from .shards.lease_clock import LeaseClock
from .shards.resharding import Resharded
from .shards.shard import Shard
from .shards.shard_settings import set_order, write
from .task import check_name

log = logging.getLogger("tidewarden.queue")

CUT_S = 1.0  # whoever cuts a queue anew is through within so long, or has died over it
CUT_ASK_S = 0.02
KEYS_TOGETHER = 64  # in one EXISTS: a few of them are asked for one by one where there is any
HAVING_MAX = 1024  # keys asked for at a time
NEVER_MS = 1 << 42  # in a shard's record, as record.lua has it
REREAD_S = 0.5  # after the store did not answer


def _delay_ms(moments: Sequence[bytes | None], now_ms: int) -> int:
    """Until the first of these moments of a shard's record; -1: there is none."""
    said = [moment for moment in moments if moment is not None]
    if not all(moment.isdigit() for moment in said):
        return 0  # Whoever reads it as a script does will put it right.
    at_ms = min((int(moment) for moment in said), default=NEVER_MS)
    return max(0, at_ms - now_ms) if at_ms < NEVER_MS else -1


def _nobody(*_: object) -> None:
    """Nobody wants to know."""


class Catalog(QueueNames):
    """
    Queue names, settings and shards of one cluster, as one node sees them.

    ``holder`` (``node.boot``) must be set before the first take. ``views``: whether the store
    counts views (an embedded one does). ``on_next(queue, shard, delay_ms)`` hears when something
    happens next in a shard, ``on_shard(prefix)`` of each that becomes known. ``system_queues``: the
    settings that upper rooms' own queues are made with, by the beginnings of their names.
    ``commits``: none for an embedded store.
    """

    def __init__(
        self,
        config: Config,
        link: StoreClient,
        scripts: Scripts,
        clock: Clock,
        *,
        views: bool,
        system_queues: Mapping[str, QueueSettings],
        commits: Durability | None = None,
    ) -> None:
        super().__init__(config.cluster.name, link, scripts)
        self._config = config
        self.commits = commits or Durability(config.store, "", clock, None, embedded=True)
        self._clock = clock
        self._view_keys = (f"{{{self.cluster}}}:view",) if views else ()
        self._settings: dict[str, QueueSettings] = {}
        self._shards: dict[str, list[Shard]] = {}
        # of users' queues with one shard, by the name as it comes
        self._plain: dict[bytes, Shard] = {}
        self._topics: dict[str, tuple[str, ...]] = {}
        self.lease_clock = LeaseClock(clock)
        self.store_memory = ClusterMemory() if link.clustered else StoreMemory()
        self._system_queues = system_queues
        self._strategies = load_strategies(config.queues.strategies)
        self._choosers: dict[str, Partitioner] = {}
        self._recuts: dict[str, asyncio.Task[None]] = {}
        self._outdated: set[str] = set()  # queues whose settings have to be read anew,
        self._rereading: set[str] = set()  # and for which somebody is at it
        self.on_next: Callable[[str, int, int], None] = _nobody
        self.on_shard: Callable[[str], None] = _nobody

    def _settings_of_new(self, queue: str) -> QueueSettings:
        return settings_of_new(queue, self._system_queues)

    async def _open(self, queue: str) -> list[Shard]:
        """
        The shards of a queue, which is made with the default settings when it is new.

        Raises: BadArg: the name is a topic's, which is remembered; StoreDown; Full: the store's
        memory, or the number of queues.
        """
        shards = self._shards.get(queue)
        if shards is None:
            what, raw = await self._make(
                queue, self._settings_of_new(queue), self._config.limits.queues_max
            )
            if what == b"topic":
                links = self._topics[queue] = tuple(raw.decode("utf-8", "replace").split())
                to = f"its queues are {', '.join(links)[:200]}" if links else "it has no queues"
                raise BadArg(f"{queue} is a topic, which only takes puts; {to}")
            settings = settings_from(queue, raw)
            shards = self._build(queue, settings)
            if settings.version or self._settings_of_new(queue) != QueueSettings():
                # Who made or changed it may have died before the shards had it. Writing what is
                # there already changes nothing.
                try:
                    await self._settle(queue)
                except Error:
                    self.forget(queue)
                    raise
        return self._shards[queue]

    async def _settle(self, queue: str) -> None:
        """
        Bring the settings that are stored into force in every shard, whoever stored them. Raises:
        StoreDown: perhaps in some alone.

        Each change has a number. A shard has settings newer than the stored where the store has
        lost these, or where a former version stored them without one: then the stored ones get a
        number above.
        """
        while True:
            try:
                newer = await write(self._shards[queue], self._settings[queue], self._together)
            except Resharded:
                continue  # its settings were read anew
            if not newer:
                return
            raw, stored = await self._stored(queue)
            if stored.version < newer:
                above = msgspec.structs.replace(stored, version=newer + 1)
                if await self._by_name(
                    "queue.swap_settings", queue, raw, msgspec.json.encode(above)
                ):
                    self._build(queue, above)

    def _cut(self, queue: str, settings: QueueSettings) -> list[Shard]:
        """
        The shards of a queue with these settings: those in use, or new ones, which are not in use
        yet.
        """
        former = self._settings.get(queue)
        if former is not None and (former.shards, former.layout) == (
            settings.shards,
            settings.layout,
        ):
            return self._shards[queue]
        return [
            Shard(
                self._link,
                self._scripts,
                (prefix_of(self.cluster, queue, i), *self._view_keys),
                lambda: self.holder,
                self._next,
                layout=settings.layout,
                # On a cluster shards lie on servers with clocks of their own.
                lease_clock=LeaseClock(self._clock) if self._link.clustered else self.lease_clock,
                store_memory=self.store_memory,
                on_recut=self._recut,
                on_lost=self._lost_take,
                on_refused=lambda error: self.on_refused(error),
            )
            for i in range(settings.shards)
        ]

    def _build(self, queue: str, settings: QueueSettings) -> list[Shard]:
        """
        These settings are what is stored. Call it in the turn in which the store's answer came, so
        that a newer one wins.
        """
        shards = self._cut(queue, settings)
        self._plain.clear()
        former = self._shards.get(queue)
        if former is not shards:
            self._shards[queue] = shards
            for shard in shards:
                self.on_shard(shard.keys[0])
            for old in former or ():
                old.retire()
        if former is not shards or self._settings[queue].strategy != settings.strategy:
            chooser = chooser_of(settings.strategy, settings.shards, self._strategies)
            if chooser is None:
                self._choosers.pop(queue, None)
            else:
                self._choosers[queue] = chooser
        self._settings[queue] = settings
        system = self.commits.of(self._link, SYSTEM)
        for shard in shards:
            shard.holding.commit = (
                system
                if queue.startswith("_")
                else self.commits.of(self._link, settings.durability)
            )
            shard.holding.system = system
        return shards

    def _recut(self, shard: Shard, layout: int) -> asyncio.Future[Callable[[str], Shard]]:
        """
        A shard knows of a newer cut of its queue: read the settings anew; then, where an id lies.
        """
        queue = shard.queue
        task = self._recuts.get(queue)
        if task is None:
            task = self._recuts[queue] = self._spawn(self._read_cut(queue, layout))
            task.add_done_callback(lambda _: self._recuts.pop(queue))

        async def place() -> Callable[[str], Shard]:
            await asyncio.shield(task)
            return lambda task_id: self._lane(self._shards[queue], task_id)

        return self._loop.create_task(place())

    async def _read_cut(self, queue: str, layout: int) -> None:
        """
        Read the settings until they are as new as the shards. Where that does not come, whoever cut
        the queue died between closing the old shards and writing the new settings: the old ones
        hold on, under a number above both.
        """
        until = self._loop.time() + CUT_S
        while True:
            raw, settings = await self._stored(queue)
            if settings.layout >= layout:
                return
            if self._loop.time() >= until:
                break
            await sleep(self._clock, CUT_ASK_S)
        log.warning(
            "a cut of %s into other shards broke off; it keeps its %d", queue, settings.shards
        )
        await self._keep_cut(queue, raw, settings, layout)

    async def _keep_cut(self, queue: str, raw: bytes, settings: QueueSettings, layout: int) -> None:
        """
        Open shards that were closed by ``layout``, with the settings that are stored, unless others
        are by now.
        """
        kept = msgspec.structs.replace(settings, layout=layout + 1)
        await set_order(self._cut(queue, kept), kept.order)  # the closed ones may have got another
        if await self._by_name("queue.swap_settings", queue, raw, msgspec.json.encode(kept)):
            self._build(queue, kept)

    def _lost_take(self, shard: Shard) -> None:
        """The answer of a take there was lost with the connection."""

    def _next(self, shard: Shard, delay_ms: int) -> None:
        self.on_next(shard.queue, shard.index, delay_ms)

    def forget(self, queue: str) -> None:
        """
        A queue was made, or its settings changed: read them anew until the store has answered, and
        look at every shard.
        """
        self._outdated.add(queue)
        if queue not in self._rereading:
            self._rereading.add(queue)
            self._spawn(self._reread(queue))

    async def recall(self) -> None:
        """
        Another server has taken over, or this one was started anew, and may lack the last writes: a
        queue that it does not know is made again, as this node knows it. Else its tasks would lie
        where nobody sweeps. Raises: StoreDown.
        """
        raw = await self._link.call("HGETALL", self._registry_key)
        stored = dict(zip(raw[::2], raw[1::2], strict=True))
        for queue in list(self._settings):
            if found := stored.get(queue.encode()):
                try:
                    settings = settings_from(queue, found)
                except Internal as error:
                    log.error("%s", error)
                    continue
                self._build(queue, settings)
                if settings.version or (
                    self._link.clustered and settings != QueueSettings(shards=settings.shards)
                ):
                    # What a shard's own record says may be lost, and not the settings: it is
                    # written later, and perhaps elsewhere.
                    await self._settle(queue)
        for queue in list(self._settings):
            if queue.encode() not in stored:
                with contextlib.suppress(NotFound):  # a topic has its name now
                    await self._again(queue)

    async def _again(self, queue: str) -> bytes:
        """
        A queue that this node knows, as the store has it (JSON); one that it has lost is made
        again, as this node knows it.

        Raises: NotFound: the name is a topic's now; StoreDown.
        """
        what, raw = await self._make(queue, self._settings[queue])
        if what == b"topic":
            raise NotFound(f"there is no queue {queue} any more; it is a topic")
        self._build(queue, settings_from(queue, raw))
        if what == b"new":
            log.warning("the store had lost the queue %s; it is there again", queue)
            await self._settle(queue)
        return raw

    async def _stored(self, queue: str) -> tuple[bytes, QueueSettings]:
        """
        The settings of a queue that this node knows, as they are stored (JSON, too) and built.
        Raises: as :meth:`_again`.
        """
        raw = await self._link.call("HGET", self._registry_key, queue) or await self._again(queue)
        self._build(queue, settings := settings_from(queue, raw))
        return raw, settings

    def shards_known(self) -> list[Shard]:
        """The shards of all queues that this process has met."""
        return [shard for shards in self._shards.values() for shard in shards]

    async def _reread(self, queue: str) -> None:
        """Nobody repeats the message: what is not read now is read later."""
        try:
            while queue in self._outdated:
                self._outdated.discard(queue)
                try:
                    await self._read_anew(queue)
                except (StoreDown, Stale, Internal) as error:
                    log.warning(
                        "the settings of %s could not be read anew, which is tried again: %s",
                        queue,
                        error,
                    )
                    self._outdated.add(queue)
                    await sleep(self._clock, REREAD_S)
        finally:
            self._rereading.discard(queue)

    async def _read_anew(self, queue: str) -> None:
        raw = await self._link.call("HGET", self._registry_key, queue)
        links = None if raw is not None else await self._link.call("HGET", self._topics_key, queue)
        if links is not None:
            self._topics[queue] = tuple(links.decode("utf-8", "replace").split())
        if raw is not None:
            settings = settings_from(queue, raw)
            for shard in self._build(queue, settings):
                self._next(shard, 0)
            if settings.version:
                await self._settle(queue)

    def shard_of(self, queue: str, task_id: str) -> int:
        """
        The shard that an id lies in: the one it carries, else ``crc32(id) % S``
        (:mod:`tidewarden.queue.partitioning`).
        """
        return shard_of(task_id, len(self._shards[queue]))

    async def shard(self, queue: str, task_id: str) -> Shard:
        """The shard that an id lies in."""
        return self._lane(await self._open(queue), task_id)

    async def shards(self, queue: str) -> int:
        """How many shards the queue has."""
        return len(await self._open(queue))

    def _lane(self, shards: list[Shard], task_id: str) -> Shard:
        return shards[0] if len(shards) == 1 else shards[shard_of(task_id, len(shards))]

    def _then(
        self, queue: str, act: Callable[[list[Shard]], asyncio.Future[Any]]
    ) -> asyncio.Future[Any]:
        """
        Run ``act`` on the queue's shards: at once when they are known, else after they were read.
        """
        shards = self._shards.get(queue)
        if shards is not None:
            return act(shards)

        async def later() -> Any:
            return await act(await self._open(queue))

        return self._loop.create_task(later())

    async def script_on(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> tuple[int, int, Any]:
        """
        Run a script of one shard on another connection; its answer waits for no durability but
        ``strongest``.

        Returns: the store's clock (ms), when anything happens next (ms, -1: nothing), the script's
        items. Raises: what :meth:`script` raises.
        """
        await self._open(queue)
        try:
            now_ms, next_ms, _, items = await self._run_on(link, name, queue, shard, args)
        except Resharded:
            now_ms, next_ms, _, items = await self._run_on(link, name, queue, shard, args)
        return now_ms, next_ms, items

    async def items_on(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> Any:
        """The items of a script run as by :meth:`script_on`, which see."""
        return (await self.script_on(link, name, queue, shard, args))[2]

    async def _run_on(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> Any:
        place = self._shard_at(queue, shard)
        if self._scripts[name].durability != "strongest":
            return await place.run_by(link, name, args)
        sender, firm = self.commits.strongest_route(link, place.keys[0])
        reply = await place.run_by(sender, name, args)
        await firm()
        return reply

    async def script(
        self, name: str, queue: str, shard: int, args: Sequence[Arg], *, now_ms: int = 0
    ) -> Any:
        """
        Run a script of any room (``room.file``) on one shard; its items.

        Raises: StoreDown: it may or may not have run; the script's own refusals; Full.
        """
        await self._open(queue)
        try:
            return await self._shard_at(queue, shard).run(name, args, now_ms)
        except Resharded:
            return await self._shard_at(queue, shard).run(name, args, now_ms)

    async def delays(self, queue: str) -> list[int]:
        """
        In how many ms something happens in each shard, as its record says, which every script keeps
        true; -1: nothing.

        0 on several servers, each with a clock of its own, and where it cannot be read. Raises:
        StoreDown; Internal.
        """
        shards = await self._open(queue)
        if self._link.clustered:
            return [0] * len(shards)
        records = (
            self._link.call("HMGET", f"{shard.keys[0]}:shard", "alarm", "tick") for shard in shards
        )
        (seconds, micros), *found = await asyncio.gather(self.time(), *records)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return [_delay_ms(record, now_ms) for record in found]

    async def having(self, queues: Iterable[str], name: str) -> list[tuple[str, int]]:
        """
        The shards of these queues that have a key of that name: on one server many are asked for in
        one command. Raises: StoreDown.
        """
        places = [
            (queue, shard.index, f"{shard.keys[0]}:{name}")
            for queue in queues
            for shard in await self._open(queue)
        ]
        together = 1 if self._link.clustered else KEYS_TOGETHER
        found = []
        for first in range(0, len(places), HAVING_MAX):
            some = places[first : first + HAVING_MAX]
            parts = [some[at : at + together] for at in range(0, len(some), together)]
            there = await asyncio.gather(
                *(self._link.call("EXISTS", *(key for *_, key in part)) for part in parts)
            )
            doubtful = [
                place for part, count in zip(parts, there, strict=True) if count for place in part
            ]
            each = await asyncio.gather(*(self._link.call("EXISTS", key) for *_, key in doubtful))
            found += [
                (queue, shard) for (queue, shard, _), one in zip(doubtful, each, strict=True) if one
            ]
        return found

    async def script_each(self, name: str, queue: str, args: Sequence[Arg]) -> list[Any]:
        """
        Run a script (its header says EACH) on every shard of a queue; the items of each.

        In one call where all shards lie on one server. Raises: as :meth:`script`.
        """
        shards = await self._open(queue)
        try:
            return await self._together(shards, name, args)
        except Resharded:
            return await self._together(self._shards[queue], name, args)

    async def _together(self, shards: Sequence[Shard], name: str, args: Sequence[Arg]) -> list[Any]:
        """
        Run a script on these shards of one queue, in one call where they lie on one server. Raises:
        as :meth:`Shard.run`.

        One that has refused finds out by itself what that means.
        """
        replies: list[Any] = [StoreDown("it was not asked")] * len(shards)
        if not self._link.clustered and len(shards) > 1:
            keys = (*(shard.keys[0] for shard in shards), *shards[0].keys[1:])
            said = (len(shards), shards[0].stamped(0), self.holder, *args)
            replies = await self._scripts.run(self._link, name + EACH, keys, said)
        found: list[Any] = [None] * len(shards)
        alone: dict[int, asyncio.Future[Any]] = {}
        for place, (shard, reply) in enumerate(zip(shards, replies, strict=True)):
            if isinstance(reply, Exception):
                alone[place] = shard.run(name, args)
            else:
                now_ms, next_ms, woke, found[place] = reply
                shard.heard(now_ms, next_ms, bool(woke))
        for place, items in zip(alone, await asyncio.gather(*alone.values()), strict=True):
            found[place] = items
        return found

    def _shard_at(self, queue: str, index: int) -> Shard:
        """Raises: NotFound: the queue was cut into fewer."""
        shards = self._shards[queue]
        if index >= len(shards):
            raise NotFound(f"{queue} has no shard {index}; it has {len(shards)}")
        return shards[index]

    async def settings(self, queue: str) -> dict[str, Any]:
        """The queue's settings, as they are stored. Raises: StoreDown."""
        await self._open(check_name(queue))
        _, settings = await self._stored(queue)
        return settings.shown()
