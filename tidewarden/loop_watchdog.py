"""A watchdog's view of a loop: whether it gets on, or for how long it should have."""

from __future__ import annotations

from .clock import Clock


class LoopWatchdog:
    """
    Watches whether an endless loop makes progress.

    It calls :meth:`step` when something that it waited for has come, and :meth:`rest` before it
    waits for a moment.
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
        Note that the part has nothing to do until then, unless it is woken.

        ``until`` is of :meth:`Clock.monotonic`.
        """
        self.steps += 1
        self._at = until

    def end(self) -> None:
        """Note that nothing is expected of the loop for now."""
        self._at = None

    @property
    def late_s(self) -> float:
        """Return for how many seconds the part should have got on, and has not."""
        return 0.0 if self._at is None else max(0.0, self._clock.monotonic() - self._at)
