"""
Adapts how many refreshes of one client a node has under way; a number that is set is kept.

``rate × latency`` are needed: 16 do 80 a second where a request takes 200 ms, and 8 where it takes
2 s. How long it will take, and how many accounts there will be, nobody knows at the start; and a
number that is too small lets tokens expire. So it grows while accounts are refreshed late for want
of it, and only as long as that helps and the provider answers well.

No clock in here: times are handed in, monotonic seconds.
"""

from __future__ import annotations

LATE_SHARE = 20
"""
More refreshes are wanted when accounts are late by more than one part in so many of the time from
due to expiry.
"""


class AdaptiveConcurrency:
    """Adapts :attr:`size` between ``least`` and ``most``."""

    PERIOD_S = 1.0
    """
    The shortest period that is judged; it lasts until as many requests have ended as may be under
    way.
    """
    PERIOD_S_MAX = 10.0
    """The longest period that is judged."""
    HOLD_S = 10.0
    """
    The number does not grow for so long after trouble, or after a growth that brought nothing.
    """
    ILL = 0.1
    """The share of requests without a good answer that still counts as no trouble."""
    GAIN = 1.05
    """
    A growth by a quarter has helped if the rate is this many times what it was, in the first period
    after it or the second.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self.size = least
        self._since = 0.0
        self._begun = self._late = self._ended = self._ill = 0
        self._full = False
        self._before = (0, 0.0)
        """Size and rate before the last growth; 0: the last period brought none."""
        self._doubted = False
        """
        The first period after the growth was no better, as on a machine that was busy otherwise.
        """
        self._hold_until = 0.0

    def full(self) -> None:
        """Note that as many requests are under way as may be."""
        self._full = True

    def began(self, *, late: bool) -> None:
        """Note that an account's first try begins; ``late``: see :func:`late`."""
        self._begun += 1
        self._late += late

    def ended(self, *, well: bool, now: float) -> None:
        """Note that a request has ended; ``well``: its answer tells of no trouble."""
        self._since = self._since or now
        self._ended += 1
        self._ill += not well
        passed_s = now - self._since
        if passed_s >= (self.PERIOD_S if self._ended >= self.size else self.PERIOD_S_MAX):
            self._judge(self._ended / passed_s, now)
            self._since = now
            self._begun = self._late = self._ended = self._ill = 0
            self._full = False

    def _judge(self, rate: float, now: float) -> None:
        (size, former), self._before = self._before, (0, 0.0)
        doubted, self._doubted = self._doubted, False
        if self._ill > self.ILL * self._ended:
            self.size = max(self._least, self.size // 2)
            self._hold_until = now + self.HOLD_S
        elif not self._full:
            self.size -= min(self.size - self._least, max(1, self.size // 8))
        elif 2 * self._late <= self._begun or now < self._hold_until:
            return
        elif size and rate < self.GAIN * former and not doubted:
            self._before, self._doubted = (size, former), True
        elif size and rate < self.GAIN * former:
            self.size = size
            self._hold_until = now + self.HOLD_S
        else:
            self._before = (self.size, rate)
            self.size = min(self._most, self.size + max(4, self.size // 4))


def late(due_ms: int, expires_at_ms: int, now_ms: int) -> bool:
    """
    Return whether an account that is refreshed now has waited for longer than it should.

    ``due`` is when it was due.
    """
    return (now_ms - due_ms) * LATE_SHARE > max(0, expires_at_ms - due_ms)
