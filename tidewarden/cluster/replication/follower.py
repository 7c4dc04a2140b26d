"""Brings a node's own store into the role that the facts give it, and reports its state."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidewarden.clock import Clock
from tidewarden.errors import StoreDown
from tidewarden.raft.store_facts import StoreFacts, StoreMember, set_text
from tidewarden.store.embedded import discarded

from . import next_role
from .awake_time import AwakeTime
from .local_store import LocalStore, format_fault
from .raft_stores import RaftStores
from .store_look import StoreData, StoreLook
from .store_report import StoreReport
from .store_route import StoreRoute

log = logging.getLogger("tidewarden.cluster")

SILENT_S = 0.7
"""A store that has not answered for so long, at pace 1, should not be primary."""
DISK_LOOK_S, DISK_KEPT_S = 1.0, 60.0
"""
Seconds between two looks at the room on the disk; and how long a full disk is reported, because a
copy that did not fit is removed.
"""
STEPS_MAX = 4
"""The most steps of one turn; each is followed by another look."""


@dataclass(slots=True)
class StoreState:
    """
    Holds a node's knowledge of its own store; the look is None while the store does not answer.
    """

    look: StoreLook | None = None
    answered_s: float = 0.0
    """When the store last answered, or was asked since."""
    why: str = ""
    """The trouble with the store, or the event that it waits for."""
    another_please: bool = False
    data: StoreData | None = None
    """The data by the last look at the store once it had loaded them."""
    continues: tuple[str, ...] = ()
    disk: str = ""
    """Word that the store's disk is full, or was just now; empty: it has room."""


class Follower:
    """
    Looks at one store in turns, and takes the steps that :mod:`.next_role` decides.
    """

    def __init__(
        self,
        member: RaftStores,
        store: LocalStore,
        clock: Clock,
        awake: AwakeTime,
        pace: float,
        route: StoreRoute,
        report_of: Callable[[str], StoreReport | None],
        on_event: Callable[[str], None],
    ) -> None:
        self._member, self._store, self._clock, self._awake = member, store, clock, awake
        self._silent_s = SILENT_S * pace
        self._route, self._report_of, self._on_event = route, report_of, on_event
        self._followed = 0
        """The view in which this process gave the store its primary; 0: it gave none."""
        self._let_in = ""
        """``view incarnation`` in which this process let clients in."""
        self.opened: tuple[int, StoreMember] | None = None
        """The view that this process opened last, and the start of the store then."""
        self.state = StoreState(answered_s=clock.monotonic())
        self.misses = False
        """Whether the store did not answer the last look. An order that it refuses is an answer."""
        self._disk_looked_s = self._disk_full_s = -math.inf
        self._cut_short = False
        """Whether a write of the store's log failed, and the log was not begun anew since."""

    async def turn(self, facts: StoreFacts | None) -> None:
        """
        Look, and take the steps that are due; ``facts`` is None before the barrier.

        Raises nothing that the store does: :attr:`state` says it.
        """
        self._look_at_disk()
        try:
            look = await self._look()
            for _ in range(STEPS_MAX):
                if facts is None:
                    self.state.why = "it waits until Raft has a leader that answers"
                    break
                if not await self._step(facts, look):
                    break
                look = await self._look()
        except (StoreDown, OSError) as error:
            self._missed(facts, error)

    def _look_at_disk(self) -> None:
        now_s, state = self._clock.monotonic(), self.state
        if now_s - self._disk_looked_s < DISK_LOOK_S:
            return
        self._disk_looked_s = now_s
        if fault := self._store.disk_fault():
            if not state.disk:
                self._on_event(f"{self._member.name}'s store: {fault}")
            state.disk, self._disk_full_s = fault, now_s
        elif state.disk and now_s - self._disk_full_s > DISK_KEPT_S:
            state.disk = ""
            log.info("%s's store has room on its disk again", self._member.name)

    def member_of(self, look: StoreLook) -> StoreMember:
        """Return the store as a member of the set."""
        return StoreMember(self._member.name, look.incarnation)

    async def _look(self) -> StoreLook:
        state = self.state
        if not self.misses:  # it was not asked since it answered: that is no silence of its own
            state.answered_s = self._clock.monotonic()
        self.misses = True
        look = await self._store.look()
        self.misses = False
        if look.node != self._member.name:
            raise StoreDown(f"the store in {self._store.folder} is of the node {look.node!r}")
        if state.look is None or state.look.incarnation != look.incarnation:
            state.continues = await asyncio.to_thread(self._store.continues, look.incarnation)
            self._followed, state.data = 0, None
        state.look, state.answered_s = look, self._clock.monotonic()
        if look.disk_fault:
            self._cut_short = True
        elif self._cut_short:
            self._cut_short = False
            await self._store.rewrite_log()
        state.data = look.data or state.data
        if look.is_whole and self._store.was_syncing():
            self._store.became_whole()
            kept = await asyncio.to_thread(discarded.settle, self._store.folder)
            for place, missed in kept:
                self._say_kept(place, missed)
        return look

    def _say_kept(self, place: Path, missed: bool) -> None:
        """Log the data that were set aside: a warning only if they may be missed."""
        said = f"data that {self._member.name}'s store alone had were set aside in {place}"
        if missed:
            self._on_event(
                f"{said}: what was acknowledged may be among them, and not in the primary"
            )
        else:
            log.info("%s; what was acknowledged under quorum or fsync is in the primary", said)

    async def _step(self, facts: StoreFacts, look: StoreLook) -> bool:
        """Take one step; return whether there may be another at once."""
        name = self._member.name
        primary = self._report_of(facts.primary)
        same_place = primary is not None and self._route.leads(look.place, primary.address)
        key = f"{facts.view} {look.incarnation}"
        step = next_role.next_step(
            name, facts, look, primary, (self._followed, same_place), self._let_in == key
        )
        state = self.state
        state.another_please = False
        match step:
            case next_role.Stay(why, another_please):
                state.why, state.another_please = why, another_please
                if not self._followed and not look.follows_nobody and look.role == "slave":
                    self._followed = facts.view
                return False
            case next_role.Promote():
                return await self._promote(facts, look, key)
            case next_role.LetIn():
                await self._store.let_in()
                self._let_in = key
            case next_role.Demote():
                self._on_event(f"{name}'s store is the primary no more; view {facts.view} began")
                await self._store.demote()
                self._let_in, self._followed = "", 0
            case next_role.Detach():
                await self._store.detach()
                self._followed = 0
            case next_role.Follow(address, diverged):
                missed = _may_be_missed(facts, look.data, primary)
                await self._follow(facts, look, address, missed if diverged else None)
                return False
        state.why = ""  # not before: what is refused again and again is said once
        return True

    async def _promote(self, facts: StoreFacts, look: StoreLook, key: str) -> bool:
        fault = format_fault(look.data.format if look.data else "", self._store.folder)
        if fault:
            self.state.why, self.state.another_please = fault, True
            return False
        is_open = facts.is_open(self._member.voters())
        member = self.member_of(look)
        in_sync = set_text(facts.in_sync) if is_open else ""
        await self._store.promote(facts.view, in_sync, member)
        # Whoever keeps the set has to know that nobody before this process opened the view.
        self.opened = facts.view, member
        self._let_in, self._followed, self.state.why = key, 0, ""
        self._on_event(f"{member.node}'s store is the primary, in view {facts.view}")
        return True

    async def _follow(
        self, facts: StoreFacts, look: StoreLook, address: str, missed: bool | None
    ) -> None:
        """
        Let the store follow the primary; set its diverged data aside first.

        ``missed``: whether the diverged data may be missed; None: they have not diverged.
        """
        if missed is not None and look.data is not None:
            await asyncio.to_thread(
                discarded.set_aside,
                self._store.folder,
                look.data.view,
                look.data.seq,
                ".".join(self.member_of(look)),
                self._clock.unix_ms(),
                missed=missed,
            )
        self._route.lead(address)
        await self._store.follow(*self._route.place(address))
        self._followed = facts.view
        self.state.why = f"it begins to follow {facts.primary}'s store"

    def _missed(self, facts: StoreFacts | None, error: Exception) -> None:
        """Note that the store did not answer, or refused an order."""
        state = self.state
        why = self._store.log_damage() or str(error)
        if state.why != why:
            log.warning("own store: %s", why)
        state.why = why
        silent_s = self._awake.since(state.answered_s)
        if self._store.connected and silent_s <= self._silent_s:
            return
        state.look = None
        if facts is None:
            return
        if facts.primary == self._member.name:
            state.another_please = True
        elif next_role.is_open(facts, self._report_of(facts.primary)) and self._store.give_up_log():
            self._on_event(
                f"{self._member.name}'s store begins empty, and copies the primary: {why}"
            )

    def report(
        self, facts: StoreFacts | None, *, fsync: str, address: str, gives_up: str, leaving: bool
    ) -> StoreReport:
        """
        Return the report for the other nodes.

        ``gives_up``: why the primary cannot keep its set; empty: it can. ``leaving``: the node is
        about to stop.
        """
        state, look = self.state, self.state.look
        another_please = state.another_please or bool(gives_up)
        why = state.disk or state.why or gives_up
        if look is None:
            return StoreReport(
                another_please=another_please,
                leaving=leaving,
                fsync=fsync,
                address=address,
                why=why,
            )
        data = look.data or StoreData()
        is_open = facts is not None and self.is_open(facts)
        followed = facts is not None and self._followed == facts.view and look.link_up
        return StoreReport(
            incarnation=look.incarnation,
            continues=state.continues,
            loading=look.loading,
            view=data.view,
            seq=data.seq,
            founding=data.founding,
            offset=look.offset,
            role=look.role,
            serves_view=facts.view if facts is not None and is_open else 0,
            follows=".".join(facts.primary_member) if facts is not None and followed else "",
            sync_share=round(look.sync_share, 2),
            fsync=fsync,
            pid=look.pid,
            another_please=another_please,
            leaving=leaving,
            address=address,
            why=why,
        )

    def is_open(self, facts: StoreFacts) -> bool:
        """Return whether the store is the facts' primary, and lets clients in."""
        look = self.state.look
        return (
            look is not None
            and next_role.serves(facts, look)
            and self._let_in == f"{facts.view} {look.incarnation}"
        )


def _may_be_missed(facts: StoreFacts, data: StoreData | None, primary: StoreReport | None) -> bool:
    """
    Return whether diverged data may have acknowledged writes that the primary has not.

    A store that took over in order had every acknowledged write, so the diverged writes were never
    confirmed. It is otherwise before a last resort, and with data of another history.
    """
    if data is None or primary is None:
        return True
    return bool(facts.loss) or data.view < facts.began or data.founding != primary.founding
