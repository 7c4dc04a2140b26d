"""
How many requests a second go to a host, of all clients there together: each node keeps to its part, by how many nodes live.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from tidewarden.config import Provider

BURST_S = 1.0


class Hosts:
    """The rates of hosts; times are monotonic seconds. Where two providers of one host set a rate, the lower counts."""

    def __init__(self, nodes: Callable[[], int] = lambda: 1) -> None:
        """``nodes``: how many nodes live, this one included."""
        self._nodes = nodes
        self._rates: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        """Up to when each host's rate is used up."""

    def add(self, provider: Provider) -> None:
        """Mind the rate of this provider."""
        if provider.host_rate:
            host = host_of(provider)
            self._rates[host] = min(provider.host_rate, self._rates.get(host, provider.host_rate))

    def ask(self, provider: Provider, wanted: int, now: float) -> tuple[int, float]:
        """How many of ``wanted`` requests may begin, and, if none, after how many seconds to ask again."""
        host = host_of(provider)
        if host not in self._rates:
            return wanted, 0.0
        rate = self._part(host)
        spent = max(self._spent.get(host, 0.0), now - max(BURST_S, 1 / rate))
        granted = max(0, min(wanted, int((now - spent) * rate + 1e-9)))
        self._spent[host] = spent + granted / rate
        return granted, 0.0 if granted else spent + 1 / rate - now

    def give_back(self, provider: Provider, requests: int) -> None:
        """So many that were granted are not sent."""
        host = host_of(provider)
        if host in self._rates:
            self._spent[host] -= requests / self._part(host)

    def _part(self, host: str) -> float:
        return self._rates[host] / max(1, self._nodes())


def host_of(provider: Provider) -> str:
    """The host (and port) of its token endpoint, or of its issuer."""
    return urlsplit(provider.token_url or provider.issuer).netloc.lower()
