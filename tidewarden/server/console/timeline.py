"""Keeps the events of the cluster, as this node heard them: elections, failovers, joins, losses."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tidewarden.clock import Clock

KEPT = 200
ALIVE_MS = 2500
"""A node of which neither Raft nor the store has heard for so long is silent."""


class Happening(msgspec.Struct):
    """Tells one thing that has happened."""

    at_ms: int
    kind: Annotated[
        str,
        msgspec.Meta(
            description="started, elected, leaderless, joined, left, restarted, silent, back, or a"
            " kind of events about stores, such as store.elected"
        ),
    ]
    text: str


class Timeline:
    """Keeps the last :data:`KEPT` happenings in memory; :meth:`look` finds them in a status."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._kept: deque[Happening] = deque(maxlen=KEPT)
        self._epoch = -1
        self._leader = ""
        self._boots: dict[str, int] = {}
        self._states: dict[str, str] = {}
        self._silent_ms: dict[str, int] = {}

    def note(self, kind: str, text: str) -> None:
        """Add an event that has just happened."""
        self._kept.append(Happening(self._clock.unix_ms(), kind, text))

    def all(self) -> list[Happening]:
        """Return the kept events, the latest first."""
        return list(reversed(self._kept))

    def silent_since_ms(self, name: str) -> int:
        """Return since when a node has been silent; 0: it is not."""
        return self._silent_ms.get(name, 0)

    def look(self, status: Mapping[str, Any]) -> None:
        """Note the changes since the last look."""
        members: Mapping[str, Mapping[str, Any]] = status["members"]
        first = self._epoch < 0
        self._look_at_leader(str(status["leader"]), int(status["epoch"]), first)
        for name in members.keys() - self._states.keys():
            if not first:
                self.note("joined", f"{name} takes part {_how(members[name])}")
        for name in list(self._states.keys() - members.keys()):
            self.note("left", f"{name} takes part no more")
            del self._states[name]
            self._boots.pop(name, None)
            self._silent_ms.pop(name, None)
        for name, member in members.items():
            self._look_at(name, member, state_of(name, status), first)

    def _look_at_leader(self, leader: str, epoch: int, first: bool) -> None:
        if first:
            who = (
                f"{leader} leads under epoch {epoch}" if leader and epoch else "no leader is known"
            )
            self.note("started", f"{self._node} was started; {who}")
        elif epoch > self._epoch and leader:
            self.note("elected", f"{leader} leads under epoch {epoch}")
        elif self._leader and not leader:
            self.note("leaderless", f"nobody leads; {self._leader} did")
        if leader or first or epoch == self._epoch:
            self._epoch = max(self._epoch, epoch)
        self._leader = leader

    def _look_at(self, name: str, member: Mapping[str, Any], state: str, first: bool) -> None:
        before = self._states.get(name)
        boot, known = int(member["boot"]), self._boots.get(name, 0)
        if boot > known:
            self._boots[name] = boot
            if known and not first:
                self.note("restarted", f"{name} was started again")
        if state == "unknown":
            self._states.setdefault(name, state)
            return
        if state == "silent" and before not in ("silent", "unmet", None):
            self.note("silent", f"{name} is not heard any more")
        if state == "up" and before == "silent":
            self.note("back", f"{name} is heard again")
        if state == "silent":
            self._silent_ms.setdefault(name, self._clock.unix_ms())
        else:
            self._silent_ms.pop(name, None)
        self._states[name] = state


def state_of(name: str, status: Mapping[str, Any]) -> str:
    """
    Return the state of a node as seen from here: ``up``, ``silent``, ``unmet`` or ``unknown``.

    It is unknown if only the store could tell and does not answer.
    """
    member = status["members"][name]
    heard_ms = heard_ms_of(member)
    if name == status["node"] or (heard_ms is not None and heard_ms < ALIVE_MS):
        return "up"
    if not status["store"]["up"]:
        return "unknown"
    return "silent" if member["met"] else "unmet"


def heard_ms_of(member: Mapping[str, Any]) -> int | None:
    """Return how long ago a node was heard, by Raft or at the store; None: never, or this one."""
    raft_s, store_ms = member["raft_heard_s"], member["store_age_ms"]
    found = [] if raft_s is None else [round(raft_s * 1000)]
    if store_ms >= 0:
        found.append(store_ms)
    return min(found, default=None)


def _how(member: Mapping[str, Any]) -> str:
    return "and votes" if member["votes"] else "as a worker, or learns"
