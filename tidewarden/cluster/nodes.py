"""The nodes as the store knows them: each registers a boot and says that it lives; the leader buries the dead."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidewarden.clock import Clock, sleep
from tidewarden.errors import ConfigError, Error, Exists, Stale, StoreDown
from tidewarden.store import Scripts
from tidewarden.store.refusals import Refused
from tidewarden.store.route import Route

log = logging.getLogger("tidewarden.cluster")

BEAT_S = 0.5
DEAD_MS = 2000  # a registration so old, of a node that Raft does not hear either, is a dead node's
NAMESAKE_S = (
    2 * DEAD_MS / 1000
)  # a node of this name and another folder that still lives after so long is not just going


@dataclass(frozen=True, slots=True)
class Registration:
    """A node's boot, and how long ago (by the store's clock) it last said that it lives."""

    node: str
    boot: int
    age_ms: int

    @property
    def owner(self) -> str:
        """The node whose process it is: a further one of a node's is registered as ``node/number``."""
        return self.node.partition("/")[0]


def dead_nodes(nodes: list[Registration], me: str, heard_s: Callable[[str], float]) -> list[Registration]:
    """
    Which registrations are dead: old at the store *and* not heard by Raft. A node that lost only one of the two lives.

    ``heard_s(node)``: seconds since Raft last heard that node, as the leader knows it. A node's further processes are dead with it;
    the end of one alone is its node's to tell, which registers it anew then.
    """
    return [
        node
        for node in nodes
        if node.owner != me and node.age_ms >= DEAD_MS and heard_s(node.owner) * 1000 >= DEAD_MS / 2
    ]


class Nodes:
    """
    This node's registration. ``holder`` is ``node.boot``; :meth:`run` keeps it alive and registers anew when it was declared dead.

    ``on_holder`` is called with each new holder, before anything is taken under it.
    """

    def __init__(
        self, cluster: str, node: str, link: Route, scripts: Scripts, clock: Clock, on_holder: Callable[[str], None]
    ) -> None:
        self._key = f"{{{cluster}}}:nodes"
        self._node = node
        self._link = link
        self._scripts = scripts
        self._clock = clock
        self._on_holder = on_holder
        self.address = ""
        """Where others are told to reach this node, ``host:base_port``; empty: they are not. Told with the registration."""
        self.folder = ""
        """By what its data folder is told from that of another node that was given the same name; empty: it is not."""
        self.addresses: dict[str, str] = {}
        """What the nodes say of themselves, likewise."""
        self.boot = 0
        self.seen: list[Registration] = []
        self.beat_at = clock.monotonic()
        self.refusal = ""
        """What the store, which is connected, answered the last beat with instead: no write gets through to it now."""

    @property
    def holder(self) -> str:
        """``node.boot``, under which this process takes leases."""
        return f"{self._node}.{self.boot}"

    def living(self) -> int:
        """How many nodes live, as the store said at the last beat; at least one, for this one does."""
        return max(1, len({each.owner for each in self.seen if each.age_ms < DEAD_MS}))

    async def register(self) -> None:
        """
        Register a new boot, greater than any before.

        Raises: StoreDown; Exists: a node of the same name and another folder lives.
        """
        await self._beat(0, self.boot + 1)
        self._on_holder(self.holder)

    async def come(self) -> None:
        """
        Register for the first time. To register is to end what a namesake holds: one that is just going is waited for.

        Raises: StoreDown; ConfigError: one goes on living.
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

    async def beat(self) -> None:
        """
        Say that this node lives, and read the others.

        Raises: StoreDown; Stale: another process registered under this name, or this boot was declared dead.
        """
        if self.boot == 0:
            await self.register()
        else:
            await self._beat(self.boot, 1)

    async def _beat(self, boot: int, least: int) -> None:
        boot, _, flat, told = await self._scripts.run(
            self._link,
            "cluster.beat",
            [self._key],
            ["0", self._node, boot, least, self.address, self.folder, DEAD_MS],
        )
        self.boot = boot
        self.addresses = {name.decode(): at.decode() for name, at in zip(told[::2], told[1::2], strict=True)}
        names, boots, ages = flat[::3], flat[1::3], flat[2::3]
        self.seen = [Registration(n.decode(), b, a) for n, b, a in zip(names, boots, ages, strict=True)]
        self.beat_at = self._clock.monotonic()
        if self.refusal:
            self.refusal = ""
            log.warning("the store takes writes again")

    async def bury(self, dead: Registration) -> None:
        """Forget a dead node's registration, after its leases were ended."""
        await self._scripts.run(self._link, "cluster.bury", [self._key], [dead.node, dead.boot])

    async def run(self) -> None:
        """
        Beat until cancelled; a store that is away is waited for.

        Raises: ConfigError: while this node was away (paused, cut off) another one took its name, and lives.
        """
        while True:
            try:
                await self.beat()
            except Stale as error:
                log.warning("%s; registering again, what this node held is lost", error)
                try:
                    await self.register()
                except Exists as other:
                    raise self._not_alone(other) from None
                except Error as again:
                    self._no_beat(again)
            except Error as error:
                self._no_beat(error)
            await sleep(self._clock, BEAT_S)

    def _no_beat(self, error: Error) -> None:
        if isinstance(error, StoreDown) and not isinstance(error, Refused):
            log.debug("the store is away; no beat")  # the link says it
        elif self.refusal != str(error):
            self.refusal = str(error)
            log.error("no write gets through to the store: %s", error)
