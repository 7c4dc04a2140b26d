"""Asks the members about the cluster's embedded stores, and tells them of this node's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tidewarden.errors import Internal

from .proposals import Proposals
from .store_facts import StoreFacts
from .ticker import Ticker
from .voter import Voter

LOOK = ("look",)
"""The command that changes nothing: once it is applied here, so is whatever was before it."""


class Stores:
    """
    Holds what the members have agreed on about the stores, and what each says of its own.

    All methods are for the event loop. ``changed`` is called there whenever facts, voters or the
    content of a report are others than when it was called last.
    """

    def __init__(
        self, ticker: Ticker, voter: Voter, proposals: Proposals, changed: Callable[[], None]
    ) -> None:
        self._ticker, self._voter, self._proposals = ticker, voter, proposals
        self._changed = changed
        self._told: tuple[Any, ...] = (self.facts, self.voters)

    @property
    def facts(self) -> StoreFacts:
        """
        The facts as applied here, never older than what a command was answered.

        They are the voter's own, for its view is made only after the command's answer.
        """
        return self._voter.stores

    @property
    def voters(self) -> frozenset[str]:
        """Who votes by the newest version of the members in this log; nobody before the first."""
        members = self._voter.members
        return frozenset() if members is None else members.voters

    def notice(self) -> None:
        """Say so if something changed."""
        told = (self.facts, self.voters)
        if told != self._told:
            self._told = told
            self._changed()

    async def command(self, command: tuple[Any, ...]) -> StoreFacts:
        """
        Commit a command, and return the facts once it is applied here, taken or not.

        Raises: NoLeader, Timeout: it may be committed, also later. Internal: it is no plain values.
        """
        facts = await self._proposals.propose(functools.partial(self._voter.store_command, command))
        if not isinstance(facts, StoreFacts):
            raise Internal(f"A command about the stores was answered with {facts!r}.")
        return facts
