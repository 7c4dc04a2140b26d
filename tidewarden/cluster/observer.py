"""Knows the leader for a worker, which takes no part in Raft and reads the store's fence."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Config
from tidewarden.errors import Error, NoLeader
from tidewarden.raft import folder
from tidewarden.raft.operator_status import operator_status
from tidewarden.raft.state import MemberView, Role, raft_address
from tidewarden.store.client import StoreClient

from .registration import BEAT_S, DEAD_MS, Registration

log = logging.getLogger("tidewarden.cluster")


class Observer:
    """
    Follows the leadership from outside, as a node that is no member of the Raft group.

    It is never elected and has no vote.

    A :class:`tidewarden.raft.elector.ClusterState`. The leader is the node that the store's fence
    names, as long as that is alive at the store; :meth:`watch` keeps it known.
    """

    term = 0
    """The term of Raft, in which a worker takes no part."""

    def __init__(
        self, config: Config, clock: Clock, nodes: Registration, link: StoreClient
    ) -> None:
        self.name = config.node.name
        self._folder = Path(config.node.data_dir)
        self._clock = clock
        self._members = dict(config.cluster.members)
        self._nodes, self._link = nodes, link
        self._fence = f"{{{config.cluster.name}}}:fence"
        self._epoch, self._holder = 0, ""
        self._lock: int | None = None

    async def start(self) -> None:
        """Take the folder. Raises: ConfigError: it cannot be used, or another process has it."""
        self._lock = folder.take(self._folder)

    async def stop(self) -> None:
        """Give the folder back. Safe to call twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def role(self) -> Role:
        """Return ``worker``, the role of every node that is no member."""
        return "worker"

    def leader(self) -> str | None:
        """Return the node that holds the store's fence, if it gave a sign of life lately."""
        for one in self._nodes.seen:
            if f"{one.node}.{one.boot}" == self._holder and one.age_ms < DEAD_MS:
                return one.node
        return None

    def is_leader(self) -> bool:
        """Return False: a worker never leads."""
        return False

    def has_quorum(self) -> bool:
        """Return whether a node leads, as the store says."""
        return self.leader() is not None

    def committed(self) -> dict[str, Any]:
        """Return what the members agreed on, as the store has it."""
        members = {name: seen.address for name, seen in self.seats().items()}
        return {"epoch": self._epoch, "holder": self._holder, "members": members}

    def seats(self) -> dict[str, MemberView]:
        """Return the members that the configuration names, which a worker need not have."""
        return {
            name: MemberView(
                raft_address(name, at),
                votes=True,
                met=any(one.node == name for one in self._nodes.seen),
            )
            for name, at in self._members.items()
        }

    def peer_heard_s(self, name: str) -> float:
        """Return 0 for this node itself, else infinity: a worker hears no other."""
        return 0.0 if name == self.name else math.inf

    def not_member_because(self) -> str:
        """Return "": a worker is not to be a member."""
        return ""

    def status(self) -> dict[str, Any]:
        """Report as a member does, as far as a worker knows."""
        return operator_status(self)

    async def elected(self) -> None:
        """Wait for ever: a worker is never elected."""
        await asyncio.get_running_loop().create_future()

    async def claim(self, boot: int, seen: int) -> int:
        """Refuse the call. Raises: NoLeader: always."""
        raise NoLeader("This node does not lead.")

    async def transfer(self, node: str | None) -> str:
        """Refuse the call. Raises: NoLeader: always."""
        raise NoLeader("This node is no member of the cluster: ask one that is.")

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
