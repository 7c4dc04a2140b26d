"""Limits what all clients of a node share: requests under way, and requests a second to a host."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from urllib.parse import urlsplit

from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.queue.admin import QueueAdmin
from tidewarden.tokens.accounts.account_store import AccountStore, RunScript

from .circuit_breaker import CircuitBreaker

SEATS = 4000
"""
One provider may hold half of them: what the load aimed at needs (3,000 refreshes a second) where
each takes more than half a second.
"""
HOSTS_QUEUE = "_hosts"
BURST_S = 1.0
ROUNDING = 1e-9
RECENT_S = 60.0
"""A provider that was asked longer ago says nothing of this node's network."""


class FairShare:
    """
    Shares the requests that a node has under way, ``total`` seats, among its providers.

    A provider may hold as many as are free, so that one which hangs on to all it can get never
    keeps another from beginning: the dynamic thresholds of Choudhury and Hahne (1998), with a
    factor of one. Takes of many providers that are under way together may bring more than there are
    seats for.
    """

    def __init__(self, total: int) -> None:
        self._empty = total  # below 0 while more are taken
        self._held: Counter[str] = Counter()
        """The seats that providers hold; those that hold none are absent."""
        self._waiting: dict[str, asyncio.Event] = {}

    def free(self, name: str) -> int:
        """Return how many more this provider may take now."""
        return max(0, self._empty - self._held[name])

    def take(self, name: str) -> None:
        """Take one place for the provider."""
        self._empty -= 1
        self._held[name] += 1

    def leave(self, name: str) -> None:
        """
        Free one place, and wake as many providers as may find one, the longest waiting first.

        All of them are woken when no provider holds a place, for none would wake the others then.
        """
        self._empty += 1
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
        served = (event for waiting, event in self._waiting.items() if self.free(waiting))
        for event in islice(served, max(0, self._empty) if self._held else None):
            event.set()

    async def wait(self, name: str) -> None:
        """Wait until a place becomes free."""
        assert name not in self._waiting, "each provider waits once"
        event = self._waiting[name] = asyncio.Event()
        try:
            await event.wait()
        finally:
            del self._waiting[name]


class HostRateLimits:
    """
    Limits the requests a second to a host, of all clients and nodes together.

    The store counts them, see ``tokens/lua/host.lua``; a method that asks the store raises what it
    raises. While the store is away each node keeps to its part, by how many nodes there were. If
    two providers of one host set a rate, the lower counts.
    """

    def __init__(
        self, script: RunScript | None = None, nodes: Callable[[], int] = lambda: 1
    ) -> None:
        """Run token scripts by ``script`` (None: never); ``nodes`` counts the nodes that live."""
        self._script = script
        self._nodes = nodes
        self._rates: dict[str, float] = {}
        self._spent_s: dict[str, float] = {}
        """Until when requests that were sent without the store have used a rate up."""

    def change(self, providers: Iterable[Provider]) -> None:
        """Limit by the rates of these providers alone."""
        self._rates.clear()
        for provider in providers:
            self.add(provider)

    def add(self, provider: Provider) -> None:
        """Limit by the rate of this provider, too."""
        if provider.host_rate:
            host = host_of(provider)
            self._rates[host] = min(provider.host_rate, self._rates.get(host, provider.host_rate))

    def rated(self, provider: Provider) -> bool:
        """Return whether the provider's host has a rate."""
        return host_of(provider) in self._rates

    async def ask(self, provider: Provider, wanted: int) -> tuple[int, float]:
        """
        Return how many of ``wanted`` requests may begin.

        If none may, it also returns after how many seconds to ask again.
        """
        if not self.rated(provider):
            return wanted, 0.0
        granted, wait_ms = await self._call("ask", provider, wanted)
        return granted, wait_ms / 1000

    async def give_back(self, provider: Provider, requests: int) -> None:
        """Give requests back that were granted and not sent."""
        if requests and self.rated(provider):
            await self._call("back", provider, requests)

    def alone(self, provider: Provider, now_s: float) -> bool:
        """
        Return whether one request may begin while the store is away, and count it if so.

        The request comes out of this node's part of the client's rate and of the host's, each a
        token bucket (GCRA) that grants a second's worth at a time at most. ``now_s``: monotonic.
        """
        host = host_of(provider)
        set_rates = {f"client {provider.name}": provider.client_rate, host: self._rates.get(host)}
        nodes = max(1, self._nodes())
        rates = {name: rate / nodes for name, rate in set_rates.items() if rate}
        since_s = {
            name: max(self._spent_s.get(name, 0.0), now_s - max(BURST_S, 1 / rate))
            for name, rate in rates.items()
        }
        if any((now_s - since_s[name]) * rate + ROUNDING < 1 for name, rate in rates.items()):
            return False
        for name, rate in rates.items():
            self._spent_s[name] = since_s[name] + 1 / rate
        return True

    async def _call(self, verb: str, provider: Provider, requests: int) -> tuple[int, int]:
        assert self._script is not None
        host = host_of(provider)
        thousandths = max(1, int(self._rates[host] * 1000))
        granted, wait_ms = await self._script(
            "tokens.host", HOSTS_QUEUE, 0, (verb, host, thousandths, requests)
        )
        return granted, wait_ms


def host_of(provider: Provider) -> str:
    """Return the host (and port) of the provider's token endpoint, or of its issuer."""
    return urlsplit(provider.token_url or provider.issuer).netloc.lower()


@dataclass(slots=True)
class NodeLimits:
    """Holds what the clients of one node share."""

    accounts: AccountStore
    admin: QueueAdmin
    """Pauses and resumes the queues of clients."""
    clock: Clock
    dice: Random
    node: str = ""
    nodes: Callable[[], int] = lambda: 1
    """Counts the nodes that live, this one included."""
    on_event: Callable[[str], None] = lambda _provider: None
    """Hears that there is an event of a provider to tell."""
    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers by provider and class."""
    quarantines: Counter[str] = field(default_factory=Counter)
    """Times that refusals jumped, by provider."""
    fair_share: FairShare = field(default_factory=lambda: FairShare(SEATS))
    breakers: dict[str, CircuitBreaker] = field(default_factory=dict)
    """The circuit breakers by provider."""
    hosts: HostRateLimits = field(init=False)

    def __post_init__(self) -> None:
        self.hosts = HostRateLimits(self.accounts.script, self.nodes)

    def unreachable(self, now_s: float) -> bool:
        """
        Return whether no provider at all can be reached: then our own network is the reason.

        At least two providers were asked in the last minute, and none answered its last request.
        """
        recent = [one for one in self.breakers.values() if one.ended_s >= now_s - RECENT_S]
        return len(recent) >= 2 and all(one.streak for one in recent)

    async def shards_of(self, queue: str) -> list[int]:
        """Return the shards of a client's queue in an order by chance. Raises: StoreDown."""
        count = await self.accounts.shards(queue)
        return self.dice.sample(range(count), count)
