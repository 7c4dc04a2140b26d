"""Holds what the limits of all clients of one node share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tidewarden.clock import Clock
from tidewarden.queue.admin import QueueAdmin

from .circuit_breaker import OwnNetwork
from .client_store import RunScript
from .fair_share import SEATS, FairShare
from .host_rate_limit import HostRateLimits


@dataclass(slots=True)
class NodeLimits:
    """Holds what the clients of one node share."""

    admin: QueueAdmin
    """Pauses and resumes the queues of clients."""
    script: RunScript
    shards: Callable[[str], Awaitable[int]]
    """How many shards a client's queue has."""
    clock: Clock
    dice: Random
    node: str = ""
    nodes: Callable[[], int] = lambda: 1
    """How many nodes live, this one included."""
    fair_share: FairShare = field(default_factory=lambda: FairShare(SEATS))
    own_network: OwnNetwork = field(default_factory=OwnNetwork)
    hosts: HostRateLimits = field(default_factory=HostRateLimits)
    on_event: Callable[[str], None] = lambda _provider: None
    """Hears that something is to be told of a provider."""
    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers by provider and class."""
    quarantines: Counter[str] = field(default_factory=Counter)
    """Times that refusals jumped, by provider."""

    async def shards_of(self, queue: str) -> list[int]:
        """Return the shards of a client's queue in an order by chance. Raises: StoreDown."""
        count = await self.shards(queue)
        return self.dice.sample(range(count), count)
