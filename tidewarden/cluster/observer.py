"""
A worker's sight of the leader: it takes no part in Raft, and reads at the store who holds the
fence.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Cluster, Config
from tidewarden.errors import Error
from tidewarden.raft import RaftMember, folder
from tidewarden.raft.state import MemberView, Role, raft_address
from tidewarden.store.client import StoreClient

from .registration import BEAT_S, DEAD_MS, Registration

log = logging.getLogger("tidewarden.cluster")


class Observer(RaftMember):
    """
    What :class:`RaftMember` is to a member, to a node that is none: it is never elected and votes
    for nobody.

    The leader is the node that the store's fence names, as long as that is alive at the store.
    :meth:`watch` keeps it known.
    """

    def __init__(
        self,
        config: Config,
        secret: str,
        clock: Clock,
        on_change: Callable[[], None],
        nodes: Registration,
        link: StoreClient,
    ) -> None:
        alone = dataclasses.replace(
            config, cluster=dataclasses.replace(config.cluster, members=Cluster().members)
        )
        super().__init__(alone, secret, clock, on_change)
        self._members = dict(config.cluster.members)
        self._nodes, self._link = nodes, link
        self._fence = f"{{{config.cluster.name}}}:fence"
        self._epoch, self._holder = 0, ""

    async def start(self) -> None:
        """Take the folder. Raises: ConfigError: it cannot be used, or another process has it."""
        self._lock = folder.take(Path(self._config.node.data_dir))

    def role(self) -> Role:
        """``worker``"""
        return "worker"

    def leader(self) -> str | None:
        """Name of the node that holds the store's fence, if it gave a sign of life lately."""
        for one in self._nodes.seen:
            if f"{one.node}.{one.boot}" == self._holder and one.age_ms < DEAD_MS:
                return one.node
        return None

    def has_quorum(self) -> bool:
        """Whether somebody leads."""
        return self.leader() is not None

    def committed(self) -> dict[str, Any]:
        """As the store has it."""
        members = {name: seen.address for name, seen in self.seats().items()}
        return {"epoch": self._epoch, "holder": self._holder, "members": members}

    def seats(self) -> dict[str, MemberView]:
        """Those that the configuration names, which a worker need not have."""
        return {
            name: MemberView(
                raft_address(name, at),
                votes=True,
                met=any(one.node == name for one in self._nodes.seen),
            )
            for name, at in self._members.items()
        }

    async def elected(self) -> None:
        """Never returns."""
        await asyncio.get_running_loop().create_future()

    async def watch(self) -> None:
        """Look at the fence until cancelled; a store that is away is waited for."""
        while True:
            before = self.leader()
            try:
                epoch, holder = await self._link.call("HMGET", self._fence, "epoch", "holder")
                self._epoch = int(epoch) if epoch and epoch.isdigit() else 0
                self._holder = (holder or b"").decode("utf-8", "replace")
            except Error as error:
                log.debug("the fence could not be read: %s", error)
            if self.leader() != before:
                log.info("leader: %s", self.leader() or "unknown")
            await sleep(self._clock, BEAT_S)
