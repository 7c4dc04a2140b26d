"""
Limits by a token bucket (GCRA) what this node sends while the store, which counts else, is away.
"""

from __future__ import annotations

BURST_S = 1.0
ROUNDING = 1e-9


class RateBucket:
    """
    Grants requests one by one at a rate, at most a second's worth of them at a time.

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
