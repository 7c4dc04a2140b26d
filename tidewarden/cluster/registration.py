"""
Registers nodes in the store.

Each node registers a boot and renews it by heartbeats; the leader removes dead ones.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidewarden.clock import Clock, rest, sleep
from tidewarden.errors import ConfigError, Error, Exists, Stale, StoreDown
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.reply_errors import StoreRefused

log = logging.getLogger("tidewarden.cluster")

BEAT_S, BEAT_MS = 0.5, 500
DEAD_MS = 2000  # a registration so old, of a node that Raft does not hear either, is a dead node's
# that of a node's further process, the node being there: one that hangs is killed sooner, so it is
# started no more
LEFT_MS = 30_000
# a node of this name and another folder that still lives after so long is not just going
NAMESAKE_S = 4.0
_STORED = re.compile(r"stored is (\d+)")  # as beat.lua says it
_DECLARED_DEAD = re.compile(r"(\S+) was declared dead;")  # as the queues' scripts say it


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """
    Holds a node's boot, and for how many ms this process has seen no new heartbeat of it.

    See :meth:`Registration._look`.
    """

    node: str
    boot: int
    age_ms: int

    @property
    def owner(self) -> str:
        """
        Return the node that the process belongs to.

        A further process of a node is registered as ``node/number``.
        """
        return self.node.partition("/")[0]


def dead_nodes(
    nodes: list[NodeRecord], me: str, heard_s: Callable[[str], float]
) -> list[NodeRecord]:
    """
    Return the dead registrations: those old at the store *and* not heard by Raft.

    A node that lost only one of the two lives.

    ``heard_s(node)``: seconds since Raft last heard that node, as the leader knows it. A node's
    further processes are dead with it, and not before, as Raft or the store says of its first one;
    the end of one alone is its node's to tell, which kills one that hangs and registers it anew.
    One that it does not start any more is dead when it has been silent for long, and its node has
    not.
    """
    ages_ms = {node.node: node.age_ms for node in nodes}

    def is_dead(node: NodeRecord) -> bool:
        if (
            node.node != node.owner
            and node.age_ms >= LEFT_MS
            and ages_ms.get(node.owner, DEAD_MS) < DEAD_MS
        ):
            return True
        silent = node.age_ms >= DEAD_MS and ages_ms.get(node.owner, DEAD_MS) >= DEAD_MS
        return node.owner != me and silent and heard_s(node.owner) * 1000 >= DEAD_MS / 2

    return [node for node in nodes if is_dead(node)]


class Registration:
    """
    Registers this node.

    ``holder`` is ``node.boot``; :meth:`run` keeps it alive and registers anew when it was declared
    dead.

    ``on_holder`` is called with each new holder, before anything is taken under it.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        link: StoreClient,
        scripts: Scripts,
        clock: Clock,
        on_holder: Callable[[str], None],
    ) -> None:
        self._key = f"{{{cluster}}}:nodes"
        self._node = node
        self._link = link
        self._scripts = scripts
        self._clock = clock
        self._on_holder = on_holder
        self.address = ""
        """
        The address by which others reach this node, ``host:base_port``, told with the registration;
        empty: none is told.
        """
        self.folder = ""
        """
        The mark that tells its data folder from that of another node of the same name; empty: none.
        """
        self.addresses: dict[str, str] = {}
        """The addresses that the nodes told in the same way."""
        self.boot = 0
        self.seen: list[NodeRecord] = []
        # By node: its boot, when it last said that it lives (ms, the store's), and for how long we
        # have heard nothing newer (ms).
        self._said: dict[str, tuple[int, int, int]] = {}
        self._away = True  # the last beat did not get through
        self._dead = False  # a script has said so of this boot
        self.beat_at = self.turned_at = clock.monotonic()
        """
        When the store last answered a beat, and when :meth:`run` last came round, whatever it was
        answered (monotonic seconds).
        """
        self.refusal = ""
        """
        The refusal by which the connected store answered the last beat: no write gets through to it
        now.
        """

    @property
    def holder(self) -> str:
        """Return ``node.boot``, under which this process takes leases."""
        return f"{self._node}.{self.boot}"

    def living(self) -> int:
        """Return how many nodes lived by the store's last answer to a heartbeat; at least 1."""
        return max(1, len({each.owner for each in self.seen if each.age_ms < DEAD_MS}))

    async def register(self) -> None:
        """
        Register a new boot, greater than any before.

        Raises: StoreDown; Exists: a node of the same name and another folder lives.
        """
        told: list[str | int] = ["0", self._node, self.boot + 1, self.address, self.folder, DEAD_MS]
        self.boot = await self._scripts.run(self._link, "cluster.register", [self._key], told)
        self._dead = False
        self._on_holder(self.holder)
        await self._beat()

    async def register_first(self) -> None:
        """
        Register for the first time.

        To register ends the leases of a node of the same name: one that is just stopping is waited
        for. Raises: StoreDown; ConfigError: one goes on living.
        """
        until = self._clock.monotonic() + NAMESAKE_S
        while True:
            try:
                await self.register()
                return
            except Exists as error:
                if self._clock.monotonic() > until:
                    raise self._not_alone(error) from None
            await sleep(self._clock, BEAT_S)

    def _not_alone(self, error: Exists) -> ConfigError:
        found = f"found {self._node!r}, and {error}, with another data folder"
        return ConfigError([f"node.name: {found}; allowed: a name of its own for each node"])

    def refused(self, error: BaseException) -> None:
        """
        Note that a script was refused.

        If this process's boot was declared dead, the next heartbeat registers it again.

        Its registration alone does not tell: the node that marked it dead in the shards may have
        ended before the registration was forgotten.
        """
        if isinstance(error, Stale) and (found := _DECLARED_DEAD.match(str(error))):
            self._dead = self._dead or found[1] == self.holder

    async def beat(self) -> None:
        """
        Renew the registration, and read the others'.

        Raises: StoreDown; Stale: another process registered under this name, or this boot was
        declared dead.
        """
        if self.boot == 0:
            await self.register()
        elif self._dead:
            raise Stale(f"{self.holder} was declared dead, and is registered yet")
        else:
            await self._beat()

    async def _beat(self) -> None:
        try:
            (now_ms, flat), told = await asyncio.gather(
                self.say_alive(self._link),
                self._link.call("HGETALL", f"{self._key}:at"),
            )
        except Error:
            self._away = True
            raise
        self.addresses = {
            _text(name): _text(at) for name, at in zip(told[::2], told[1::2], strict=True)
        }
        self._look(now_ms, flat)
        if self.refusal:
            self.refusal = ""
            log.warning("the store takes writes again")

    def _look(self, now_ms: int, flat: Sequence[Any]) -> None:
        """
        Count how long each node has been silent, in beats of ours that found nothing new.

        Neither clock is trusted alone: the store's may be stepped. Nor does the time count in which
        this process was paused, or the store away, so that no node could be heard.
        """
        at = self._clock.monotonic()
        passed_ms = min(int((at - self.beat_at) * 1000), BEAT_MS)
        former, self._said = self._said, {}
        for name, boot, ago_ms in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            node, said_ms = name.decode(), now_ms - ago_ms
            age_ms = min(max(0, ago_ms), BEAT_MS)
            if not self._away and (known := former.get(node)) and known[:2] == (boot, said_ms):
                age_ms = known[2] + passed_ms
            self._said[node] = (boot, said_ms, age_ms)
        self.seen = [
            NodeRecord(node, boot, age_ms) for node, (boot, _, age_ms) in self._said.items()
        ]
        self._away, self.beat_at, self.turned_at = False, at, at

    def say_alive(self, link: StoreClient) -> asyncio.Future[Any]:
        """
        Beat by another link, whatever loop that is in; its answer is ignored.

        Raises (in the future): StoreDown; Stale: this boot is registered no more.
        """
        return self._scripts.run(link, "cluster.beat", [self._key], ["0", self._node, self.boot])

    async def forget(self, dead: NodeRecord) -> None:
        """Forget a dead node's registration, after its leases were ended."""
        await self._scripts.run(self._link, "cluster.bury", [self._key], [dead.node, dead.boot])

    async def run(self) -> None:
        """
        Beat until cancelled; a store that is away is waited for.

        Raises: ConfigError: while this node was away (paused, cut off) another one took its name,
        and lives.
        """
        while True:
            try:
                await self.beat()
            except Stale as error:
                self._say_stale(error)
                try:
                    await self.register()
                except Exists as other:
                    raise self._not_alone(other) from None
                except Error as again:
                    self._no_beat(again)
            except Error as error:
                self._no_beat(error)
            self.turned_at = self._clock.monotonic()
            await rest(self._clock, BEAT_S)

    def _say_stale(self, error: Stale) -> None:
        stored = _STORED.search(str(error))
        # in the same words each time, for two such go on for ever
        if stored and int(stored[1]) > self.boot:
            log.error(
                "another process has registered as %s (or an answer to this one was lost): each"
                " needs a name of its own; registering again, what this node held is lost",
                self._node,
            )
        else:
            log.warning("%s; registering again, what this node held is lost", error)

    def _no_beat(self, error: Error) -> None:
        if isinstance(error, StoreDown) and not isinstance(error, StoreRefused):
            log.debug("the store is away; no beat")  # the link says it
        elif self.refusal != str(error):
            self.refusal = str(error)
            log.error("no write gets through to the store: %s", error)


def _text(raw: bytes) -> str:
    """Decode a name; an unreadable one names no node, and keeps no other from being found."""
    return raw.decode("utf-8", "replace")
