"""Declares the rooms behind the doors, as the doors are given them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidewarden.cluster import Backups
from tidewarden.queue import Queues
from tidewarden.queue.locks import Locks
from tidewarden.scheduler.schedules import Schedules
from tidewarden.server.audit.audit_log import AuditLog
from tidewarden.tokens import Tokens
from tidewarden.user_limits import UserLimits

from .console.recorder import FigureRecorder
from .consumers.cluster_consumers import ClusterConsumers
from .consumers.process_consumers import ProcessConsumers
from .traffic.cluster_traffic import ClusterTraffic
from .traffic.recorder import Recorder


class ClusterView(Protocol):
    """Shows what a node knows of its cluster."""

    def status(self) -> Mapping[str, Any]: ...


class ClusterOperations(Protocol):
    """Changes the cluster: a member of Raft does, which this room does not import."""

    def transfer(self, node: str | None) -> Awaitable[str]: ...
    def join(self, name: str, address: str) -> Awaitable[int]: ...
    def leave(self, name: str) -> Awaitable[int]: ...


class StoreOperations(Protocol):
    """Chooses which replicated embedded store takes the writes: a member's replication does."""

    def switchover(self, node: str | None) -> Awaitable[str]:
        """Hand the primary to that node's store (None: to the best); returns the new primary."""

    def choice(self, node: str | None) -> Awaitable[Mapping[str, Any]]:
        """
        Say what :meth:`recover` would make primary, and change nothing.

        Returns: ``node``, ``view`` and ``seq`` of its data, ``loss`` (``""``, ``possible`` or
        ``likely``), ``missing`` (sentences: what may be lost), ``others`` (what each other store
        has).
        """

    def recover(self, node: str | None, begin_empty: bool) -> Awaitable[Mapping[str, Any]]:
        """
        Make that node's store primary (None: the best) though it is not in sync; as above.

        ``begin_empty``: also where it is empty, and others may not be.
        """

    def confirm(self) -> Awaitable[str]:
        """Note that an operator knows of the loss; returns what it was, or ``""``."""

    def discarded(self) -> Awaitable[Sequence[Mapping[str, Any]]]:
        """
        Return the data that this node's store set aside: ``path``, ``bytes``, ``at_ms`` and more.
        """


@dataclass(frozen=True, slots=True)
class Services:
    """Holds the parts that verbs and routes act on; the verbs of an absent part are refused."""

    queues: Queues
    cluster: ClusterView
    tokens: Tokens | None = None
    schedules: Schedules | None = None
    locks: Locks | None = None
    operations: ClusterOperations | None = None
    backups: Backups | None = None
    stores: StoreOperations | None = None
    """
    The replicated stores; None: the cluster has one store, or this node has none of the replicated.
    """
    traffic: Recorder | None = None
    """Hears of each request that was answered; None: no part counts them."""
    traffic_of_cluster: ClusterTraffic | None = None
    """Adds up the counts of all nodes; None in a further process."""
    consumers: ProcessConsumers | None = None
    """Knows the peers at this process's doors; None: no part asks."""
    consumers_of_cluster: ClusterConsumers | None = None
    """Shows and ends consumers over all nodes; None in a further process."""
    audit: AuditLog | None = None
    """The audit log; None: nothing is noted."""
    limits: UserLimits | None = None
    """The limits of what users share; None: each door counts by itself."""
    figures: FigureRecorder | None = None
    """Has the console's figures of the last hour; None: nothing is recorded."""
