"""
Hands the primary to another store in order, so that clients wait for some hundredths of a second.

The primary takes no more writes; the store that is to follow it has come to the same place; Raft is
told; the new one opens. Whatever goes wrong, the former primary goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from tidewarden.clock import Clock, sleep
from tidewarden.errors import BadArg, Error, NoQuorum, NotFound, StoreDown, Timeout
from tidewarden.raft.store_facts import StoreFacts, StoreMember
from tidewarden.store.connection import StoreConnection
from tidewarden.store.preflight import parse_info

from .raft_stores import RaftStores
from .store_report import StoreReport

PAUSE_MS = 2000
"""
The primary takes writes again by itself after so long, at pace 1 or below, even if this node dies.
"""
CATCH_UP_S = 0.5
"""The primary may take so long, at pace 1 or below, to pause, and the chosen store to catch up."""
OPEN_S = 2.0
"""The chosen store may take so long, at pace 1, to open."""
CONNECT_S = 1.0
"""A store may take so long, at pace 1 or below, to let this node in."""
LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class HandOver:
    """Names the node that the primary leaves and the one that it goes to."""

    facts: StoreFacts
    to: StoreMember
    seen: int
    """The greatest view in any store's data."""


def hand_over_to(
    node: str | None,
    facts: StoreFacts,
    voters: frozenset[str],
    reports: Mapping[str, StoreReport],
) -> HandOver:
    """
    Return the node whose store takes over from a primary that is well.

    ``node``: the chosen one; None: the one whose store came furthest. Raises: NotFound, BadArg,
    StoreDown, NoQuorum: no store can take over, or not that one; why.
    """
    if not facts.view:
        raise StoreDown("no store was ever chosen as the primary")
    primary = reports.get(facts.primary)
    if primary is None or primary.serves_view != facts.view:
        raise StoreDown(f"{facts.primary}'s store is not open as the primary yet")
    if node is not None and node not in voters:
        raise NotFound(f"{node!r} is no member that votes; these are {', '.join(sorted(voters))}")
    if node == facts.primary:
        raise BadArg(f"{node}'s store is the primary already")
    own = ".".join(facts.primary_member)
    fit = {
        member: report
        for member in facts.in_sync
        if member.node in voters
        and (report := reports.get(member.node)) is not None
        and report.incarnation == member.incarnation
        and report.follows == own
        and not (report.loading or (not report.stays and node is None))
        and node in (None, member.node)
    }
    if not fit:
        which = "no other store" if node is None else f"{node}'s store"
        names = ", ".join(sorted(facts.nodes_in_sync))
        raise NoQuorum(
            f"{which} can take over now: it has to be in sync and follow {facts.primary}'s; in"
            f" sync: {names}. `tidewarden cluster status` says why others are not"
        )
    to = max(fit, key=lambda member: (fit[member].offset, member))
    return HandOver(facts, to, max(report.view for report in reports.values()))


class Switchover:
    """
    Hands the primary over, from any node.

    ``url_of`` gives the URL by which this node orders about a node's store.
    """

    def __init__(
        self,
        member: RaftStores,
        clock: Clock,
        pace: float,
        reports: Callable[[], Mapping[str, StoreReport]],
        url_of: Callable[[str], str],
    ) -> None:
        self._member, self._clock, self._pace = member, clock, pace
        self._slow = max(1.0, pace)
        self._reports, self._url_of = reports, url_of

    async def run(self, node: str | None) -> str:
        """
        Make ``node``'s store the primary (None: the best), and return its node once it is open.

        Raises: NotFound, BadArg, StoreDown, NoQuorum: see :func:`hand_over_to`. NoLeader, Timeout:
        Raft, or a store, did not answer in time; the primary may change yet.
        """
        facts = await self._member.look_stores()
        plan = hand_over_to(node, facts, self._member.voters(), self._reports())
        async with (
            self._linked(facts.primary) as primary,
            self._linked(plan.to.node) as chosen,
        ):
            try:
                offset = await self._pause(primary)
                await self._caught_up(chosen, offset, plan.to)
                await self._elect(plan)
                await self._opened(plan)
            finally:
                with contextlib.suppress(Error, TimeoutError):
                    async with asyncio.timeout(CONNECT_S * self._slow):
                        await primary.call("CLIENT", "UNPAUSE")
        return plan.to.node

    @contextlib.asynccontextmanager
    async def _linked(self, node: str) -> AsyncIterator[StoreConnection]:
        link = StoreConnection(
            self._url_of(node),
            "tidewarden-switchover",
            self._clock,
            called=f"store of {node}",
            patient=False,
        )
        try:
            await link.start(wait_s=CONNECT_S * self._slow)
            yield link
        finally:
            await link.stop()

    async def _pause(self, primary: StoreConnection) -> int:
        """Have the primary take no more writes; return the place in its stream."""
        async with _within(CATCH_UP_S * self._slow, "the primary did not answer"):
            paused = primary.call("CLIENT", "PAUSE", round(PAUSE_MS * self._slow), "WRITE")
            role = primary.call("ROLE")
            await paused
            name, offset, *_ = await role
        if name != b"master":
            raise StoreDown("the store that was the primary is none any more")
        return int(offset)

    async def _caught_up(self, chosen: StoreConnection, offset: int, to: StoreMember) -> None:
        limit_s = CATCH_UP_S * self._slow
        late = f"{to.node}'s store did not catch up within {limit_s:g} s"
        async with _within(limit_s, late):
            while True:
                info = parse_info(await chosen.call("INFO", "replication"))
                if info.get("master_link_status") != "up":
                    raise StoreDown(f"{to.node}'s store lost its link to the primary")
                if int(info["slave_repl_offset"]) >= offset:
                    return
                await sleep(self._clock, LOOK_S)

    async def _elect(self, plan: HandOver) -> None:
        facts, to = plan.facts, plan.to
        command = ("elect", facts.view, to.node, to.incarnation, to.incarnation, "", plan.seen)
        now = await self._member.store_command(command)
        if now.view == facts.view or now.primary != to.node:
            raise StoreDown(
                f"the primary is {now.primary}'s store, in view {now.view}: another change came"
                " first; look at `tidewarden cluster status`"
            )

    async def _opened(self, plan: HandOver) -> None:
        """Return once the chosen store is open."""
        node = plan.to.node
        async with _within(
            OPEN_S * self._pace, f"{node}'s store was made the primary and is not open yet"
        ):
            while True:
                report, facts = self._reports().get(node), self._member.store_facts()
                if report is not None and report.serves_view > plan.facts.view:
                    return
                if facts.view > plan.facts.view and facts.primary != node:
                    raise StoreDown(f"{node}'s store did not open; {facts.primary}'s took over")
                await sleep(self._clock, LOOK_S)


@contextlib.asynccontextmanager
async def _within(limit_s: float, otherwise: str) -> AsyncIterator[None]:
    """Wait for a step. Raises: Timeout: it took longer; ``otherwise`` names it."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise Timeout(f"{otherwise}; the primary stays who Raft says it is") from None
