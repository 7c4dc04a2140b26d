"""What the answers to one client's refreshes say beyond each account: shared by its pool, which waits, and its refresher, which tells."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from tidewarden.config import Provider

from .answers import Verdict
from .crew import Crew, late
from .evidence import Evidence
from .findings import Opened
from .gate import Gate
from .standing import Standing
from .tools import Tools
from .trends import Breaker

log = logging.getLogger("tidewarden.tokens")

ODD_MAX = 10_000


class Watch:
    """Breaker, gate, crew and the share of refusals of one provider's client, as this node knows them."""

    def __init__(self, provider: Provider, queue: str, tools: Tools, lease_ms: int) -> None:
        self._name = provider.name
        node = tools.queues.holder.partition(".")[0]
        self._standing = Standing(provider, queue, tools.ledger, tools.clock, node)
        self._tools = tools
        self.crew = Crew(*provider.crew)
        self.breaker = Breaker(max(10, self.crew.size))
        self.evidence = Evidence(queue, tools.ledger, tools.clock)
        self.gate = Gate(provider, queue, tools.queues, tools.ledger, tools.clock, tools.dice, lease_ms, tools.tidings)
        self.unanswered: set[str] = set()
        """Accounts whose refreshes have begun and are not answered yet: what the crew's size bounds."""
        self.freed = asyncio.Event()
        """Set when there may be room for another; whoever looks for room clears it."""
        self._well = 0
        """Refreshes that went well."""
        self._odd: dict[str, int] = {}
        """How many had gone well when an account was first told something of the whole client."""

    def began(self, opened: Opened) -> None:
        """A refresh begins. One that was tried before is late by its backoff, which says nothing."""
        row = opened.row
        if not opened.troubles.tries:
            self.crew.began(late=late(row.due_ms, row.expires_at_ms, opened.now_ms))

    def answered(self, account: str) -> None:
        """There is an answer, or there will be none: another may be asked for meanwhile."""
        self.unanswered.discard(account)
        self.freed.set()

    def note(self, account: str, verdict: Verdict) -> Verdict:
        """
        Take a verdict in. It comes back as our own network's if no provider at all can be reached, and as the account's if that one is
        told again what would concern the whole client, while others were refreshed in between.
        """
        if verdict.pair is not None:  # Else not before all nodes know of it: others would meet the same.
            self.answered(account)
        tools, now = self._tools, self._tools.clock.monotonic()
        tools.counts.refreshes[self._name, verdict.outcome] += 1
        if self.breaker.note(verdict.answered, now):
            log.error("%s does not answer this node (%s); it is asked rarely now", self._name, verdict.message)
        tools.weather.note(self._name, verdict.answered, now)
        self.crew.ended(well=verdict.scope in ("ok", "account"), now=now)
        if verdict.scope == "ok" or verdict.outcome == "invalid_grant":
            self.evidence.note(refused=verdict.scope != "ok")
        if verdict.scope == "ok":
            self._well += 1
            self._odd.pop(account, None)  # Whatever it was told, it is over.
        elif verdict.scope == "client":
            before = self._odd.setdefault(account, self._well)
            if self._well > before:
                return replace(verdict, scope="account")
            if len(self._odd) > ODD_MAX:
                self._odd.clear()
        if not verdict.answered and verdict.scope == "provider" and tools.weather.ours(now):
            return replace(verdict, scope="ours")
        return verdict

    async def tell(self, verdict: Verdict) -> None:
        """Tell the other nodes what concerns them; see :meth:`Gate.told` and :meth:`Standing.heard`."""
        await self.gate.told(verdict)
        tidings, opens_in_s = self._tools.tidings, self.breaker.opens_in_s(self._tools.clock.monotonic())
        event = await self._standing.heard(verdict, opens_in_s, silent=self.breaker.open)
        if event and tidings is not None:
            tidings.of_provider(self._name)
        if self.evidence.due:
            await self.weigh()

    async def weigh(self) -> None:
        """Set what this node saw against what all nodes see; :attr:`quarantined` is up to date then. Never raises."""
        if await self.evidence.weigh():
            self._say_quarantine()

    @property
    def quarantined(self) -> bool:
        """Whether refusals have jumped, so that no account is declared dead."""
        return self.evidence.latest.on

    @property
    def held(self) -> bool:
        """Whether this node knows its requests to be held back for more than their rate."""
        return self.breaker.open or self.gate.view.failures > 0

    def _say_quarantine(self) -> None:
        tools, trend = self._tools, self.evidence.latest
        if tools.tidings is not None:
            tools.tidings.of_provider(self._name)
        if trend.on:
            tools.counts.quarantines[self._name] += 1
            log.error(
                "%s refuses %.0f %% of the refresh tokens of late, far more than usual: no account is declared dead for it",
                self._name, trend.share * 100,
            )  # fmt: skip
        else:
            log.warning("%s refuses no more refresh tokens than usual again", self._name)
