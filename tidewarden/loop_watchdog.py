"""Watches whether a loop gets on, and tells for how long it has not."""

from __future__ import annotations

from .clock import Clock


class LoopWatchdog:
    """
    Watches whether an endless loop makes progress.

    The loop calls :meth:`step` when an event that it waited for has come, and :meth:`rest` before
    it waits for a moment.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.steps = 0
        self._clock = clock
        self._at: float | None = None

    def step(self) -> None:
        """Note that the loop made progress."""
        self.rest(self._clock.monotonic())

    def rest(self, until: float) -> None:
        """
        Note that the loop has nothing to do until then, unless it is woken.

        ``until`` is of :meth:`Clock.monotonic`.
        """
        self.steps += 1
        self._at = until

    def end(self) -> None:
        """Note that nothing is expected of the loop for now."""
        self._at = None

    @property
    def late_s(self) -> float:
        """Return for how many seconds the loop should have got on, and has not."""
        return 0.0 if self._at is None else max(0.0, self._clock.monotonic() - self._at)
