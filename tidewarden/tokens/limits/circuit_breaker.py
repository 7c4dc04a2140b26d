"""
Detects that a provider does not answer this node, or that this node's own network is down.

No clock in here: times are handed in, monotonic seconds.
"""

from __future__ import annotations

import math


class CircuitBreaker:
    """
    Holds one node's requests to a provider back when none of them comes through.

    Its own network may be the reason, so other nodes are not held. Then one request probes; any
    answer closes it. Times are monotonic seconds.
    """

    FIRST_S = 1.0
    MAX_S = 15.0

    def __init__(self, patience: int) -> None:
        """``patience``: requests in a row without an answer that are borne."""
        self._patience = patience
        self._streak = 0
        self._opened = 0
        self._until = -math.inf

    @property
    def streak(self) -> int:
        """Requests in a row without an answer."""
        return self._streak

    @property
    def open(self) -> bool:
        """Whether requests wait for a probe."""
        return self._opened > 0

    def allowed(self, now: float, refreshers: int, in_flight: int) -> int:
        """How many more requests may be begun."""
        if now < self._until:
            return 0
        return max(0, (1 if self._opened else refreshers) - in_flight)

    def opens_in_s(self, now: float) -> float:
        """Seconds until a request is allowed again; 0: now."""
        return max(0.0, self._until - now)

    def note(self, answered: bool, now: float) -> bool:
        """A request has ended; True when this one opened a breaker that was closed."""
        if answered:
            self._streak = self._opened = 0
            self._until = -math.inf
            return False
        self._streak += 1
        if self._streak < self._patience or now < self._until:
            return False
        self._opened += 1
        self._until = now + min(self.MAX_S, self.FIRST_S * 2 ** min(self._opened - 1, 10))
        return self._opened == 1


class OwnNetwork:
    """
    Detects that no provider at all can be reached.

    Then it is our own network, and no account's counters move for it.
    """

    RECENT_S = 60.0

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, bool]] = {}

    def note(self, provider: str, answered: bool, now: float) -> None:
        """A request to that provider has ended."""
        self._last[provider] = (now, answered)

    def ours(self, now: float) -> bool:
        """
        Two providers or more were asked in the last minute, and none answered its last request.
        """
        recent = [answered for at, answered in self._last.values() if at >= now - self.RECENT_S]
        return len(recent) >= 2 and not any(recent)
