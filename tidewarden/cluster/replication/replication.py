"""
Keeps a node's part of the replicated stores, while the node runs.

One task looks at the node's own store and brings it into its role, whenever something has changed:
facts, another node's word, who has ended, or that the store closed its connection. Without, it
looks ten times a second while anything is under way, and twice while nothing is. One keeps the
in-sync set while that store is the primary; one chooses the primary while the node leads Raft. They
share the facts and the reports, which Raft's member has.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidewarden.clock import Clock, shared_turn, sleep, sleep_or
from tidewarden.config.load import Config
from tidewarden.duties import Duties
from tidewarden.errors import Error, StoreDown
from tidewarden.peer_line import Mac
from tidewarden.raft.store_facts import StoreFacts, StoreMember
from tidewarden.store.embedded import discarded, stop_notice
from tidewarden.store.embedded.credentials import DAEMON, StoreCredentials
from tidewarden.store.embedded.detour import Carrier

from . import next_role
from .awake_time import AwakeTime
from .chooser import Chooser
from .detours import Detours
from .follower import Follower
from .last_resort import LastResort
from .local_store import LocalStore
from .primary_finder import ReplicatedPrimary
from .raft_stores import RaftStores
from .set_rounds import SetRounds
from .store_changes import StoreChange
from .store_report import StoreReport
from .store_route import StoreRoute
from .store_status import StoreStatus
from .switchover import Switchover
from .way_around import primary_told

log = logging.getLogger("tidewarden.cluster")

TURN_S = 0.1
"""Seconds between two looks at the own store, at pace 1 or below, while anything is under way."""
REST_S = 0.5
"""The same while nothing is under way: see :meth:`Replication._rests`."""
STANDS_S = 0.35
"""A node at rest stands by its report for so long, at pace 1, after the next look is due."""
HURRIED_TURN_S = 0.02
"""
The same while the primary's node has ended, because its store's link ends at about the same time,
and while the own store does not answer, until it is given up.
"""
LEAVE_S = 2.0
"""The primary may take so long, at pace 1, to let a store that stops leave the set."""


class Replication:
    """
    Keeps one node's part; :attr:`finder` leads the node's links to the primary.

    Call everything in the event loop that runs ``member``, and :meth:`start` once that has started.
    """

    def __init__(
        self,
        member: RaftStores,
        folder: Path,
        socket_path: Path,
        address: str,
        credentials: StoreCredentials,
        config: Config,
        clock: Clock,
        duties: Duties,
        library: bytes,
        *,
        detour_mac: Mac | None = None,
        on_change: Callable[[StoreChange], None] | None = None,
        recover_s: float = 0.0,
    ) -> None:
        """
        Supervise no store, but decide its role.

        Args:
            folder: of this node's store, which another part runs, or is about to.
            address: ``host:port`` at which other nodes reach it.
            duties: keep this node's part going.
            library: the scripts that the store has as the primary, for ``FUNCTION LOAD``.
            detour_mac: proves to other nodes who asks them to carry; None: none is asked.
            on_change: told of each change of the primary or the set.
            recover_s: so long after no store fits, a majority of the stores is enough; 0: never.
        """
        self._member, self._clock, self._config = member, clock, config
        self._duties = duties
        self._folder, self._socket_path, self._address = folder, socket_path, address
        self._credentials = credentials
        self._pace = pace = config.raft.pace
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        self._barrier = False
        """Whether the facts were read through Raft's quorum since the start."""
        self._leaving = self._stopping = False
        self._store_stops = ""
        """The start of the store that is about to be stopped; empty: none is."""
        self._preparing: asyncio.Task[None] | None = None
        self._told: object = None
        self._written: tuple[int, int] = (0, 0)
        """View and mark of the store's data at the last look."""
        self._turn_s = TURN_S * min(1.0, pace)
        """The seconds to the next look."""
        self._said: StoreReport | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.finder = ReplicatedPrimary(f"cluster {config.cluster.name}", pace)
        self.seen = StoreStatus(
            member.name,
            member,
            clock,
            pace=pace,
            on_change=on_change,
            proposal=lambda: self._rounds.pending,
            stuck=lambda: self._chooser.why,
            way=lambda: self._detours.shown(),
        )
        """The state of the stores for status, metrics and the doctor."""
        self._route = StoreRoute(config.node, folder)
        self._store = store = self._local_store(library)
        awake = AwakeTime(clock, pace)
        self._chooser = Chooser(member, clock, awake, pace, recover_s, _event)
        self._detours = Detours(member, self._chooser, clock, pace, config.node, detour_mac)
        self._elsewhere: tuple[int, StoreMember] | None = None
        """What :meth:`_told_of` returned at the last look."""
        self._follower = Follower(
            member, store, clock, awake, pace, self._route, self._report_of, _event
        )
        self._rounds = self._set_rounds()
        self._switchover = Switchover(member, clock, pace, self._chooser.reports, self._order_url)
        self._last_resort = LastResort(member, self._chooser)

    def _local_store(self, library: bytes) -> LocalStore:
        config = self._config
        return LocalStore(
            self._folder,
            self._socket_path,
            config.cluster.name,
            self._credentials.daemon,
            config.store,
            self._pace,
            library,
            self._woken.set,
        )

    def _set_rounds(self) -> SetRounds:
        return SetRounds(
            self._member,
            self._socket_path,
            self._config.cluster.name,
            self._credentials.daemon,
            self._clock,
            self._pace,
            self._chooser.reports,
            self._yields,
        )

    # Its life.

    async def start(self) -> None:
        """Begin; who is primary shows by :attr:`finder`."""
        self._member.on_stores = self._on_stores
        await self._detours.start()
        works = {
            "own store": self._turns,
            "in-sync set": self._rounds.run,
            "choosing the primary": self._chooser.run,
            "facts of the stores": self._pass_barrier,
        }
        self._tasks = [self._duties.begin(name, work) for name, work in works.items()]

    async def run(self) -> None:
        """Run for ever; raise the defect of ours that has ended one of the tasks for good."""
        # cancelled, it leaves them: an orderly stop needs them to the last
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self, *, gracefully: bool, store_ends: bool) -> None:
        """
        End this node's part.

        Args:
            gracefully: hand the primary over before, where that can be.
            store_ends: the store stops, too: it leaves the set before, so that nobody waits for it.
        """
        if gracefully and self._tasks:
            await self.hand_over()
            if store_ends:
                await self._leave()
        tasks, self._tasks = self._tasks, []
        if self._preparing is not None:
            tasks.append(self._preparing)
        self._member.on_stores = lambda: None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._detours.stop()
        self._store.close()

    async def hand_over(self) -> None:
        """Hand the primary over if this node's store is it; from then on it is the last choice."""
        self._stopping = True
        self._woken.set()
        await self._give_up_primary()

    async def _give_up_primary(self) -> None:
        if self._member.store_facts().primary != self._member.name:
            return
        try:
            node = await self._switchover.run(None)
        except Error as error:
            log.warning("the primary could not be handed over before the stop: %s", error)
            return
        log.info("handed the primary over to %s", node)

    async def _leave(self) -> None:
        """Ask the primary to have this store leave the set; wait for that, but not for long."""
        self._leaving = True
        self._woken.set()
        await self._left()

    async def _left(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S * self._pace):
                while self._can_leave(self._member.store_facts()):
                    self._changed.clear()
                    await self._changed.wait()

    def _can_leave(self, facts: StoreFacts) -> bool:
        """Return whether the primary can do without this store, and has not said so yet."""
        name, voters = self._member.name, self._member.voters()
        if name not in facts.nodes_in_sync or facts.primary == name:
            return False
        left = frozenset(member for member in facts.in_sync if member.node != name)
        return facts.change(voters, facts.view, facts.version, left) is not facts

    # The tasks.

    async def _pass_barrier(self) -> None:
        """Read the facts through Raft's quorum once: what was applied before may be old."""
        while not self._barrier:
            try:
                await self._member.look_stores()
                self._barrier = True
            except Error as error:
                log.debug("no facts of the stores yet: %s", error)
                await sleep(self._clock, TURN_S)
        self._woken.set()

    async def _turns(self) -> None:
        while True:
            self._woken.clear()
            await self._turn()
            await sleep_or(self._woken, self._clock, shared_turn(self._clock, self._turn_s))

    def _next_s(self) -> float:
        """Return the seconds to the next look, fewer while an election waits for its report."""
        ended = self._member.store_facts().primary in self._member.ended()
        waits = self._follower.misses and self._follower.state.look is not None
        if ended or waits:
            return HURRIED_TURN_S * min(1.0, self._pace)
        return (REST_S if self._rests() else TURN_S) * min(1.0, self._pace)

    def _rests(self) -> bool:
        """
        Return whether nothing is under way here, so that the next event may be waited for.

        Nothing is written, the store is whole and in sync, the primary is open, all is well with
        Raft, and nobody is about to stop.
        """
        facts, look = self._facts(), self._follower.state.look
        data = None if look is None else look.data
        before, self._written = self._written, (data.view, data.seq) if data else (0, 0)
        if facts is None or look is None or data is None or before != self._written:
            return False
        if self._leaving or self._stopping or self._store_stops or self.finder.fault:
            return False
        if self._follower.state.why or not look.is_whole or look.disk_fault:
            return False
        if self._follower.member_of(look) not in facts.in_sync or self._rounds.pending:
            return False
        return (
            next_role.is_open(facts, self._report_of(facts.primary))
            and self._member.leader() is not None
            and not self._member.ended()
            and self._detours.hears(facts.primary)
            and not self._detours.port_to(facts.primary)
        )

    async def _turn(self) -> None:
        facts = self._facts()
        await self._follower.turn(facts)
        self._heed_notice()
        self._look_around()
        self._keep_set()
        self._turn_s = self._next_s()
        self._say()

    def _look_around(self) -> None:
        """Find out how the primary is reached, and log a change of the way."""
        before, self._elsewhere = self._elsewhere, self._told_of()
        if self._detours.look(self._primary()) or self._elsewhere != before:
            self._tell_finder()
        goes = self._detours.serves or self._elsewhere is not None
        lacking = self._member.quorum_fault()
        fault = lacking or ("" if goes else self.seen.cut_off())
        self.finder.note_fault(fault, alone=bool(lacking))

    def _primary(self) -> str:
        """Return the node whose store takes the writes, as far as is known here."""
        told = self._told_of()
        return self._member.store_facts().primary if told is None else told[1].node

    def _told_of(self) -> tuple[int, StoreMember] | None:
        """Return a primary of which other nodes tell, while the facts here do not yet."""
        told = primary_told(self._member.store_facts(), self._chooser.reports())
        return None if told is None or told[1].node == self._member.name else told

    def _heed_notice(self) -> None:
        """Prepare for the end of a store that another process is about to stop."""
        look = self._follower.state.look
        own = "" if look is None else look.incarnation
        if own and stop_notice.is_given(self._folder) and own != self._store_stops:
            self._store_stops = own
            self._preparing = asyncio.create_task(self._prepare_stop(), name="the store's stop")
        elif own and own != self._store_stops:
            self._store_stops = ""

    async def _prepare_stop(self) -> None:
        await self._give_up_primary()
        self._woken.set()
        await self._left()
        with contextlib.suppress(OSError):  # who waits for it, waits for so long at most
            stop_notice.take_away(self._folder)

    def _facts(self) -> StoreFacts | None:
        return self._member.store_facts() if self._barrier else None

    def _keep_set(self) -> None:
        """Have the set kept while the own store is the open primary."""
        look, facts = self._follower.state.look, self._facts()
        if facts is None or look is None or look.data is None or not self._follower.is_open(facts):
            if not (look is not None and look.loading):
                self._rounds.rest()
            return
        own = self._follower.member_of(look)
        self._rounds.serve(
            own, facts.view, look.data, opened_here=self._follower.opened == (facts.view, own)
        )
        self._rounds.attached(look.replicas)

    def _say(self) -> None:
        """Tell the other nodes of the own store; at once if they may have to act on it."""
        report = self._follower.report(
            self._facts(),
            fsync=self._config.store.fsync,
            address=self._address,
            gives_up=self._rounds.gives_up,
            leaving=self._leaving or bool(self._store_stops),
        )
        report = dataclasses.replace(report, stopping=self._stopping or bool(self._store_stops))
        now = self._said is None or report.acted_on != self._said.acted_on
        self._said = report
        rests = self._turn_s >= REST_S * min(1.0, self._pace)
        self._member.say_store(
            report.plain(), now, self._turn_s + STANDS_S * self._pace if rests else 0.0
        )

    def _yields(self, why: str) -> None:
        """Ask that another store be the primary: the set cannot be kept here."""
        _event(f"{self._member.name} asks that another store be the primary: {why}")
        self._woken.set()

    def _on_stores(self) -> None:
        """Note that facts, voters or a report changed."""
        self.seen.look()
        self._tell_finder()
        reports = self._chooser.reports()
        told = (
            self._member.store_facts(),
            self._member.voters(),
            self._member.ended(),
            {node: report.acted_on for node, report in reports.items()},
        )
        if told == self._told:
            return
        self._told = told
        self._changed.set()
        self._woken.set()
        self._chooser.wake()
        self._rounds.wake()

    def _tell_finder(self) -> None:
        facts, node = self._member.store_facts(), self._primary()
        report = self._report_of(node)
        if self._told_of() is not None and report is not None and report.address:
            self._lead_to(node, report)
        elif not facts.view:
            self.finder.tell("", self._chooser.why or self.seen.fault())
        elif (
            report is None
            or report.serves_view != facts.view
            or report.incarnation != facts.incarnation
        ):
            self.finder.tell("", f"{facts.primary}'s store is not open yet, in view {facts.view}")
        else:
            self._lead_to(node, report)

    def _lead_to(self, node: str, report: StoreReport) -> None:
        user, password, by = "default", self._credentials.client, self._detours.port_to(node)
        self.finder.tell(self._url(node, report.address, user, password, by), "")

    def _report_of(self, node: str) -> StoreReport | None:
        return self._chooser.reports().get(node)

    def _url(self, node: str, address: str, user: str, password: str, by: int = 0) -> str:
        if node == self._member.name:
            path = quote(str(self._socket_path))
            return f"unix://{quote(user)}:{quote(password, safe='')}@{path}"
        return self._route.url(address, user, password, by)

    def _order_url(self, node: str) -> str:
        report = self._report_of(node)
        if report is None or not report.address:
            raise StoreDown(f"nothing was heard of {node}'s store yet")
        return self._url(node, report.address, DAEMON, self._credentials.daemon)

    @property
    def carrier(self) -> Carrier | None:
        """Return the part that carries other nodes' connections; None: there is none."""
        return self._detours.carrier

    # What operators ask: see :class:`tidewarden.server.services.StoreOperations`.

    async def switchover(self, node: str | None) -> str:
        """
        Hand the primary to that node's store (None: to the best); return the new primary's node.

        Raises: see :meth:`Switchover.run`.
        """
        return await self._switchover.run(node)

    async def choice(self, node: str | None) -> dict[str, Any]:
        """Return what :meth:`recover` would do. Raises: see :meth:`LastResort.choice`."""
        return await self._last_resort.choice(node)

    async def recover(self, node: str | None, begin_empty: bool = False) -> dict[str, Any]:
        """Make a store primary that is not in sync. Raises: see :meth:`LastResort.recover`."""
        return await self._last_resort.recover(node, begin_empty)

    async def confirm(self) -> str:
        """Note that an operator knows of the loss; return the loss. Raises: NoLeader, Timeout."""
        return await self._last_resort.confirm()

    async def discarded(self) -> list[dict[str, Any]]:
        """Return the data that this node's store set aside, the oldest first."""
        return await asyncio.to_thread(discarded.listed, self._folder)

    def facts(self) -> StoreFacts:
        """Return who is primary and in sync, as it is known here."""
        return self._member.store_facts()

    def copy_url(self) -> str:
        """
        Return where all the data may be copied: this node's store if it is in sync, or the primary.

        A secret. Raises: StoreDown: neither is known.
        """
        facts, name = self._member.store_facts(), self._member.name
        own = self._report_of(name)
        whole = own and not own.loading and StoreMember(name, own.incarnation) in facts.in_sync
        return self._order_url(name if whole else facts.primary)


def _event(text: str) -> None:
    log.warning("%s", text)
