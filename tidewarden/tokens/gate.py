"""
What holds a provider's client back, on all nodes together: kept in the store, asked before a take, told after an answer.

While nobody has anything to tell and no rate is set, none of it costs a call. A client that is refused, or a provider that is
down, pauses the client's queue, so that no node takes from it; then one request at a time, of whichever node is first to
claim it, probes. The pause ends by itself a minute after the next probe was due: should all who know of it die, work goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from random import Random

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config import Provider
from tidewarden.queue import Queues

from . import advice
from .answers import Verdict
from .findings import GateView
from .ledger import Ledger
from .tidings import Tidings

log = logging.getLogger("tidewarden.tokens")

PAUSE_SLACK_MS = 60_000
LOOK_S = 30.0  # How old a node's view of a gate may be that seemed free.
METER_S = 5.0
METER_S_MIN = 0.25


@dataclass(frozen=True, slots=True)
class Leave:
    """How many requests may begin now; if none, when to ask again. ``probe``: one, past the pause."""

    requests: int
    wait_s: float = 0.0
    probe: bool = False


class Gate:
    """The gate of one provider's client, as one node sees it."""

    def __init__(
        self,
        provider: Provider,
        queue: str,
        queues: Queues,
        ledger: Ledger,
        clock: Clock,
        dice: Random,
        probe_ms: int,
        tidings: Tidings | None = None,
    ) -> None:
        """``probe_ms``: how long a probe may take; when its node dies another claims it after that."""
        self._provider = provider
        self._queue = queue
        self._queues = queues
        self._ledger = ledger
        self._clock = clock
        self._dice = dice
        self._probe_ms = probe_ms
        self._tidings = tidings
        self._most = max(1, round(provider.client_rate * 1000)) if provider.client_rate else 0  # 0 would be any number
        self._looked = float("-inf")
        self._ends: deque[float] = deque(maxlen=10_000)
        self._streak = 0
        self.view = GateView()
        """What was last heard of it."""
        self.closed = asyncio.Event()
        """Set when this node has closed it, until it asks again: a take that waits is in vain then."""

    async def ask(self, wanted: int) -> Leave:
        """Leave for at most ``wanted`` requests. Raises what the store raises."""
        now = self._clock.monotonic()
        self.closed.clear()  # also when it was opened again meanwhile: each take would be broken off at once
        if not self._most and self.view.free and now - self._looked < LOOK_S:
            return Leave(wanted)
        self._looked = now
        self.view = await self._ledger.gate(self._queue, "ask", wanted, self._most, self._probe_ms)
        return Leave(self.view.granted, self.view.wait_ms / 1000, self.view.probe)

    async def give_back(self, requests: int) -> None:
        """So many that were granted are not sent. Raises what the store raises."""
        if requests and (self._most or self.view.rate):
            await self._ledger.gate(self._queue, "back", requests, self._most)

    async def told(self, verdict: Verdict) -> None:
        """Take an answer in; what concerns all nodes is told to them. Never raises: untold, the next answer tells it."""
        try:
            await self._told(verdict)
        except errors.Error as error:
            log.warning("%s: what it answered was not told to the other nodes: %s", self._provider.name, error)

    async def _told(self, verdict: Verdict) -> None:
        if not verdict.answered:
            return  # It may be this node's own network; others hear of their own.
        self._ends.append(self._clock.monotonic())
        if verdict.scope in ("ok", "account"):
            self._streak = 0
            if self.view.failures:
                await self._recover()
        elif verdict.scope == "client":
            await self._trip(verdict)
        elif verdict.outcome == "rate_limited" or verdict.retry_after_s:
            await self._slow(verdict)
        else:
            self._streak += 1
            if self._streak >= max(10, self._provider.crew[0]) or self.view.failures:
                await self._trip(verdict)

    async def _trip(self, verdict: Verdict) -> None:
        name = self._provider.name
        reason = f"{verdict.outcome} {verdict.message}".strip()
        self.view = view = await self._ledger.gate(self._queue, "trip", reason)
        self.closed.set()
        await self._pause(max(0, view.until_ms - view.now_ms) + PAUSE_SLACK_MS)
        if view.news and self._tidings is not None:
            self._tidings.of_provider(name)
        if view.news and verdict.scope == "client":
            what = advice.of_provider(self._provider, verdict.outcome)
            log.error(
                "%s refuses our client (%s): its accounts wait. %s. %s", name, verdict.outcome, verdict.message, what
            )
        elif view.news:
            log.error("%s fails each request (%s): its accounts wait. %s", name, verdict.outcome, verdict.message)

    async def _slow(self, verdict: Verdict) -> None:
        wait_ms = int((verdict.retry_after_s or 0) * 1000)
        self.view = view = await self._ledger.gate(self._queue, "slow", wait_ms, int(self.per_second() * 1000))
        hold_ms = max(0, view.until_ms - view.now_ms)  # A longer hold that was there already is not cut short.
        if hold_ms:
            await self._pause(hold_ms + (PAUSE_SLACK_MS if view.failures else self._dice.randrange(1000)))
        if view.news:
            log.warning(
                "%s wants less: %.1f requests a second now. %s", self._provider.name, view.rate, verdict.message
            )

    async def _recover(self) -> None:
        self.view = await self._ledger.gate(self._queue, "recover")
        await self._queues.resume(self._queue)
        if self.view.news and self._tidings is not None:
            self._tidings.of_provider(self._provider.name)
        if self.view.news:
            log.warning("%s answers again: its accounts go on", self._provider.name)

    async def _pause(self, ms: int) -> None:
        await self._queues.pause(self._queue, ms)

    def per_second(self) -> float:
        """Requests a second that were answered to this node of late; at least one."""
        now = self._clock.monotonic()
        while self._ends and self._ends[0] < now - METER_S:
            self._ends.popleft()
        over_s = max(METER_S_MIN, now - self._ends[0]) if self._ends else METER_S
        return max(1.0, len(self._ends) / over_s)
