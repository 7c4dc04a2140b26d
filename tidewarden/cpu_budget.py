"""A token bucket of processor time: what some work may cost, of a core."""

from __future__ import annotations


class CpuBudget:
    """
    Counts processor time that was spent against what is allowed. No clock and no loop in here.

    Args:
        share: of a core.
        burst_s: most seconds that are saved up while nothing is spent; it begins with all of them.
    """

    __slots__ = ("_at", "_burst_s", "_left_s", "_share")

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = float("-inf")

    def spend(self, cost_s: float, now: float) -> None:
        """
        Charge the time spent by ``now``.

        ``now`` is in seconds of the monotonic clock; the charge may exceed what was left.
        """
        self._left_s = self.left_s(now) - cost_s
        self._at = now

    def give_back(self, cost_s: float) -> None:
        """Return time that was charged here but belongs to another budget."""
        self._left_s = min(self._burst_s, self._left_s + cost_s)

    def left_s(self, now: float) -> float:
        """
        Return the seconds that may be spent at once; below zero: more was spent than there was.
        """
        passed_s = max(0.0, now - self._at)
        return (
            min(self._burst_s, self._left_s + self._share * passed_s) if passed_s else self._left_s
        )

    def wait_s(self, now: float, least_s: float = 0.0) -> float:
        """Return the seconds until ``least_s`` may be spent at once; 0: now."""
        return max(0.0, (least_s - self.left_s(now)) / self._share)
