"""Asks the members about the cluster's embedded stores, and tells them of this node's own."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import BadArg, Internal

from .proposals import Proposals
from .store_facts import StoreFacts
from .store_reports import REPORT_MAX, Report, is_report
from .ticker import Ticker
from .voter import Voter

LOOK = ("look",)
"""The command that changes nothing: once it is applied here, so is whatever was before it."""
REPORT_S = 0.08
"""
Between two reports that say the same, at pace 1. It is below what lies between two looks, which
come at moments that duties share: one that comes a millisecond early is told, too.
"""
BEAT_STANDS_S = 0.15
"""So long after the loop's beat, at pace 1, a report that is stood by counts as said anew."""


class StoreQueries:
    """
    Holds what the members have agreed on about the stores, and what each says of its own.

    All methods are for the event loop. ``changed`` is called there whenever facts, voters or the
    content of a report are others than when it was called last, and once at the start.
    """

    def __init__(
        self,
        ticker: Ticker,
        voter: Voter,
        proposals: Proposals,
        clock: Clock,
        pace: float,
        changed: Callable[[], None],
    ) -> None:
        self._ticker, self._voter, self._proposals = ticker, voter, proposals
        self._clock, self._pace, self._changed = clock, pace, changed
        self._own: tuple[float, Report] | None = None
        self._stands_until = -math.inf
        self._known = StoreFacts()
        """The facts when the own report was said last, which it goes by."""
        self._said = -math.inf
        self._saying = False  # the thread was asked to, and has not yet
        self._urgent = False
        self._told: tuple[Any, ...] = ()

    @property
    def facts(self) -> StoreFacts:
        """
        Return the facts as applied here, never older than what a command was answered.

        They are the voter's own, for its view is made only after the command's answer.
        """
        return self._voter.stores

    @property
    def voters(self) -> frozenset[str]:
        """
        Return the voters by the newest version of the members in this log; none before the first.
        """
        members = self._voter.members
        return frozenset() if members is None else members.voters

    @property
    def ended(self) -> frozenset[str]:
        """Return the members whose processes are known to have ended."""
        return self._voter.ended

    def notice(self) -> None:
        """Say so if something changed."""
        told = self._seen()
        if told != self._told:
            self._told = told
            self._changed()

    def _seen(self) -> tuple[Any, ...]:
        own = None if self._own is None else self._own[1]
        return self.facts, self.voters, self._voter.reports.changes, self.ended, own

    # Reports.

    def beat(self) -> None:
        """Note that the loop turns: it stands by its report for a moment more, where it does."""
        kept_s = BEAT_STANDS_S * self._pace
        self._voter.stands_until = min(self._stands(), self._clock.monotonic() + kept_s)

    def _stands(self) -> float:
        """
        Return until when the own report is stood by.

        Not under other facts than it goes by: what this node does by those may hang.
        """
        return self._stands_until if self.facts == self._known else -math.inf

    def say(self, report: Report, now: bool, stands_s: float = 0.0) -> None:
        """
        Keep this node's own report, and send it to all members when it is time.

        It is time when ``now`` says so, when the report says something new, and each
        :data:`REPORT_S`. For ``stands_s``, unless another is said or the facts change, every
        message to another member says it again, while the loop beats. Raises: BadArg: it is no
        report.
        """
        if not is_report(report):
            raise BadArg(
                "A store's report: found something else; allowed: a tuple of plain values, of at"
                f" most {REPORT_MAX} characters."
            )
        at, before = self._clock.monotonic(), self._own
        self._own, self._stands_until, self._known = (at, report), at + stands_s, self.facts
        self.beat()
        new = before is None or before[1] != report
        if new:
            asyncio.get_running_loop().call_soon(self.notice)
        if now or new or at - self._said >= REPORT_S * self._pace:
            self._said = at
            self._urgent = self._urgent or now
            if not self._saying:
                self._saying = True
                self._ticker.ask_later(self._tell)
            if now or self.ended:
                self._ticker.wake()

    def _tell(self, voter: Voter) -> None:
        """Tell the newest report, in the thread: however late it comes to it, it is one message."""
        self._saying = False
        now, self._urgent = self._urgent, False
        if self._own is not None:
            voter.say_store(self._own[1], now)

    def reports(self, own: str) -> dict[str, tuple[float, Report]]:
        """Return when each member was heard to report, and its report; the ``own`` as last said."""
        found = dict(self._voter.reports.heard)
        if self._own is not None:
            said_at, report = self._own
            found[own] = max(said_at, min(self._clock.monotonic(), self._stands())), report
        return found

    # Commands.

    async def command(self, command: tuple[Any, ...]) -> StoreFacts:
        """
        Commit a command, and return the facts once it is applied here, taken or not.

        Raises: NoLeader, Timeout: it may be committed, also later. Internal: it is no plain values.
        """
        facts = await self._proposals.propose(functools.partial(self._voter.store_command, command))
        if not isinstance(facts, StoreFacts):
            raise Internal(f"A command about the stores was answered with {facts!r}.")
        return facts
