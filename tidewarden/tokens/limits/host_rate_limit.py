"""
Limits the requests a second to a host, of all clients and nodes together.

The store counts them, see ``tokens/lua/host.lua``.

While the store is away each node keeps to its part, by how many nodes there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from tidewarden.config.load import Provider

from .client_store import RunScript

QUEUE = "_hosts"
BURST_S = 1.0
ROUNDING = 1e-9


class RateBucket:
    """
    Limits by a token bucket (GCRA) what this node sends while the store is away.

    It grants requests one by one, at most a second's worth of them at a time.

    No clock in here: times are handed in, monotonic seconds.
    """

    __slots__ = ("_spent_s",)

    def __init__(self) -> None:
        self._spent_s = 0.0
        """Up to when the rate is used up."""

    def has(self, per_second: float, now_s: float) -> bool:
        """Whether one request may begin."""
        return (now_s - self._since_s(per_second, now_s)) * per_second + ROUNDING >= 1

    def take(self, per_second: float, now_s: float) -> None:
        """One request begins."""
        self._spent_s = self._since_s(per_second, now_s) + 1 / per_second

    def _since_s(self, per_second: float, now_s: float) -> float:
        return max(self._spent_s, now_s - max(BURST_S, 1 / per_second))


class HostRateLimits:
    """Keeps the rates of hosts. Where two providers of one host set a rate, the lower counts."""

    def __init__(
        self, script: RunScript | None = None, nodes: Callable[[], int] = lambda: 1
    ) -> None:
        """
        ``script``: runs a token script; None: no provider here has a rate.

        ``nodes``: how many nodes live, this one included.
        """
        self._script = script
        self._nodes = nodes
        self._rates: dict[str, float] = {}
        self._buckets: dict[str, RateBucket] = {}
        """By host: of what is sent without the store."""

    def change(self, providers: Iterable[Provider]) -> None:
        """Mind the rates of these providers alone."""
        self._rates.clear()
        for provider in providers:
            self.add(provider)

    def add(self, provider: Provider) -> None:
        """Mind the rate of this provider."""
        if provider.host_rate:
            host = host_of(provider)
            self._rates[host] = min(provider.host_rate, self._rates.get(host, provider.host_rate))

    def rated(self, provider: Provider) -> bool:
        """Whether its host has a rate."""
        return host_of(provider) in self._rates

    async def ask(self, provider: Provider, wanted: int) -> tuple[int, float]:
        """
        Return how many of ``wanted`` requests may begin.

        If none may, it also returns after how many seconds to ask again. Raises: what the store
        raises.
        """
        if not self.rated(provider):
            return wanted, 0.0
        granted, wait_ms = await self._call("ask", provider, wanted)
        return granted, wait_ms / 1000

    async def give_back(self, provider: Provider, requests: int) -> None:
        """So many that were granted are not sent. Raises: what the store raises."""
        if requests and self.rated(provider):
            await self._call("back", provider, requests)

    def alone(self, provider: Provider, now: float) -> bool:
        """
        Tell whether one request may begin while the store is away, and count it.

        The time is a monotonic second.
        """
        host = host_of(provider)
        if host not in self._rates:
            return True
        rate = self._rates[host] / max(1, self._nodes())
        bucket = self._buckets.setdefault(host, RateBucket())
        if not bucket.has(rate, now):
            return False
        bucket.take(rate, now)
        return True

    async def _call(self, verb: str, provider: Provider, requests: int) -> tuple[int, int]:
        assert self._script is not None
        host = host_of(provider)
        thousandths = max(1, int(self._rates[host] * 1000))
        granted, wait_ms = await self._script(
            "tokens.host", QUEUE, 0, (verb, host, thousandths, requests)
        )
        return granted, wait_ms


def host_of(provider: Provider) -> str:
    """The host (and port) of its token endpoint, or of its issuer."""
    return urlsplit(provider.token_url or provider.issuer).netloc.lower()
