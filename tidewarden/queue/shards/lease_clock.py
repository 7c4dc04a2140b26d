"""
Reckons the lease clock, as one node knows it.

The lease clock is the store's clock less its steps, so that it runs on evenly: see
docs/decisions/0015-clock.md. This module asks nothing; :mod:`tidewarden.cluster.store_clock` asks
the store, and passes on what it hears.
"""

from __future__ import annotations

from tidewarden.clock import Clock

# The store's clock was stepped if it gained or lost more against ours between two looks.
STEP_MS = 5000
LATE_S = 1.0  # an answer that took longer says too little of the moment at which it was given


class LeaseClock:
    """
    Reckons the lease clock by this node's monotonic clock.

    ``steps`` steps of the store's clock are known, ``lag_ms`` in all (forward ones count positive).
    Until the first :meth:`heard` nothing is known, and scripts are told nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._ahead_ms: int | None = None  # of our monotonic clock, never too much
        self.steps = 0
        self.lag_ms = 0

    def known_ms(self) -> int:
        """
        Return the time of the lease clock now, or a little less; 0: not known.

        It is never more than that.
        """
        return 0 if self._ahead_ms is None else int(self._monotonic() * 1000) + self._ahead_ms

    def stamp(self, layout: str) -> str | int:
        """
        Return the argument by which scripts know the clock (see ``lua/shared/record.lua``).

        ``layout`` comes last.
        """
        ahead_ms = self._ahead_ms
        # Every call of every script comes by here.
        if not (self.steps or layout or ahead_ms is None):
            return min(0, -ahead_ms - int(self._monotonic() * 1000))
        known_ms = self.known_ms()
        if self.steps:
            return f"0~{max(0, known_ms)}~{self.steps}~{self.lag_ms}{layout}"
        return f"0~{max(0, known_ms)}{layout}" if layout else 0

    def heard(self, sent: float, time_ms: int, steps: int, lag_ms: int) -> int:
        """
        Note that the store's clock said ``time_ms`` between ``sent`` (monotonic seconds) and now.

        ``steps`` and ``lag_ms`` are as the store has them.

        Returns: by how many ms the clock has stepped since it was heard last; 0: that is not
        certain, or others have found it already.
        """
        now = self._monotonic()
        first, others = self._ahead_ms is None, steps != self.steps
        self.steps, self.lag_ms = steps, lag_ms
        least_ms, most_ms = time_ms - lag_ms - int(now * 1000), time_ms - lag_ms - int(sent * 1000)
        if not (first or others):
            assert self._ahead_ms is not None
            if least_ms - self._ahead_ms > STEP_MS:
                return least_ms - self._ahead_ms
            if most_ms - self._ahead_ms < -STEP_MS:
                return most_ms - self._ahead_ms
        if now - sent <= LATE_S:
            self._ahead_ms = least_ms  # clocks drift apart, a little in a second
        elif others:
            self._ahead_ms = None
        return 0
