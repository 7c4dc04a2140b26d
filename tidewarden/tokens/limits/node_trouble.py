"""
Says what this node meets with at a provider that is no single account's matter.

What the store has heard of it is in the client's record: whatever differs from that is to be told.

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
TELL_MS = 5_000
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
        self._standing = False
        """It is no chance."""
        self._silent = False
        self.blocked = False
        """It asks the provider nothing, for its journal cannot be written."""
        self._saying = False
        self._said_s = float("-inf")

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
        if self.blocked:
            return
        if kind not in ("silent", "erring", "client"):
            self._end(now_s)
            return
        if self._streak == 0:
            self._since_s = now_s
        self._streak += 1
        if len(self._accounts) < STREAK:
            self._accounts.add(account)
        self._last, self._silent = (verdict.outcome, verdict.brief or verdict.outcome), silent
        several = kind == "silent" or not known_well or len(self._accounts) >= STREAK
        self._standing = self._standing or silent or (self._streak >= STREAK and several)
        if self._standing and kind != "client":  # Of that the hold says so, once for all nodes.
            self._say(verdict, now_s)

    def block(self, brief: str, now_s: float) -> None:
        """This node asks the provider nothing, for its journal fails; empty: it asks."""
        if brief:
            if not self.blocked:
                self._since_s = now_s
            self.blocked = self._standing = self._silent = True
            self._last = ("journal", brief)
        elif self.blocked:
            self.blocked = False
            self._end(now_s)

    @property
    def busy(self) -> bool:
        """Whether there is trouble, or was, of which an end has to be noticed."""
        return self._streak > 0 or self.blocked or self._saying

    def due(self, noted: Silence | None, clock_ms: int) -> bool:
        """Whether the store is to hear something. ``noted``: what its record has of this node."""
        if not self._standing:
            return noted is not None and self._streak == 0
        if noted is None or (self._silent and not noted.told):
            return True
        return clock_ms - noted.last_ms >= TELL_MS

    def report(
        self, noted: Silence | None, now_s: float, clock_ms: int, next_ms: int
    ) -> tuple[Silence | None, bool, bool]:
        """
        Return what the store is to hear, as of ``clock_ms``.

        It has the trouble, whether nobody answers, and whether trouble is over.

        ``next_ms``: milliseconds until this node's next try; 0: as each account is due.
        """
        if not self.due(noted, clock_ms):
            return None, False, False
        if not self._standing:
            return None, False, True
        since_ms = clock_ms - int((now_s - self._since_s) * 1000)
        found = Silence(since_ms, clock_ms, clock_ms + next_ms if next_ms else 0, *self._last)
        return found, self._silent, False

    def _end(self, now_s: float) -> None:
        self._streak, self._standing, self._silent = 0, False, False
        self._accounts.clear()
        if self._saying:
            self._saying = False
            log.warning(
                "%s answers again, after %.0f s", self._provider.name, now_s - self._since_s
            )

    def _say(self, verdict: Verdict, now_s: float) -> None:
        if self._saying or now_s - self._said_s < SAY_S:
            return
        self._saying, self._said_s = True, now_s
        how = advice.STANDING[advice.standing(verdict.outcome)]
        what = advice.of_provider(self._provider, verdict.outcome)
        log.warning(
            "%s %s: %s. %s", self._provider.name, how, verdict.brief or verdict.message, what
        )
