"""Samples log lines about single accounts: a provider that ends a million grants fills no disk."""

from __future__ import annotations

import logging

from tidewarden.clock import Clock

log = logging.getLogger("tidewarden.tokens")


class LogSampler:
    """
    Logs the first few lines of each minute.

    A last line says that there are more, and where they can be seen.
    """

    LINES = 10
    WINDOW_S = 60.0

    def __init__(self, provider: str, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._until = float("-inf")
        self._lines = 0

    def say(self, account: str, state: str, text: str, level: int = logging.WARNING) -> None:
        """
        Log one line about the account, unless there were too many of late.

        ``account`` is its name within the provider, ``state`` its state now.
        """
        now = self._clock.monotonic()
        if now >= self._until:
            self._until, self._lines = now + self.WINDOW_S, 0
        self._lines += 1
        if self._lines <= self.LINES:
            log.log(level, "%s/%s %s", self._provider, account, text)
        elif self._lines == self.LINES + 1:
            log.log(
                level,
                "%s: more accounts fare so; for a minute they are not named here: tidewarden token"
                " list --provider %s --state %s",
                self._provider,
                self._provider,
                state,
            )
