"""
Keeps the queues that a node knows: their settings, read from the store once, and their shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidewarden.clock import Clock, in_turns, sleep
from tidewarden.config.load import Config
from tidewarden.errors import BadArg, Error, Full, Internal, NotFound, Stale, StoreDown
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.durability.durability import SYSTEM, Durability
from tidewarden.store.memory import ClusterMemory, StoreMemory
from tidewarden.user_limits import ACTING, UserLimits

from .background import BackgroundTasks
from .partitioning import (
    Partitioner,
    load_strategies,
    partitioner_of,
    prefix_of,
    shard_for,
    shard_of,
)
from .settings import QueueSettings, dropped_from, settings_from, settings_of_new
from .shards.lease_clock import LeaseClock
from .shards.resharding import Resharded
from .shards.shard import Shard
from .shards.shard_group import ShardGroup
from .shards.shard_settings import set_order, write

log = logging.getLogger("tidewarden.queue")

LAYOUT_S = 1.0  # a node that cuts a queue anew is through within so long, or has died over it
LAYOUT_ASK_S = 0.02
DROPPED_PAGE = 200
REREAD_S = 0.5  # after the store did not answer


def _nobody(*_: object) -> None:
    """Ignore the call, because no part listens."""


def _dropped_error(queue: str) -> NotFound:
    return NotFound(
        f"the queue {queue} was dropped; Q.CONFIG {queue} SET with any setting makes it again"
    )


class KnownShards(dict[str, list[Shard]]):
    """
    Holds shards by their queues; to look up a queue that was dropped meanwhile raises NotFound.
    """

    def __missing__(self, queue: str) -> list[Shard]:
        raise _dropped_error(queue)


class Catalog:
    """
    Queue names, settings and shards of one cluster, as one node sees them.

    ``holder`` (``node.boot``) must be set before the first take. ``views``: whether the store
    counts views (an embedded one does). ``on_next(queue, shard, delay_ms)`` hears when something
    happens next in a shard, ``on_shard(prefix)`` of each that becomes known, ``on_lost(shard)`` of
    a take whose answer was lost. ``system_queues``: the settings that upper rooms' own queues are
    made with, by the beginnings of their names. ``durability``: none for an embedded store.
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
        durability: Durability | None = None,
    ) -> None:
        self.cluster = config.cluster.name
        self.holder = "-"
        self._link = link
        self._scripts = scripts
        self._loop = asyncio.get_running_loop()
        self.background = BackgroundTasks()
        self.group = ShardGroup(link, scripts, self._holder, self.background)
        self.names_key = f"{{{self.cluster}}}:queues"
        self._topics_key = f"{{{self.cluster}}}:topics"
        self._dropped_key = f"{{{self.cluster}}}:dropped"
        self._queues_max = config.limits.queues_max
        self.user_limits = UserLimits(config)
        self.durability = durability or Durability(config.store, "", clock, None, embedded=True)
        self._clock = clock
        self._view_keys = (f"{{{self.cluster}}}:view",) if views else ()
        self.settings: dict[str, QueueSettings] = {}
        self.shards: dict[str, list[Shard]] = KnownShards()
        # of users' queues with one shard, by the name as it comes
        self.plain: dict[bytes, Shard] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        self.turns: dict[str, int] = {}  # of takes, in queues of several shards
        self.expiring: set[str] = set()  # queues that end when nobody uses them
        self.lease_clock = LeaseClock(clock)
        self.store_memory = ClusterMemory() if link.clustered else StoreMemory()
        self._system_queues = system_queues
        self.strategies = load_strategies(config.queues.strategies)
        self.partitioners: dict[str, Partitioner] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._outdated: set[str] = set()  # queues whose settings have to be read anew,
        self._rereading: set[str] = set()  # and for which somebody is at it
        self.on_next: Callable[[str, int, int], None] = _nobody
        self.on_shard: Callable[[str], None] = _nobody
        self.on_lost: Callable[[Shard], None] = _nobody
        self.on_refused: Callable[[BaseException], object] = _nobody

    def _settings_of_new(self, queue: str) -> QueueSettings:
        return settings_of_new(queue, self._system_queues, self.durability.of_new_queues)

    async def _make(
        self, queue: str, settings: QueueSettings, queues_max: int = 0, *, dropped: bytes = b""
    ) -> tuple[bytes, bytes]:
        """
        Return what a name stands for, as ``queue.create_queue`` answers; with 0 it is made in any
        case.

        ``dropped``: the stored note of a dropped queue, which the new one replaces. Raises:
        StoreDown; Full: the store's memory, there are ``queues_max`` queues, or the user who acts
        has made its share of them.
        """
        what, raw = await self.run_on_names(
            "queue.create_queue",
            queue,
            msgspec.json.encode(settings),
            queues_max,
            *self.maker,
            dropped,
        )
        if what == b"full":
            found = (
                f"there is no queue {queue}, and the cluster has {int(raw):,} already, of at most"
                f" {queues_max:,}"
            )
            raise Full(f"{found}; use one that is there, or raise limits.queues_max on every node")
        return what, raw

    async def make(self, queue: str) -> None:
        """
        Make one of the system's queues that a user has asked for, and count it as the user's own.

        Raises: StoreDown; Full: as for a queue of the user's.
        """
        if queue not in self.shards:
            await self._make(queue, self._settings_of_new(queue), self._queues_max)

    async def open(
        self,
        queue: str,
        new: QueueSettings | None = None,
        *,
        for_use: bool = False,
        again: bool = False,
    ) -> list[Shard]:
        """
        Return a queue's shards; a new queue is made, with ``new`` or the default settings.

        The system's are made however many there are. ``for_use``: a put or a take is to follow, so
        one that ended because nobody used it is made, too; ``again``: so is one that was dropped.

        Raises: BadArg: the name is a topic's, which is remembered; StoreDown; Full: the store's
        memory, or the number of queues; NotFound: it was dropped; Stale: what it held is still
        being removed.
        """
        shards = self.shards.get(queue)
        if shards is None:
            made_with = new or self._settings_of_new(queue)
            most = 0 if queue.startswith("_") else self._queues_max
            what, raw = await self._make(queue, made_with, most)
            if what == b"dropped":
                note = dropped_from(queue, raw)
                if not (again or (for_use and note.free)):
                    raise _dropped_error(queue)
                if not note.cleared:
                    raise Stale(
                        f"the queue {queue} was dropped, and what it held is still being removed;"
                        " repeat this in a moment"
                    )
                made_with = msgspec.structs.replace(made_with, layout=note.layout + 1)
                what, raw = await self._make(queue, made_with, most, dropped=raw)
            if what == b"topic":
                links = self.topics[queue] = tuple(raw.decode("utf-8", "replace").split())
                to = "see Q.LIST TOPICS for its queues" if links else "it has no queues"
                raise BadArg(f"{queue} is a topic, which only takes puts; {to}")
            settings = settings_from(queue, raw)
            shards = self.build(queue, settings)
            fields = self._settings_of_new(queue).shard_fields()
            if settings.version or fields != QueueSettings().shard_fields():
                # Who made or changed it may have died before the shards had it. Writing what is
                # there already changes nothing.
                try:
                    await self.settle(queue)
                except Error:
                    self.forget(queue)
                    raise
        return self.shards[queue]

    async def settle(self, queue: str) -> None:
        """
        Bring the stored settings into force in every shard, whichever node stored them.

        Raises: StoreDown: perhaps in some alone.

        Each change has a number. A shard's settings are newer than the stored ones where the store
        has lost these, or where a former version stored them without one: then the stored ones get
        a number above.
        """
        while True:
            try:
                newer = await write(self.shards[queue], self.settings[queue], self.group.run)
            except Resharded:
                continue  # its settings were read anew
            if not newer:
                return
            raw, stored = await self.stored(queue)
            if stored.version < newer:
                above = msgspec.structs.replace(stored, version=newer + 1)
                if await self.swap(queue, raw, above):
                    self.build(queue, above)

    def shards_with(self, queue: str, settings: QueueSettings) -> list[Shard]:
        """
        Return the shards of a queue with these settings.

        They are those in use, or new ones, which are not in use yet.
        """
        former = self.settings.get(queue)
        if former is not None and (former.shards, former.layout) == (
            settings.shards,
            settings.layout,
        ):
            return self.shards[queue]
        return [
            Shard(
                self._link,
                self._scripts,
                (prefix_of(self.cluster, queue, i), *self._view_keys),
                self._holder,
                self._next,
                layout=settings.layout,
                # On a cluster shards lie on servers with clocks of their own.
                lease_clock=LeaseClock(self._clock) if self._link.clustered else self.lease_clock,
                store_memory=self.store_memory,
                on_resharded=self._resharded,
                on_lost=self._lost,
                on_refused=self._refused,
            )
            for i in range(settings.shards)
        ]

    def build(self, queue: str, settings: QueueSettings) -> list[Shard]:
        """
        Build the shards of a queue whose stored settings are these.

        Call it in the turn in which the store's answer came, so that a newer one wins.
        """
        shards = self.shards_with(queue, settings)
        self.plain.clear()
        former = self.shards.get(queue)
        if former is not shards:
            self.shards[queue] = shards
            for shard in shards:
                self.on_shard(shard.keys[0])
            for old in former or ():
                old.retire()
        if former is not shards or self.settings[queue].strategy != settings.strategy:
            chooser = partitioner_of(settings.strategy, settings.shards, self.strategies)
            if chooser is None:
                self.partitioners.pop(queue, None)
            else:
                self.partitioners[queue] = chooser
        self.settings[queue] = settings
        (self.expiring.add if settings.expire_ms else self.expiring.discard)(queue)
        system = self.durability.of(self._link, SYSTEM)
        for shard in shards:
            shard.gate.commit = (
                system
                if queue.startswith("_")
                else self.durability.of(self._link, settings.durability)
            )
            shard.gate.system = system
        return shards

    def lose(self, queue: str, *, free: bool = False) -> None:
        """
        Forget a queue that was dropped; takes that wait in it end with that error.

        ``free``: it ended because nobody used it, so they end with nothing, and may ask again.
        """
        self.settings.pop(queue, None)
        self.expiring.discard(queue)
        self.partitioners.pop(queue, None)
        self.turns.pop(queue, None)
        self.plain.clear()
        for shard in self.shards.pop(queue, ()):
            shard.retire(None if free else _dropped_error(queue))

    def _ended(self, queue: str, raw: bytes, *, of_use: bool) -> Error:
        """
        Forget a queue that is noted as dropped; return the error for a caller that uses it.

        ``of_use``: where the next put or take makes a new queue, the error says to repeat it.
        """
        try:
            free = dropped_from(queue, raw).free
        except Internal:
            free = False
        self.lose(queue, free=free)
        if free and of_use:
            return Stale(f"the queue {queue} ended, for nobody used it; repeat this")
        return _dropped_error(queue)

    async def refuse_dropped(self, queue: str, *, of_use: bool = False) -> None:
        """
        Raise NotFound if a queue of this name was dropped within a day.

        ``of_use``: see :meth:`_ended`. Raises: Stale: by that; StoreDown.
        """
        raw = await self._link.call("HGET", self._dropped_key, queue)
        if raw is not None:
            raise self._ended(queue, raw, of_use=of_use)

    async def all_dropped(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield each dropped queue with its stored note, as JSON. Raises: StoreDown."""
        cursor = b"0"
        while True:
            cursor, raw = await self._link.call(
                "HSCAN", self._dropped_key, cursor, "COUNT", DROPPED_PAGE
            )
            for name, note in zip(raw[::2], raw[1::2], strict=True):
                yield _text(name), note
            if cursor == b"0":
                return

    def _resharded(self, shard: Shard, layout: int) -> asyncio.Future[Callable[[str], Shard]]:
        """
        Read the settings anew, because a shard knows of a newer cut; return the shard of an id.
        """
        queue = shard.queue
        task = self._reading.get(queue)
        if task is None:
            task = self._reading[queue] = self.background.start(self._read_layout(queue, layout))
            task.add_done_callback(lambda _: self._reading.pop(queue))

        async def place() -> Callable[[str], Shard]:
            await asyncio.shield(task)
            return lambda task_id: shard_for(self.shards[queue], task_id)

        return self._loop.create_task(place())

    async def _read_layout(self, queue: str, layout: int) -> None:
        """
        Read the settings until they are as new as the shards.

        Where that does not come, the node that cut the queue died between closing the old shards
        and writing the new settings: the old ones hold on, under a number above both.
        """
        until = self._loop.time() + LAYOUT_S
        while True:
            raw, settings = await self.stored(queue)
            if settings.layout >= layout:
                return
            if self._loop.time() >= until:
                break
            await sleep(self._clock, LAYOUT_ASK_S)
        log.warning(
            "a cut of %s into other shards broke off; it keeps its %d", queue, settings.shards
        )
        await self.keep_layout(queue, raw, settings, layout)

    async def swap(
        self, queue: str, raw: bytes, new: QueueSettings, *, asked: bool = False, look: bool = False
    ) -> bool:
        """
        Store a queue's settings in place of ``raw``; False: others are stored.

        ``asked``: a user asks for them. ``look``: it is looked whether that is possible.

        Raises: StoreDown; Full: ``asked``, and it has more shards than there is room for.
        """
        most = self._queues_max if asked and not queue.startswith("_") else 0
        text = msgspec.json.encode(new)
        return bool(
            await self.run_on_names(
                "queue.swap_settings", queue, raw, text, most, *self.maker, int(look)
            )
        )

    async def keep_layout(
        self, queue: str, raw: bytes, settings: QueueSettings, layout: int
    ) -> None:
        """
        Open shards that were closed by ``layout``, with the stored settings.

        Nothing happens if others are stored by now.
        """
        kept = msgspec.structs.replace(settings, layout=layout + 1)
        # the closed ones may have got another
        await set_order(self.shards_with(queue, kept), kept.order, final=True)
        if await self.swap(queue, raw, kept):
            self.build(queue, kept)

    def _holder(self) -> str:
        return self.holder

    def _lost(self, shard: Shard) -> None:
        self.on_lost(shard)

    def _refused(self, error: BaseException) -> None:
        self.on_refused(error)

    def _next(self, shard: Shard, delay_ms: int) -> None:
        self.on_next(shard.queue, shard.index, delay_ms)

    def forget(self, queue: str) -> None:
        """
        Read a queue's settings again, because it was made or they changed.

        This lasts until the store has answered; then every shard is looked at.
        """
        self._outdated.add(queue)
        if queue not in self._rereading:
            self._rereading.add(queue)
            self.background.start(self._reread(queue))

    async def recall(self) -> None:
        """
        Make queues again that the store does not know, as this node knows them.

        Another server has taken over, or this one was restarted, and may lack the last writes. Else
        its tasks would lie where nobody sweeps. Raises: StoreDown.
        """
        raw = await self._link.call("HGETALL", self.names_key)
        stored = dict(zip(raw[::2], raw[1::2], strict=True))
        for queue in list(self.settings):
            if found := stored.get(queue.encode()):
                try:
                    settings = settings_from(queue, found)
                except Internal as error:
                    log.error("%s", error)
                    continue
                self.build(queue, settings)
                if settings.version or (
                    self._link.clustered and settings != QueueSettings(shards=settings.shards)
                ):
                    # What a shard's own record says may be lost, and not the settings: it is
                    # written later, and perhaps elsewhere.
                    await self.settle(queue)
        for queue in list(self.settings):
            if queue.encode() not in stored:
                # it was dropped or ended, or a topic has its name now
                with contextlib.suppress(NotFound, Stale):
                    await self._again(queue)

    async def _again(self, queue: str) -> bytes:
        """
        Read a known queue as the store has it (JSON); make it again if the store has lost it.

        It is made as this node knows it. Raises: NotFound: it was dropped, or the name is a topic's
        now; Stale: it ended because nobody used it, so a caller that repeats its request makes a
        new one; StoreDown.
        """
        known = self.settings.get(queue)
        if known is None:  # it was forgotten while this was on its way
            await self.refuse_dropped(queue, of_use=True)
            raise _dropped_error(queue)
        what, raw = await self._make(queue, known)
        if what == b"dropped":
            raise self._ended(queue, raw, of_use=True)
        if what == b"topic":
            self.lose(queue)
            raise NotFound(f"there is no queue {queue} any more; it is a topic")
        self.build(queue, settings_from(queue, raw))
        if what == b"new":
            log.warning("the store had lost the queue %s; it is there again", queue)
            if queue in self._reading:
                # A shard that knows of a newer cut would have it wait for the reading, which it is.
                self.forget(queue)
            else:
                await self.settle(queue)
        return raw

    async def stored(self, queue: str) -> tuple[bytes, QueueSettings]:
        """
        Read the settings of a queue that this node knows: as they are stored (JSON), and built.

        Raises: as :meth:`_again`.
        """
        raw = await self._link.call("HGET", self.names_key, queue) or await self._again(queue)
        self.build(queue, settings := settings_from(queue, raw))
        return raw, settings

    def shards_known(self) -> list[Shard]:
        """Return the shards of all queues that this process has met."""
        return [shard for shards in self.shards.values() for shard in shards]

    async def _reread(self, queue: str) -> None:
        """Read changed settings, now or later, because no message is repeated."""
        try:
            while queue in self._outdated:
                self._outdated.discard(queue)
                try:
                    await self._read_anew(queue)
                except NotFound:
                    return  # it was dropped
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
        raw = await self._link.call("HGET", self.names_key, queue)
        links = None if raw is not None else await self.stored_links(queue)
        if links is not None:
            self.lose(queue)  # a queue of this name was dropped
            self.topics[queue] = links
        elif raw is None:
            self.topics.pop(queue, None)
            await self.refuse_dropped(queue)
        if raw is not None:
            settings = settings_from(queue, raw)
            for shard in self.build(queue, settings):
                self._next(shard, 0)
            if settings.version:
                await self.settle(queue)

    def current(self, shard: Shard) -> Shard | None:
        """
        Return the shard in this one's place since its queue was cut anew; None: there is none.
        """
        shards = self.shards.get(shard.queue, [])
        return shards[shard.index] if shard.index < len(shards) else None

    def shard_of(self, queue: str, task_id: str) -> int:
        """
        Return the number of the shard that an id lies in, of a queue that is known here.

        It is the one the id carries, else ``crc32(id) % S`` (:mod:`tidewarden.queue.partitioning`).
        """
        return shard_of(task_id, len(self.shards[queue]))

    def shard_if_known(self, queue: str, task_id: str) -> Shard | None:
        """Return the shard that an id lies in; None: the queue was dropped."""
        shards = self.shards.get(queue)
        return None if shards is None else shard_for(shards, task_id)

    async def shard(self, queue: str, task_id: str) -> Shard:
        """Return the shard that an id lies in."""
        return shard_for(await self.open(queue), task_id)

    async def shard_count(self, queue: str) -> int:
        """Return how many shards the queue has."""
        return len(await self.open(queue))

    @property
    def maker(self) -> tuple[str, int]:
        """
        Return the user who acts (empty: none in particular), and the thousandths that one may make.
        """
        return ACTING.get(), self.user_limits.share

    def run_on_names(self, script: str, *args: Arg) -> asyncio.Future[Any]:
        """Run a script on the cluster's names of queues and topics."""
        return self._scripts.run(
            self._link, script, (f"{{{self.cluster}}}",), (0, self.holder, *args)
        )

    @property
    def reconnects(self) -> int:
        """
        Return how often a connection to the store was made anew.

        Behind a new one may be a store that a failover put there, without the last writes.
        """
        return self._link.reconnects

    def reachable(self, queue: str, shard: int) -> bool:
        """Return whether there is a connection to the server that has the shard."""
        link = self._link.link_of(prefix_of(self.cluster, queue, shard))
        return link is not None and link.up

    def time(self) -> asyncio.Future[list[bytes]]:
        """
        Return the store's clock: whole seconds since 1970, and microseconds; see :func:`clock_ms`.

        Raises (in the future): StoreDown.
        """
        return self._link.call("TIME")

    async def names(self) -> list[str]:
        """
        List every queue, sorted; the system's own begin with ``_``.

        A name that is no text is no queue's: it is left out.
        """
        raw = await self._link.call("HKEYS", self.names_key)
        names = [name.decode() async for name in in_turns(raw) if name.isascii()]
        names.sort()
        await sleep(self._clock, 0.0)  # whoever looks at each of them begins a turn of its own
        return names

    async def exists(self, queue: str) -> bool:
        """Return whether the store has a queue of this name. Raises: StoreDown."""
        return bool(await self._link.call("HEXISTS", self.names_key, queue))

    async def links_of(self, name: str) -> tuple[str, ...] | None:
        """
        Return the queues of a topic; None: the name is a queue's, which is open now.

        Raises: what :meth:`open` does.
        """
        if name in self.shards:
            return None
        if name not in self.topics:
            try:
                await self.open(name, for_use=True)
            except BadArg:
                return self.topics[name]
            return None
        return self.topics[name]

    async def stored_links(self, topic: str) -> tuple[str, ...] | None:
        """
        Read the queues of a topic, as they are stored; None: there is none.

        Raises: StoreDown.
        """
        raw = await self._link.call("HGET", self._topics_key, topic)
        return None if raw is None else tuple(raw.decode("utf-8", "replace").split())

    async def all_links(self) -> dict[str, list[str]]:
        """Read every topic and its queues, sorted. Raises: StoreDown."""
        raw = await self._link.call("HGETALL", self._topics_key)
        found = {}
        async for name, links in in_turns(sorted(zip(raw[::2], raw[1::2], strict=True)), 1):
            found[_text(name)] = sorted(_text(links).split())
        return found


def _text(raw: bytes) -> str:
    """Decode a name; an unreadable one is no name of ours, and hides no other."""
    return raw.decode("utf-8", "replace")


def clock_ms(answer: Sequence[bytes]) -> int:
    """Return what :meth:`Catalog.time` has answered, in unix milliseconds."""
    seconds, micros = map(int, answer)
    return seconds * 1000 + micros // 1000
