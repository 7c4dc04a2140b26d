"""Declares what a node may ask of its cluster's leadership, as a member of Raft or an observer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .state import MemberView, Role


class Elector(Protocol):
    """Says whether this node leads, and lets it claim an epoch."""

    @property
    def term(self) -> int:
        """Return Raft's current term here; it grows with every election that this node hears of."""

    def is_leader(self) -> bool:
        """Return whether this node believes that it leads."""

    async def elected(self) -> None:
        """Return as soon as this node leads. Raises: Draining."""

    async def claim(self, boot: int, seen: int) -> int:
        """Commit a claim above the epoch ``seen``, and return its epoch. Raises: NoLeader."""

    async def transfer(self, node: str | None) -> str:
        """Have the member ``node`` lead (None: another). Raises: NoLeader, NotFound, Timeout."""


class ClusterState(Elector, Protocol):
    """Knows the cluster's members and its leader, from :meth:`start` to :meth:`stop`."""

    name: str

    async def start(self) -> None:
        """Take the data folder, and take part. Raises: ConfigError."""

    async def stop(self) -> None:
        """Leave, and give the folder back. Safe to call twice."""

    async def watch(self) -> None:
        """Run until cancelled. Raises: ConfigError: this node must not go on."""

    def role(self) -> Role:
        """Return the part that this node plays in its cluster."""

    def leader(self) -> str | None:
        """Return the node that leads; None when this node knows of none."""

    def has_quorum(self) -> bool:
        """Return whether a leader has a majority behind it, as far as this node can know."""

    def committed(self) -> dict[str, Any]:
        """Return ``epoch``, ``holder`` and ``members`` (name → Raft address)."""

    def seats(self) -> Mapping[str, MemberView]:
        """Return every member as this node knows it, by name."""

    def peer_heard_s(self, name: str) -> float:
        """Return the seconds since that member last answered, on the leader; 0 for itself."""

    def not_member_because(self) -> str:
        """Say to people why this node is no member any more, or not yet; "" when it is one."""

    def status(self) -> dict[str, Any]:
        """Return everything an operator may ask, in plain values."""
