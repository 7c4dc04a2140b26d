"""
Counts the time in which this process ran: the silence that a stopped process meets proves nothing.
"""

from __future__ import annotations

from collections import deque

from tidewarden.clock import Clock

ASLEEP_S = 0.3
"""
A process that did not look for so long, at pace 1, was asleep. It is three times the usual pause
between two looks, and below every silence that counts.
"""
ASLEEP_S_LEAST = 0.15
"""Five times the pause between two looks while something is under way, at every pace."""
STALLS_KEPT = 256
"""How many stalls are kept; older ones are before any silence that is still asked about."""


class AwakeTime:
    """
    Knows when the loop stood still, from parts that look at short intervals and say so.

    A host that swaps, or is moved while it lives, stops a process again and again. Then no silence
    begins anew with each stop: what was heard awake counts on.
    """

    def __init__(self, clock: Clock, pace: float) -> None:
        self._clock = clock
        self._asleep_s = max(ASLEEP_S * pace, ASLEEP_S_LEAST)
        self._looked_s: float | None = None
        """When the last look was; None: no part looks at the moment."""
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_KEPT)
        """The begin and end of each stall, the oldest first."""
        self._stalled_s = 0.0

    def look(self) -> None:
        """Note that the loop turns."""
        now_s = self._clock.monotonic()
        if stall := self._stall(now_s):
            self._stalls.append(stall)
            self._stalled_s += stall[1] - stall[0]
        self._looked_s = now_s

    def rest(self) -> None:
        """Note that the next look may come at any time: to wait for others is no stall."""
        self.look()
        self._looked_s = None

    def now_s(self) -> float:
        """Return the seconds of a clock that stands still while this process does."""
        now_s = self._clock.monotonic()
        stall = self._stall(now_s)
        return now_s - self._stalled_s - (stall[1] - stall[0] if stall else 0.0)

    def since(self, since_s: float) -> float:
        """Return the seconds awake since that moment of the monotonic clock."""
        now_s = self._clock.monotonic()
        stalls = [*self._stalls, *([stall] if (stall := self._stall(now_s)) else [])]
        slept_s = sum(max(0.0, end - max(begin, since_s)) for begin, end in stalls)
        return now_s - since_s - slept_s

    def _stall(self, now_s: float) -> tuple[float, float] | None:
        """Return the stall that goes on, or has just ended; None: there is none."""
        if self._looked_s is None or now_s - self._looked_s <= self._asleep_s:
            return None
        return self._looked_s, now_s
