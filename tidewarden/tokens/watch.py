"""What the answers to one client's refreshes say beyond each account: shared by its pool, which waits, and its refresher, which tells."""

from __future__ import annotations

import logging
from dataclasses import replace

from tidewarden.config import Provider

from .answers import Verdict
from .gate import Gate
from .standing import Standing
from .tools import Tools
from .trends import Breaker, Jump

log = logging.getLogger("tidewarden.tokens")

ODD_MAX = 10_000


class Watch:
    """Breaker, gate and the share of refusals of one provider's client on this node."""

    def __init__(self, provider: Provider, queue: str, tools: Tools, lease_ms: int) -> None:
        self._name = provider.name
        self._node = tools.queues.holder.partition(".")[0]
        self._standing = Standing(provider, queue, tools.ledger, tools.clock, self._node)
        self._tools = tools
        self.breaker = Breaker(max(10, provider.refreshers))
        self.jump = Jump()
        self.gate = Gate(provider, queue, tools.queues, tools.ledger, tools.clock, tools.dice, lease_ms, tools.tidings)
        self._quarantined = False
        self._well = 0
        """Refreshes that went well."""
        self._odd: dict[str, int] = {}
        """How many had gone well when an account was first told something of the whole client."""

    def note(self, account: str, verdict: Verdict) -> Verdict:
        """
        Take a verdict in. It comes back as our own network's if no provider at all can be reached, and as the account's if that one is
        told again what would concern the whole client, while others were refreshed in between.
        """
        tools, now = self._tools, self._tools.clock.monotonic()
        tools.counts.refreshes[self._name, verdict.outcome] += 1
        self._note_silence(verdict, now)
        tools.weather.note(self._name, verdict.answered, now)
        if verdict.scope == "ok" or verdict.outcome == "invalid_grant":
            self.jump.note(verdict.scope != "ok", now)
            self._say_quarantine()
        if verdict.scope == "ok":
            self._well += 1
        elif verdict.scope == "client":
            before = self._odd.setdefault(account, self._well)
            if self._well > before:
                return replace(verdict, scope="account")
            if len(self._odd) > ODD_MAX:
                self._odd.clear()
        if not verdict.answered and verdict.scope == "provider" and tools.weather.ours(now):
            return replace(verdict, scope="ours")
        return verdict

    def _note_silence(self, verdict: Verdict, now: float) -> None:
        tidings, before = self._tools.tidings, self.breaker.open
        if self.breaker.note(verdict.answered, now):
            log.error("%s does not answer this node (%s); it is asked rarely now", self._name, verdict.message)
            if tidings is not None:
                tidings.silent(self._name, self._node, verdict.outcome, verdict.message)
        elif before and not self.breaker.open and tidings is not None:
            tidings.answers(self._name, self._node)

    async def tell(self, verdict: Verdict) -> None:
        """Tell the other nodes what concerns them; see :meth:`Gate.told` and :meth:`Standing.heard`."""
        await self.gate.told(verdict)
        await self._standing.heard(verdict, self.breaker.opens_in_s(self._tools.clock.monotonic()))

    @property
    def quarantined(self) -> bool:
        """Whether refusals have jumped, so that no account is declared dead."""
        return self._quarantined

    @property
    def held(self) -> bool:
        """Whether this node knows its requests to be held back for more than their rate."""
        return self.breaker.open or self.gate.view.failures > 0

    def _say_quarantine(self) -> None:
        if self.jump.on == self._quarantined:
            return
        self._quarantined, tidings = self.jump.on, self._tools.tidings
        if self._quarantined:
            self._tools.counts.quarantines[self._name] += 1
            if tidings is not None:
                tidings.doubted(self._name, self.jump.share)
            log.error(
                "%s refuses %.0f %% of the refresh tokens of late, far more than usual: no account is declared dead for it",
                self._name, self.jump.share * 100,
            )  # fmt: skip
        else:
            if tidings is not None:
                tidings.trusted(self._name)
            log.warning("%s refuses no more refresh tokens than usual again", self._name)
