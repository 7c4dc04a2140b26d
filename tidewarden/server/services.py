"""The rooms behind the doors, as both doors are given them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidewarden.cluster import Backups
from tidewarden.queue import Queues
from tidewarden.queue.locks import Locks
from tidewarden.scheduler.schedules import Schedules
from tidewarden.tokens import Tokens


class ClusterView(Protocol):
    """Shows what a node knows of its cluster."""

    def status(self) -> Mapping[str, Any]: ...


class ClusterOperations(Protocol):
    """Changes the cluster: a member of Raft does, which this room does not import."""

    def transfer(self, node: str | None) -> Awaitable[str]: ...
    def join(self, name: str, address: str) -> Awaitable[int]: ...
    def leave(self, name: str) -> Awaitable[int]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What verbs and routes act on; of those that are absent the verbs are refused."""

    queues: Queues
    cluster: ClusterView
    tokens: Tokens | None = None
    schedules: Schedules | None = None
    locks: Locks | None = None
    operations: ClusterOperations | None = None
    backups: Backups | None = None
