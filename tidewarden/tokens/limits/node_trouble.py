"""
Notes and logs when a provider's trouble with this node begins and ends.

All nodes and the node's log hear of their begin and end.

No clock in here: times are handed in, monotonic seconds.
"""

from __future__ import annotations

import logging

from tidewarden.config.error_classes import Kind
from tidewarden.config.load import Provider
from tidewarden.tokens.provider import advice
from tidewarden.tokens.provider.token_response import Verdict

from .client_record import Silence

log = logging.getLogger("tidewarden.tokens")

STREAK = 2
"""Failures in a row, of as many accounts unless nobody answers, that are no chance."""
TELL_S = 5.0
"""How often the store hears of trouble that goes on."""
SAY_S = 60.0
"""How often the log hears of trouble that comes and goes."""


class NodeTrouble:
    """Watches one provider's client on this node."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._streak = 0
        self._accounts: set[str] = set()
        self._since_s = 0.0
        self._last = ("", "")
        self._told_s = float("-inf")
        self._noted = False
        """Whether the store has heard of it, or may have."""
        self._silent_told = False
        self._said_s = float("-inf")
        self._saying = False
        self._over = self._taken_over = False
        self._due = False
        self._silent = False

    def heard(
        self,
        account: str,
        verdict: Verdict,
        kind: Kind,
        *,
        known_well: bool,
        silent: bool,
        now_s: float,
    ) -> None:
        """
        Take an answer in.

        Args:
            known_well: whether an account of this client was ever refreshed well; where none was,
                one account is enough.
            silent: whether nobody answers this node any more.
        """
        if kind not in ("silent", "erring", "client"):
            self._ended(now_s)
            return
        if self._streak == 0:
            self._since_s = now_s
        self._streak += 1
        if len(self._accounts) < STREAK:
            self._accounts.add(account)
        self._last, self._silent = (verdict.outcome, verdict.brief or verdict.outcome), silent
        enough = self._streak >= STREAK and (
            kind == "silent" or not known_well or len(self._accounts) >= STREAK
        )
        fallen_silent = silent and not self._silent_told
        if not fallen_silent and (not enough or now_s - self._told_s < TELL_S):
            return
        self._due, self._told_s = True, now_s
        if kind != "client":  # Of that the hold says so, once for all nodes.
            self._say(verdict, now_s)

    @property
    def busy(self) -> bool:
        """Whether there is, or was, trouble of which an end has to be noticed."""
        return self._streak > 0 or self._noted or self._saying

    @property
    def due(self) -> bool:
        """Whether the store is to hear something."""
        return self._due or self._over

    def take(self, now_s: float, clock_ms: int, next_ms: int) -> tuple[Silence | None, bool, bool]:
        """
        Return the report for the store, as of ``clock_ms``.

        It has the trouble, whether nobody answers, and whether trouble is over.

        ``next_ms``: milliseconds until this node's next try; 0: as each account is due.
        """
        over, self._over = self._over, False
        self._taken_over = over
        if not self._due:
            self._noted = self._noted and not over
            return None, False, over
        self._due, self._noted, self._silent_told = False, True, self._silent
        since_ms = clock_ms - int((now_s - self._since_s) * 1000)
        found = Silence(since_ms, clock_ms, clock_ms + next_ms if next_ms else 0, *self._last)
        return found, self._silent, False

    def over(self) -> None:
        """The store has a note of this node's, whose trouble is over."""
        if not self._streak and not self._due:
            self._over = True

    def untold(self) -> None:
        """The store did not hear it: the next answer tells it."""
        self._told_s, self._silent_told = float("-inf"), False
        if self._taken_over and not self._streak:
            self._over = True

    def _ended(self, now_s: float) -> None:
        self._streak = 0
        self._accounts.clear()
        self._due = False
        if self._saying:
            self._saying = False
            log.warning(
                "%s answers again, after %.0f s", self._provider.name, now_s - self._since_s
            )
        if self._noted:
            self._over, self._silent_told, self._told_s = True, False, float("-inf")

    def _say(self, verdict: Verdict, now_s: float) -> None:
        if self._saying or now_s - self._said_s < SAY_S:
            return
        self._saying, self._said_s = True, now_s
        how = advice.STANDING[advice.standing(verdict.outcome)]
        what = advice.of_provider(self._provider, verdict.outcome)
        log.warning(
            "%s %s: %s. %s", self._provider.name, how, verdict.brief or verdict.message, what
        )
