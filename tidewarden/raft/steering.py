"""What can be asked of the cluster as a whole, of whichever member: that another leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidewarden.clock import Clock, sleep
from tidewarden.errors import NoLeader, NotFound, Timeout

from . import pysync
from .decide import Times

if TYPE_CHECKING:
    from .questions import Questions
    from .ticker import Ticker


class Steering:
    """
    Asks this member's thread, which asks the leader's.

    ``leader`` names who leads as far as this member knows, ``names`` are the members'.
    """

    def __init__(
        self,
        own: str,
        questions: Questions,
        times: Times,
        clock: Clock,
        leader: Callable[[], str | None],
        names: Callable[[], list[str]],
    ) -> None:
        self._own, self._questions, self._times, self._clock = own, questions, times, clock
        self._leader, self._names = leader, names

    async def transfer(self, ticker: Ticker | None, node: str | None) -> str:
        """
        Have the member ``node`` lead (``None``: another, the one most caught up), and wait until somebody new does.

        Returns: the name of the new leader; nothing is done when ``node`` leads already.
        Raises: NoLeader: this member knows of none. NotFound: no such member. Timeout: it did not take over.
        """
        names, before = self._names(), self._leader()
        if node is not None and node not in names:
            raise NotFound(f"There is no member {node!r}; there are {', '.join(sorted(names))}.")
        if before is None:
            raise NoLeader("This node knows of no leader.")
        if node == before:
            return before
        if len(names) == 1:
            raise NotFound("There is no other member.")
        limit_s = 2 * self._times.election_max_s
        until = self._clock.monotonic() + limit_s
        asked_again = self._clock.monotonic()
        reason = pysync.SUCCESS
        while True:
            now, leader = self._clock.monotonic(), self._leader()
            if leader not in (None, before):
                return str(leader)
            if now >= until:
                why = pysync.REASONS.get(reason, "it did not stand for election")
                raise Timeout(f"{node or 'Another member'} did not take over within {limit_s:g} s: {why}.")
            if leader == before and now >= asked_again:
                asked_again = now + 3 * self._times.heartbeat_s
                reason = await self._questions.ask(ticker, lambda voter: voter.wish(node))
            await sleep(self._clock, self._times.tick_s)
