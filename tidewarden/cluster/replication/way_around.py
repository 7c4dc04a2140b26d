"""
Decides whether this node reaches the primary's host itself, or goes by way of another node.

Pure: no socket, no clock. Each turn of a node's part in the replication calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tidewarden.raft.store_facts import StoreFacts, StoreMember

from .store_report import StoreReport


@dataclass(frozen=True, slots=True)
class WayTimes:
    """Holds the times of a detour, all in seconds and all scaled by ``raft.pace``."""

    silent_s: float = 0.8
    """
    A primary's node that was not heard for so long is gone around. The leader of Raft has replaced
    it by then, if it does not hear it either.
    """
    near_s: float = 0.5
    """
    A node that was heard within this time can be asked to carry; a primary's node counts as heard
    again.
    """
    back_s: float = 5.0
    """The primary's node must be heard for so long before the detour is given back …"""
    back_s_max: float = 80.0
    """… and for twice as long, up to this, after each return that was too early."""
    early_s: float = 60.0
    """A return is too early if a detour begins again within this time."""

    @classmethod
    def at(cls, pace: float) -> WayTimes:
        """Return the times at ``pace``."""
        return cls(**{one.name: getattr(cls(), one.name) * pace for one in fields(cls)})


class WayShown(NamedTuple):
    """Holds the state of a detour, for people."""

    is_taken: bool = False
    carrier: str = ""
    """The node that carries; empty: none, or none yet."""
    why: str = ""
    """Why no node carries; empty: one does, or none was asked yet."""
    connections: int = 0
    """The number of this node's connections that take the detour."""
    carried: int = 0
    """The number of other nodes' connections that this one carries."""


@dataclass(slots=True)
class WayAround:
    """Remembers how this node goes to the primary, and since when another way would do."""

    own: str
    times: WayTimes = field(default_factory=WayTimes)
    is_taken: bool = False
    """Whether the primary is reached by way of another node."""
    primary: str = ""
    """The primary's node at the last look."""
    _began_s: float | None = None
    """
    When the first look was: a node that was not heard since may just not have sent anything yet.
    """
    _heard_since_s: float | None = None
    """Since when the primary's node is heard again; None: it is not."""
    _back_s: float = 0.0
    _given_back_s: float = float("-inf")

    def look(
        self, now_s: float, primary: str, silence: Mapping[str, float], *, leads: bool
    ) -> bool:
        """
        Return whether to go by way of another node from now on.

        ``silence``: seconds since each node was heard, this one awake; one that is not there was
        never heard. ``leads``: this node leads Raft, and replaces a primary that it does not hear.
        """
        if self._began_s is None:
            self._began_s = now_s
        if primary != self.primary:
            self.primary, self.is_taken, self._heard_since_s = primary, False, None
        silent_s = silence.get(primary, now_s - self._began_s)
        if primary in ("", self.own) or leads:
            self.is_taken = False
        elif not self.is_taken:
            if silent_s > self.times.silent_s and self.carriers(silence):
                self._begin(now_s)
        elif silent_s > self.times.near_s:
            self._heard_since_s = None
        elif self._heard_since_s is None:
            self._heard_since_s = now_s
        elif now_s - self._heard_since_s >= self._back_s:
            self.is_taken, self._given_back_s = False, now_s
        return self.is_taken

    def carriers(self, silence: Mapping[str, float]) -> frozenset[str]:
        """Return the nodes that may be asked to carry: those that are heard."""
        near_s = self.times.near_s
        heard = {node for node, silent_s in silence.items() if silent_s <= near_s}
        return frozenset(heard - {self.own, self.primary})

    def _begin(self, now_s: float) -> None:
        early = now_s - self._given_back_s < self.times.early_s
        self._back_s = min(
            2 * self._back_s if early and self._back_s else self.times.back_s,
            self.times.back_s_max,
        )
        self.is_taken, self._heard_since_s = True, None


def primary_told(
    facts: StoreFacts, reports: Mapping[str, StoreReport]
) -> tuple[int, StoreMember] | None:
    """
    Return view and store of a primary that other nodes tell of, but the facts here do not yet.

    If the leader of Raft is behind the cut link, no newer facts come. It only decides where
    requests go: their answers are confirmed by the store's own data.
    """
    found: list[tuple[int, StoreMember]] = []
    for node, report in reports.items():
        if report.serves_view > facts.view:
            found.append((report.serves_view, StoreMember(node, report.incarnation)))
        elif report.follows and report.view > facts.view:
            followed, _, incarnation = report.follows.rpartition(".")
            found.append((report.view, StoreMember(followed, incarnation)))
    return max(found, default=None)
