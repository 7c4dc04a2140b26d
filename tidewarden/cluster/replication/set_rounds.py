"""Plays, on the primary's node, the rounds that :mod:`.set_keeper` asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock, shared_turn, sleep_or
from tidewarden.errors import Error, StoreDown
from tidewarden.raft.store_facts import StoreFacts, StoreMember
from tidewarden.store.durability.view_library import open_command
from tidewarden.store.embedded.control_link import ControlLink, refuse_errors

from .raft_stores import RaftStores
from .set_keeper import STAMPS_APART, KeeperTimes, Open, Propose, SetKeeper, Yield
from .store_look import StoreData, acks_of
from .store_report import StoreReport

log = logging.getLogger("tidewarden.cluster")

ROUND_S = 0.7
"""A round may take so long, at pace 1 or below; if it takes longer the store hangs."""
WAIT_MS = 30
"""A round waits so long, at pace 1 or below, for acknowledgements."""
BUSY_S = 0.5
"""Groups that were seen at two looks running count as running for so long."""
LAG_S = 2
"""A store that no other follows closely for so long takes no writes, to limit the loss."""


class SetRounds:
    """
    Plays rounds while this node's store is the open primary.

    A round writes the set that counts, and asks how far each attached store has acknowledged.
    """

    def __init__(
        self,
        member: RaftStores,
        socket_path: Path,
        cluster: str,
        password: str,
        clock: Clock,
        pace: float,
        reports: Callable[[], Mapping[str, StoreReport]],
        on_yield: Callable[[str], None],
    ) -> None:
        """
        Args:
            password: of the user ``daemon``.
            reports: what each node last said of its store.
            on_yield: told why another store should be primary, when that begins.
        """
        self._member, self._cluster, self._clock = member, cluster, clock
        self._times = KeeperTimes.at(pace)
        slow = max(1.0, pace)
        self._round_s, self._wait_ms = ROUND_S * slow, round(WAIT_MS * slow)
        self._reports, self._on_yield = reports, on_yield
        self._link = ControlLink(socket_path, password, "set")
        self._keeper: SetKeeper | None = None
        """
        The keeper of the last view in which the store was open; it knows the proposals of that
        view.
        """
        self._serves = False
        self._stamp = 0
        self._seq = 0
        self._moved = False
        """Whether groups had run before the last look."""
        self._busy_until = 0.0
        self._attached: frozenset[tuple[str, ...]] = frozenset()
        self._guarded = False
        self._failing = ""
        self._wake = asyncio.Event()
        self._proposing: asyncio.Task[None] | None = None
        self.gives_up = ""
        """Why another store should be primary; empty: none should."""

    @property
    def pending(self) -> str:
        """Return the set that is about to be, or was proposed; empty: no change is under way."""
        return self._keeper.pending if self._keeper and self._serves else ""

    def serve(self, member: StoreMember, view: int, data: StoreData, *, opened_here: bool) -> None:
        """
        Note that the store is open as the primary of ``view``, at each look; rounds begin or go on.

        ``opened_here``: this process opened the view, so no process can have proposed anything
        before.
        """
        keeper = self._keeper
        if keeper is None or keeper.member != member or keeper.view != view:
            found = None if opened_here else data.in_sync
            self._keeper = SetKeeper(member, view, found, times=self._times)
            # What a process before this one sent may run later still, and must be refused then.
            apart = 0 if opened_here else STAMPS_APART
            self._stamp, self._seq = max(data.stamp, 1) + apart, data.seq
            self._guarded, self.gives_up = False, ""
            self._wake.set()
        self._serves = True
        moved, self._moved = self._moved, data.seq != self._seq
        if self._moved:
            now_s = self._clock.monotonic()
            if now_s > self._busy_until:
                self._wake.set()  # a member that acknowledges nothing shows at once
            self._seq = data.seq
            if moved:
                self._busy_until = now_s + BUSY_S

    def rest(self) -> None:
        """Note that the store is no open primary: there are no rounds."""
        self._serves, self.gives_up = False, ""

    def wake(self) -> None:
        """Play the next round at once: something has changed."""
        self._wake.set()

    def attached(self, replicas: frozenset[tuple[str, ...]]) -> None:
        """Note which stores are attached, at each look; one that came or went wakes a round."""
        if self._attached != replicas:
            self._wake.set()
        self._attached = replicas

    async def run(self) -> None:
        """Play rounds until cancelled."""
        try:
            while True:
                self._wake.clear()
                keeper, again = self._keeper if self._serves else None, False
                if keeper is not None:
                    try:
                        again = await self._round(keeper)
                        self._failing = ""
                    except StoreDown as error:
                        self._failed(str(error))
                if not again:
                    await self._rest(keeper)
        finally:
            if self._proposing is not None:
                self._proposing.cancel()
            self._link.close()

    def _failed(self, why: str) -> None:
        """Log why there was no round, once for as long as the reason stays the same."""
        if self._failing != why:
            self._failing = why
            log.info("no round of the in-sync set: %s", why)

    async def _rest(self, keeper: SetKeeper | None) -> None:
        busy = self._clock.monotonic() < self._busy_until
        rest_s = self._times.idle_round_s if keeper is None else keeper.next_s(busy)
        await sleep_or(self._wake, self._clock, shared_turn(self._clock, rest_s))

    async def _round(self, keeper: SetKeeper) -> bool:
        """Play one round; return whether another is due at once."""
        facts, voters = self._member.store_facts(), self._member.voters()
        if facts.view != keeper.view or facts.primary_member != keeper.member:
            return False
        self._stamp += 1
        # Learners, too: without, they would say how far they came once a second.
        others = max(len(facts.in_sync) - 1, len(self._attached))
        opening = open_command(
            self._cluster,
            keeper.view,
            self._stamp,
            keeper.opens(facts, voters),
            ".".join(keeper.member),
        )
        answers = await self._link.ask(
            opening,
            ("ROLE",),
            *([("WAIT", others, self._wait_ms)] if others > 0 else []),
            ("INFO", "replication"),
            limit_s=self._round_s,
        )
        refuse_errors(answers)
        if answers[1][0] != "master" or keeper is not self._keeper:
            return False
        offset, acks = int(answers[1][1]), acks_of(answers[-1])
        # as they are now: what was committed meanwhile counts
        facts, voters = self._member.store_facts(), self._member.voters()
        actions = keeper.round(
            self._clock.monotonic(),
            facts,
            voters,
            acks,
            offset,
            leaving=[node for node, report in self._reports().items() if report.leaving],
            joining=[name for name, seat in self._member.seats().items() if not seat.votes],
        )
        await self._guard(facts, voters, acks, offset)
        return self._act(keeper, actions)

    def _act(self, keeper: SetKeeper, actions: Collection[Any]) -> bool:
        again, why = False, ""
        for action in actions:
            if isinstance(action, Open):
                again = True
            elif isinstance(action, Propose):
                self._propose(keeper, action.command)
            elif isinstance(action, Yield):
                why = action.why
        began, self.gives_up = bool(why and not self.gives_up), why
        if began:
            self._on_yield(why)
        return again

    def _propose(self, keeper: SetKeeper, command: tuple[Any, ...]) -> None:
        """Propose without waiting: rounds go on meanwhile, and the facts show the outcome."""
        if self._proposing is not None:
            self._proposing.cancel()
        self._proposing = asyncio.ensure_future(self._proposed(keeper, command))

    async def _proposed(self, keeper: SetKeeper, command: tuple[Any, ...]) -> None:
        try:
            await self._member.store_command(command)
        except Error as error:
            log.info("the in-sync set: %s was proposed, its fate is unknown: %s", command, error)
            keeper.unanswered(command)
            return
        self._wake.set()

    async def _guard(
        self,
        facts: StoreFacts,
        voters: frozenset[str],
        acks: Mapping[StoreMember, int],
        offset: int,
    ) -> None:
        """
        Have the store refuse writes while no store follows, from the first whole round on.

        It limits what ``one`` loses on the minority side of a cut, and is no fence. A promotion
        begins without: the first write would be refused.
        """
        others = facts.in_sync - {facts.primary_member}
        complete = all(acks.get(one, -1) >= offset for one in others)
        wanted = len(voters) > 1 and facts.is_open(voters) and complete
        if wanted == self._guarded or (self._guarded and len(voters) > 1):
            return
        order = ("CONFIG", "SET", "min-replicas-to-write", int(wanted), "min-replicas-max-lag")
        refuse_errors(await self._link.ask((*order, LAG_S), limit_s=self._round_s))
        self._guarded = wanted
