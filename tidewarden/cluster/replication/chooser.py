"""Chooses the primary on the node that leads Raft: it proposes the command of :mod:`.election`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidewarden.clock import Clock, shared_turn, sleep_or
from tidewarden.errors import Error

from .awake_time import AwakeTime
from .election import Choice, Election, ElectionTimes
from .raft_stores import RaftStores
from .store_report import ReadReports, StoreReport

log = logging.getLogger("tidewarden.cluster")

ASK_S = 0.03
"""
Seconds between two looks while another store must be primary, or no node leads that could choose
one.
"""
CALM_ASK_S = 0.1
"""The same, at pace 1 or above, while all is well, or another node leads."""
SUSPECT_S = 0.25
"""
A primary's node that was not heard for so long, at pace 1, is watched closely: it is heard ten
times a second, and a leader that stalls again and again must know for how long it was awake.
"""


class Chooser:
    """Proposes primaries while this node leads; its looks say when this process stood still."""

    def __init__(
        self,
        member: RaftStores,
        clock: Clock,
        awake: AwakeTime,
        pace: float,
        recover_s: float,
        on_event: Callable[[str], None],
    ) -> None:
        self._member, self._clock, self._awake = member, clock, awake
        self._times = ElectionTimes.at(pace)
        self._calm_s = max(ASK_S, CALM_ASK_S * min(1.0, pace))
        self._suspect_s = SUSPECT_S * pace
        self._recover_s, self._on_event = recover_s, on_event
        self._woken = asyncio.Event()
        self._began_s = clock.monotonic()
        self._election: Election | None = None
        self._said = ""
        self._read = ReadReports()
        self._due_s = 0.0
        """
        When the next judgement is due whether another store must be primary, unless something
        changes.
        """
        self.why = ""
        """Why no store can be primary; empty: one can, or this node does not lead."""

    def wake(self) -> None:
        """Look at once: something has changed."""
        self._woken.set()

    def reports(self) -> dict[str, StoreReport]:
        """Return each node's last report of its store, however old."""
        return self._read.all(self._member.store_reports())

    def silence(self, since_s: float) -> dict[str, float]:
        """Return the seconds since each node said something, or since ``since_s``, if later."""
        heard = {node: at for node, (at, _) in self._member.store_reports().items()}
        return {node: self._awake.since(max(at, since_s)) for node, at in heard.items()}

    async def run(self) -> None:
        """Propose whenever another must be primary, until cancelled."""
        try:
            while True:
                woken = self._woken.is_set()
                self._woken.clear()
                choice = self._choice(woken)
                if choice.command is not None:
                    await self._propose(choice.command, choice.why)
                else:
                    await self._rest()
        finally:
            self._awake.rest()

    async def choose(self, word: str) -> tuple[Choice, Mapping[str, StoreReport]]:
        """
        Return the choice of the last resort on an operator's word, and the reports behind it.

        The reports are of the nodes that are heard. ``word``: a node, or empty for the one whose
        data came furthest. Any node may ask. Raises: NoLeader, Timeout: no member can say what the
        facts are.
        """
        facts = await self._member.look_stores()
        reports, now_s = self.reports(), self._clock.monotonic()
        silence = self.silence(float("-inf"))
        asked = Election(now_s - 10 * self._times.continuation_s, self._times)
        for at_s in (now_s - 5 * self._times.continuation_s, now_s):
            # twice: a store that restarted whole is waited for, and has been
            choice = asked.decide(
                facts, self._member.voters(), reports, silence, at_s, word, self._member.ended()
            )
            if choice.command is not None:
                break
        dead_s = self._times.dead_s
        return choice, {node: one for node, one in reports.items() if silence[node] <= dead_s}

    def _choice(self, woken: bool) -> Choice:
        """
        Return what to propose now, if anything; ``woken``: something has changed.

        Without a change, and while the primary cannot have been silent for long, nothing is judged.
        """
        self._awake.look()
        now_s = self._awake.now_s()
        if not self._member.is_leader():
            self._election, self.why = None, ""
            return Choice()
        if self._election is None:
            self._election = Election(now_s, self._times, self._recover_s)
        elif not woken and self._clock.monotonic() < self._due_s:
            return Choice()
        choice = self._election.decide(
            self._member.store_facts(),
            self._member.voters(),
            self.reports(),
            self.silence(self._began_s),
            now_s,
            ended=self._member.ended(),
        )
        self._due_s = 0.0
        if self._election.is_calm and choice.command is None and not choice.why:
            heard = self._member.store_reports().get(self._member.store_facts().primary)
            self._due_s = heard[0] + self._suspect_s if heard is not None else 0.0
        why = "" if choice.command is not None else choice.why
        if why != self.why:
            self.why = why
            if why:
                self._on_event(f"no store can take the writes: {why}")
        return choice

    async def _propose(self, command: tuple[Any, ...], why: str) -> None:
        if why != self._said:
            self._said = why
            self._on_event(why)
        self._awake.rest()
        try:
            await self._member.store_command(command)
        except Error as error:
            log.warning("%s was proposed, its fate is unknown: %s", command, error)
            await self._rest()

    async def _rest(self) -> None:
        now_s = self._clock.monotonic()
        until_s = shared_turn(self._clock, self._calm_s) if self._is_calm() else now_s + ASK_S
        if self._election is not None and self._due_s > now_s:
            until_s = min(until_s, self._due_s)
        await sleep_or(self._woken, self._clock, until_s)

    def _is_calm(self) -> bool:
        """Return whether another node leads, or this one leads and all is well."""
        if self._election is not None:
            return self._due_s > self._clock.monotonic()
        leader = self._member.leader()
        return not (leader in (None, self._member.name) or self._member.ended())
