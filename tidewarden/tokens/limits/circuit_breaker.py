"""
Holds one node's requests to a provider back while none is answered, and tells of its trouble.

No clock in here: times are handed in, monotonic seconds.
"""

from __future__ import annotations

import logging
import math

from tidewarden.config.error_classes import Kind
from tidewarden.config.load import Provider
from tidewarden.tokens.provider import advice
from tidewarden.tokens.provider.token_response import Verdict

from .answer_counts import Silence, Told

log = logging.getLogger("tidewarden.tokens")

FIRST_S, MAX_S = 1.0, 15.0
"""Seconds until the first probe, and at most between two probes."""
STREAK = 2
"""
So many failures in a row are no chance; they are of as many accounts unless no provider answers.
"""
TELL_MS = 5_000
"""How often the store hears of trouble that goes on."""
SAY_S = 60.0
"""How often the log hears of trouble that comes and goes."""


class CircuitBreaker:
    """
    Opens when a number of requests in a row have no answer.

    Then one request probes; any answer closes the breaker. This node's own network may be the
    reason, so other nodes are not held. Trouble that is no single account's matter is logged, and
    told to the store, which has it in the client's record.
    """

    def __init__(self, provider: Provider, patience: int) -> None:
        """Bear ``patience`` requests in a row without an answer."""
        self.provider = provider
        """The provider's settings as they are now, which log lines name."""
        self._patience = patience
        self.streak = 0
        """Requests in a row without an answer."""
        self.ended_s = -math.inf
        """When a request ended last."""
        self._opened = 0
        self._until_s = -math.inf
        self.blocked = False
        """This node asks the provider nothing, because its journal cannot be written."""
        self._failures = 0
        """Failures in a row, with or without an answer, that may be no account's matter."""
        self._accounts: set[str] = set()
        self._since_s = 0.0
        self._last = ("", "")
        self._standing = False
        """The trouble has lasted for too many requests to be chance."""
        self._saying = False
        self._said_s = -math.inf

    # --- what it holds back

    @property
    def open(self) -> bool:
        """Return whether requests wait for a probe."""
        return self._opened > 0

    def allowed(self, now_s: float, refreshers: int, under_way: int) -> int:
        """Return how many more requests may be begun."""
        if now_s < self._until_s:
            return 0
        return max(0, (1 if self._opened else refreshers) - under_way)

    def opens_in_s(self, now_s: float) -> float:
        """Return the seconds until a request is allowed again; 0: now."""
        return max(0.0, self._until_s - now_s)

    def answered(self, now_s: float) -> None:
        """Note that a request was answered, as :meth:`ended` does, too."""
        self.ended_s = now_s
        self.streak = self._opened = 0
        self._until_s = -math.inf

    def ended(
        self, account: str, verdict: Verdict, kind: Kind, now_s: float, *, known_well: bool
    ) -> None:
        """
        Note that a request has ended.

        ``known_well``: whether an account of this client was ever refreshed well; where none was,
        one account is enough to show trouble.
        """
        if verdict.answered:
            self.answered(now_s)
        else:
            self._unanswered(verdict, now_s)
        if self.blocked:
            return
        if kind not in ("silent", "erring", "client"):
            self._end(now_s)
            return
        if self._failures == 0:
            self._since_s = now_s
        self._failures += 1
        if len(self._accounts) < STREAK:
            self._accounts.add(account)
        self._last = (verdict.outcome, verdict.brief or verdict.outcome)
        several = kind == "silent" or not known_well or len(self._accounts) >= STREAK
        chance = self._failures < STREAK or not several
        self._standing = self._standing or self.open or not chance
        if self._standing and kind != "client":  # Of that the hold says so, once for all nodes.
            self._say(verdict, now_s)

    def _unanswered(self, verdict: Verdict, now_s: float) -> None:
        self.ended_s = now_s
        self.streak += 1
        if self.streak < self._patience or now_s < self._until_s:
            return
        self._opened += 1
        self._until_s = now_s + min(MAX_S, FIRST_S * 2 ** min(self._opened - 1, 10))
        if self._opened == 1:
            said = "%s does not answer this node (%s); it is asked rarely now"
            log.error(said, self.provider.name, verdict.message)

    # --- what it tells

    def block(self, brief: str, now_s: float) -> None:
        """Ask the provider nothing while this node's journal fails, as ``brief`` says."""
        if brief:
            if not self.blocked:
                self._since_s = now_s
            self.blocked = self._standing = True
            self._last = ("journal", brief)
        elif self.blocked:
            self.blocked = False
            self._end(now_s)

    @property
    def troubled(self) -> bool:
        """Return whether this node meets with trouble, or has not yet reported that it ended."""
        return self._failures > 0 or self.blocked or self._saying

    def due(self, noted: Silence | None, clock_ms: int) -> bool:
        """Return whether to tell the store; ``noted`` is the trouble of this node in its record."""
        if not self._standing:
            return noted is not None and self._failures == 0
        if noted is None or (self._silent and not noted.told):
            return True
        return clock_ms - noted.last_ms >= TELL_MS

    def report(self, told: Told, noted: Silence | None, now_s: float, clock_ms: int) -> None:
        """Put this node's trouble into ``told``, or its end, if the store is to hear of it now."""
        if not self.due(noted, clock_ms):
            return
        if not self._standing:
            told.answered = True
            return
        since_ms = clock_ms - int((now_s - self._since_s) * 1000)
        opens_ms = int(self.opens_in_s(now_s) * 1000)
        next_ms = clock_ms + opens_ms if opens_ms else 0
        told.silence = Silence(since_ms, clock_ms, next_ms, *self._last)
        told.silent = self._silent

    @property
    def _silent(self) -> bool:
        return self.open or self.blocked

    def _end(self, now_s: float) -> None:
        self._failures, self._standing = 0, False
        self._accounts.clear()
        if self._saying:
            self._saying = False
            lasted_s = now_s - self._since_s
            log.warning("%s answers again, after %.0f s", self.provider.name, lasted_s)

    def _say(self, verdict: Verdict, now_s: float) -> None:
        if self._saying or now_s - self._said_s < SAY_S:
            return
        self._saying, self._said_s = True, now_s
        name, said = self.provider.name, verdict.brief or verdict.message
        how = advice.STANDING[advice.standing(verdict.outcome)]
        what = advice.of_provider(self.provider, verdict.outcome)
        log.warning("%s %s: %s. %s", name, how, said, what)
