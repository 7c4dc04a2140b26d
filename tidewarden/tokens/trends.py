"""
What many answers say together: that nobody answers, that refusals have jumped, that it is our own network. Small state machines.

No clock in here: times are handed in, monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque


class Breaker:
    """
    Holds one node's requests to a provider back when none of them comes through: its own network may be the reason, so other nodes
    are not held. Then one request probes; any answer closes it. Times are monotonic seconds.
    """

    FIRST_S = 1.0
    MAX_S = 30.0

    def __init__(self, patience: int) -> None:
        """``patience``: requests in a row without an answer that are borne."""
        self._patience = patience
        self._streak = 0
        self._opened = 0
        self._until = -math.inf

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


class Jump:
    """
    Whether a client's refresh tokens are refused far more often than usual: then something is the matter with the provider, and no
    account is declared dead for it. Counts the last ten minutes against what was before them.
    """

    WINDOW_S = 600.0
    ENTRIES_MAX = 500
    ENTRIES_MIN = 20
    SHARE_MIN = 0.3
    TIMES = 3.0
    USUAL = 0.02
    WEIGHT = 1 / 200
    """Of one refresh that leaves the window in what is usual: what goes on for long becomes usual."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, bool]] = deque()
        self._refused = 0
        self._usual = self.USUAL

    def note(self, refused: bool, now: float) -> None:
        """A refresh that was answered, by a pair or a refusal."""
        self._recent.append((now, refused))
        self._refused += refused
        while len(self._recent) > self.ENTRIES_MAX or self._recent[0][0] < now - self.WINDOW_S:
            _, old = self._recent.popleft()
            self._refused -= old
            self._usual += (old - self._usual) * self.WEIGHT

    @property
    def on(self) -> bool:
        """Whether nobody is to be declared dead now."""
        if len(self._recent) < self.ENTRIES_MIN:
            return False
        return self.share > max(self.SHARE_MIN, self.TIMES * self._usual)

    @property
    def share(self) -> float:
        """Refusals among the recent refreshes, 0 to 1."""
        return self._refused / max(1, len(self._recent))


class Weather:
    """Whether no provider at all can be reached: then it is our own network, and no account's counters move for it."""

    RECENT_S = 60.0

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, bool]] = {}

    def note(self, provider: str, answered: bool, now: float) -> None:
        """A request to that provider has ended."""
        self._last[provider] = (now, answered)

    def ours(self, now: float) -> bool:
        """Two providers or more were asked in the last minute, and none answered its last request."""
        recent = [answered for at, answered in self._last.values() if at >= now - self.RECENT_S]
        return len(recent) >= 2 and not any(recent)
