"""
How a provider stands with us: what each node meets with there, told to all; and the figures of a provider, put together.

While every request is answered none of it costs a call. A node that meets with trouble that is not one account's (nobody answers,
errors, refusals of our client) says so in the log and in the store, and again when it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config import Provider

from . import advice
from .answers import Verdict
from .findings import GateView
from .ledger import Ledger

log = logging.getLogger("tidewarden.tokens")

STREAK = 2  # Failures in a row that are no chance.
TELL_S = 5.0  # How often the store hears of trouble that goes on.
SAY_S = 60.0  # How often the log hears of trouble that comes and goes.


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node meets with at a provider, times in unix milliseconds of the store's clock."""

    node: str
    since_ms: int
    last_ms: int
    next_ms: int
    """When it tries next; 0: when the next account is due."""
    error: str
    message: str


class Standing:
    """How one provider's client stands with this node."""

    def __init__(self, provider: Provider, queue: str, ledger: Ledger, clock: Clock, node: str) -> None:
        self._provider = provider
        self._queue = queue
        self._ledger = ledger
        self._clock = clock
        self._node = node
        self._streak = 0
        self._since = 0.0
        self._told = float("-inf")
        self._noted = True
        """Whether the store has heard of it, or may have: from this node before it was started again, too."""
        self._silent = False
        """Whether the store has heard that nobody answers."""
        self._said = float("-inf")
        self._saying = False

    async def heard(self, verdict: Verdict, opens_in_s: float, *, silent: bool = False) -> bool:
        """
        Take a verdict in; ``opens_in_s``: until this node asks again, seconds; ``silent``: nobody answers it any more. Whether the store
        has an event of it to be told. Never raises: untold, the next answer tells it.
        """
        now = self._clock.monotonic()
        if verdict.scope in ("ok", "account"):
            self._streak = 0
            if self._saying:
                self._saying = False
                log.warning("%s answers again, after %.0f s", self._provider.name, now - self._since)
            if not self._noted:
                return False
            self._noted = self._silent = False  # Before the store is asked: trouble that comes meanwhile is noted anew.
            told = await self._tell("over", self._node)
            self._noted |= told is None
            return bool(told)
        self._streak += 1
        if self._streak == 1:
            self._since = now
        fallen_silent = silent and not self._silent
        if not fallen_silent and (self._streak < STREAK or now - self._told < TELL_S):
            return False
        self._say(verdict, now)
        self._told, self._noted, self._silent = now, True, silent
        ago_ms, next_ms = int((now - self._since) * 1000), int(opens_in_s * 1000)
        told = await self._tell("note", self._node, ago_ms, next_ms, verdict.outcome, verdict.message, int(silent))
        if told is None:
            self._told, self._silent = float("-inf"), False
        return bool(told)

    def _say(self, verdict: Verdict, now: float) -> None:
        if verdict.scope == "client":
            return  # The gate says so, once for all nodes.
        if not self._saying and now - self._said >= SAY_S:
            self._saying, self._said = True, now
            what = advice.of_provider(self._provider, verdict.outcome)
            log.warning(
                "%s %s: %s. %s",
                self._provider.name,
                advice.STANDING[advice.standing(verdict.outcome)],
                verdict.message,
                what,
            )

    async def _tell(self, verb: str, *args: str | int) -> bool | None:
        """Whether there is an event of it; None: the store may not have heard of it."""
        try:
            event, _ = await self._ledger.standing(self._queue, verb, *args)
        except errors.Error as error:
            log.debug("%s: how it stands was not told: %s", self._provider.name, error)
            return None
        return event


def figures(provider: Provider, gate: GateView, seen: list[Seen], due_ms: int) -> dict[str, Any]:
    """
    What ``T.STATS`` tells of a provider beside its accounts: what is the matter with it, if anything is.

    ``due_ms``: when one of its failing accounts is tried next; 0: none fails, or it is not asked.
    """
    held_ms = gate.until_ms if gate.failures or gate.until_ms > gate.now_ms else 0
    error, message, since_ms = "", "", 0
    if seen:
        latest = max(seen, key=lambda one: one.last_ms)
        error, message, since_ms = latest.error, latest.message, min(one.since_ms for one in seen)
    elif gate.failures:
        error, _, message = gate.reason.partition(" ")
    elif held_ms or gate.rate:
        error, message = "rate_limited", "it asked for less"
    if gate.failures:
        since_ms = min(since_ms or gate.since_ms, gate.since_ms)
    waits = [one.next_ms for one in seen if one.next_ms > gate.now_ms]
    next_ms = max(held_ms, min(waits) if len(waits) == len(seen) > 0 else 0, due_ms) if error else 0
    return {
        "failures": gate.failures,
        "held_until_ms": held_ms,
        "state": advice.standing(error) if error else "answers",
        "since_ms": since_ms,
        "next_ms": next_ms if next_ms > gate.now_ms else 0,
        "error": error,
        "message": message,
        "nodes": sorted(one.node for one in seen),
        "advice": advice.of_provider(provider, error) if error else "",
    }


def beside(account: dict[str, Any], stands: Mapping[str, Any]) -> dict[str, Any]:
    """What ``T.LIST`` tells of an account whose provider stands so: one that is due waits for it, and for no reason of its own."""
    if stands["error"] and account["state"] in ("expiring", "late", "failing"):
        account["next_ms"] = max(account["next_ms"], stands["next_ms"])
        if not account["error"]:
            account |= {name: stands[name] for name in ("error", "message", "advice")}
    return account
