"""
Decides, on the primary's node, who is in the in-sync set.

Pure: no socket, no clock. One :class:`SetKeeper` serves one primaryship. For each round its caller
writes what :meth:`SetKeeper.opens` returns to the store, reads the replication offset behind it,
then the replicas' acknowledgements, and hands both to :meth:`SetKeeper.round`.

Why it is safe: what is written is never less than the committed set and whatever was proposed and
may yet be committed. An answer waits for all that stood there when it was marked, so every member
of the committed set, now or later, has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tidewarden.raft.store_facts import StoreFacts, StoreMember, majority_of, read_set, set_text

EMPTY = ""
"""The set that is written while the committed one is below a majority: nothing can be confirmed."""
PROPOSALS_MAX = 3
"""How often one change is proposed before it is given up, by committing the set as it is anew."""
STAMPS_APART = 1000
"""
A process that did not open the view itself begins so far above the stamp that it finds: writes that
the process before it sent, and the store has not run yet, must be refused when they come late.
"""


@dataclass(frozen=True, slots=True)
class KeeperTimes:
    """Holds the times of the in-sync set, all in seconds and all scaled by ``raft.pace``."""

    round_s: float = 0.04
    """Seconds between two rounds while groups run, or while a change is under way."""
    idle_round_s: float = 1.0
    """Seconds between two rounds otherwise."""
    member_s: float = 0.4
    """A member that has not acknowledged for so long is taken out."""
    fresh_s: float = 0.2
    """A candidate must have acknowledged within this, and must acknowledge the next round in it."""
    propose_s: float = 1.0
    """A proposal of which nothing is heard is made again after this."""
    yield_s: float = 1.0
    """After so long without a complete round, another store had better be primary."""
    retry_s: float = 1.0
    """A rejected candidate is tried again after this, then after twice as long, up to 16 times."""

    @classmethod
    def at(cls, pace: float) -> KeeperTimes:
        """Return the times at ``pace``."""
        return cls(**{one.name: getattr(cls(), one.name) * pace for one in fields(cls)})


class Open(NamedTuple):
    """
    Asks for another round at once, because the store's data name a set that is not right any more.
    """

    members: str


class Propose(NamedTuple):
    """Asks that a command be proposed to Raft; it may be lost, or committed late."""

    command: tuple[Any, ...]


class Yield(NamedTuple):
    """Asks that another store become the primary: this one cannot complete a round."""

    why: str


Action = Open | Propose | Yield


@dataclass(slots=True)
class Pending:
    """Holds a change of the set that is under way."""

    members: frozenset[StoreMember]
    version: int
    """The version of the facts that it changes."""
    began_s: float
    joins: StoreMember | None = None
    """The candidate, until it is proposed; it may be taken back until then."""
    offset: int | None = None
    """The offset that ``joins`` has to reach: behind the first round that named it."""
    proposed_s: float | None = None
    """When the change was proposed last."""
    times_proposed: int = 0


@dataclass(slots=True)
class SetKeeper:
    """Keeps the in-sync set of one primaryship."""

    member: StoreMember
    """The primary: this node and its store's incarnation."""
    view: int
    """The view of the primaryship."""
    found: str | None = None
    """
    The set in the store's data when this keeper began; None if this process opened the view.

    A process before this one may have proposed a change that is not committed yet: until its
    proposals are known to be dead, the data keep naming at least the members that they named. The
    facts it is given have to be as new as this process (read through Raft's quorum once since its
    start).
    """
    times: KeeperTimes = field(default_factory=KeeperTimes)
    _inherited: int | None = None
    """The version under which a process before this one may have proposed."""
    _pending: Pending | None = None
    _opened: str = EMPTY
    """The set in the data of this round."""
    _acked_s: dict[StoreMember, float] = field(default_factory=dict)
    """When each store last acknowledged a round: a member this one, a learner the one before."""
    _offset: int | None = None
    """The offset of the round before."""
    _complete_s: float | None = None
    """When all members last acknowledged a round."""
    _attached: set[StoreMember] = field(default_factory=set)
    """The stores that were attached in the round before, or are members and were attached once."""
    _late: set[StoreMember] = field(default_factory=set)
    """The members that did not acknowledge the round before."""
    _round_s: float | None = None
    """When the round before was."""
    _tried: dict[StoreMember, tuple[float, float]] = field(default_factory=dict)
    """
    The candidates that were taken back: when each may be tried again, and the pause after that.
    """

    def opens(self, facts: StoreFacts, voters: frozenset[str]) -> str:
        """Return the set that the next round writes to the store, in the form of its data."""
        self._opened = self._says(facts, voters)
        return self._opened

    def round(
        self,
        now_s: float,
        facts: StoreFacts,
        voters: frozenset[str],
        acks: Mapping[StoreMember, int],
        offset: int,
        leaving: Collection[str] = (),
        joining: Collection[str] = (),
    ) -> list[Action]:
        """
        Return what to do after one round.

        ``offset``: the place in the stream behind what this round opened; ``acks``: how far each
        attached store came. ``leaving``: nodes about to stop. ``joining``: nodes that do not vote
        yet, whose stores may be in the set.
        """
        if facts.view != self.view or facts.primary_member != self.member:
            return []
        known = voters | set(joining)
        dead = self._listen(now_s, facts, known, acks, offset)
        self._settle(facts)
        if self._pending is None and self._is_inherited(facts):
            self._pending = Pending(facts.in_sync, facts.version, now_s)
        elif self._pending is None:
            self._begin(now_s, facts, voters, acks, dead, known - set(leaving))
        elif self._pending.joins is not None:
            self._await_join(self._pending, now_s, acks, offset)
        actions = self._proposal(now_s, facts)
        says = self._says(facts, voters)
        if says != self._opened:
            actions.append(Open(says))
        if why := self._gives_up(now_s):
            actions.append(Yield(why))
        return actions

    def unanswered(self, command: tuple[Any, ...]) -> None:
        """
        Note that no answer to a proposal will come: Raft has no leader, or another.

        The next round makes it again, for it is the same; it may be committed yet.
        """
        pending = self._pending
        if pending is not None and command == self._command(pending):
            pending.proposed_s = None
            pending.times_proposed -= 1

    def next_s(self, busy: bool) -> float:
        """Return the seconds to the next round; ``busy``: whether groups run."""
        settled = self._pending is None and not self._late and self.found is None
        return self.times.idle_round_s if settled and not busy else self.times.round_s

    @property
    def pending(self) -> str:
        """
        Return the set that was proposed or is about to be, as text; empty: no change is under way.
        """
        return set_text(self._pending.members) if self._pending else ""

    # What the data say.

    def _says(self, facts: StoreFacts, voters: frozenset[str]) -> str:
        pending = self._pending
        live = pending is not None and facts.version <= pending.version
        proposed = pending.members if pending is not None and live else frozenset()
        found = self.found if self._is_inherited(facts) else None
        return written_set(facts, voters, proposed, found)

    def _is_inherited(self, facts: StoreFacts) -> bool:
        """Return whether a proposal of a process before this one may yet be committed."""
        if self.found is None:
            return False
        if self._inherited is None:
            self._inherited = facts.version
        if facts.version > self._inherited:
            self.found = None
            self._inherited = None
            return False
        return True

    # What the round said.

    def _listen(
        self,
        now_s: float,
        facts: StoreFacts,
        may: Collection[str],
        acks: Mapping[StoreMember, int],
        offset: int,
    ) -> frozenset[StoreMember]:
        """
        Note which members acknowledged this round, and return the members that are to be taken out.

        Silence counts from the last success, but a pause of the rounds themselves is no member's
        silence: at the first miss at most the time of a quick round has passed. A store that was
        attached and is not is silent at once: its end of the link was closed, as that of a process
        that died is, and that of one which is stopped, slow or cut off is not.
        """
        slack_s = 2.5 * self.times.round_s
        if self._round_s is not None and now_s - self._round_s > 2 * slack_s:
            self._late.clear()
        previous, self._offset, self._round_s = self._offset, offset, now_s
        others = facts.in_sync - {self.member}
        late = {one for one in others if acks.get(one, -1) < offset}
        for one in late - self._late:
            self._acked_s[one] = max(self._acked_s.get(one, now_s), now_s - slack_s)
        if late and not self._late:
            complete_s = now_s if self._complete_s is None else self._complete_s
            self._complete_s = max(complete_s, now_s - slack_s)
        for one in others - late:
            self._acked_s[one] = now_s
        if not late:
            self._complete_s = now_s
        for one in acks.keys() - others:
            if previous is not None and acks[one] >= previous:
                self._acked_s[one] = now_s
        for forgotten in self._acked_s.keys() - others - acks.keys():
            del self._acked_s[forgotten]
        for gone in [one for one, (until, _) in self._tried.items() if until < now_s]:
            if gone not in acks:
                del self._tried[gone]
        self._late = late
        silent = {one for one in late if now_s - self._acked_s[one] > self.times.member_s}
        detached = (late & self._attached) - acks.keys()
        self._attached = (self._attached & others) | acks.keys()
        return frozenset(silent | detached | {one for one in others if one.node not in may})

    def _settle(self, facts: StoreFacts) -> None:
        """Forget a change whose fate is known: a later version was committed."""
        if self._pending is not None and facts.version > self._pending.version:
            self._pending = None
        for member in facts.in_sync & self._tried.keys():
            del self._tried[member]

    def _gives_up(self, now_s: float) -> str:
        """
        Return why another store had better be primary; empty: none had.

        It returns nothing while a change that would help waits for Raft: another primary would wait
        as well.
        """
        if not self._late or self._complete_s is None:
            return ""
        if now_s - self._complete_s <= self.times.yield_s:
            return ""
        pending = self._pending
        proposed = pending.members if pending and pending.proposed_s is not None else None
        if proposed is not None and not self._late & proposed:
            return ""
        names = ", ".join(sorted(one.node for one in self._late))
        return f"{names} acknowledge nothing"

    # Changes.

    def _begin(
        self,
        now_s: float,
        facts: StoreFacts,
        voters: frozenset[str],
        acks: Mapping[StoreMember, int],
        dead: frozenset[StoreMember],
        may: frozenset[str],
    ) -> None:
        """
        Begin a change of the set if one is due; ``may``: nodes whose stores may be taken in.

        Members are taken out only if all others acknowledge: if nobody does, it is we who are cut
        off, and the next primary would begin at the floor.
        """
        leavers = {one for one in facts.in_sync if one.node not in may and one != self.member}
        left = without(facts.in_sync, [*sorted(dead), *sorted(leavers - dead)], voters)
        if left != facts.in_sync and not left & self._late:
            self._pending = Pending(left, facts.version, now_s)
            return
        fresh = [
            one
            for one in acks
            if one not in facts.in_sync
            and one.node in may
            and one.node != self.member.node
            and now_s - self._acked_s.get(one, float("-inf")) < self.times.fresh_s
            and now_s >= self._tried.get(one, (0.0, 0.0))[0]
        ]
        if not fresh:
            return
        joins = max(fresh, key=lambda one: (one.node in voters, acks[one], one))
        kept = frozenset(one for one in facts.in_sync if one.node != joins.node) | {joins}
        grown = without(kept, sorted(dead & kept), voters)
        self._pending = Pending(grown, facts.version, now_s, joins)

    def _await_join(
        self, pending: Pending, now_s: float, acks: Mapping[StoreMember, int], offset: int
    ) -> None:
        """Check whether the candidate has caught up with the round that named it first."""
        joins = pending.joins
        assert joins is not None
        if pending.offset is None:
            pending.offset = offset
        if acks.get(joins, -1) >= pending.offset:
            pending.joins = None
            return
        if joins in acks and now_s - pending.began_s <= self.times.fresh_s:
            return
        # It was not proposed, so nothing can be committed any more: taken back at once.
        pause_s = min(
            2 * self._tried.get(joins, (0.0, self.times.retry_s / 2))[1], 16 * self.times.retry_s
        )
        self._tried[joins] = now_s + pause_s, pause_s
        self._acked_s.pop(joins, None)
        self._pending = None

    def _proposal(self, now_s: float, facts: StoreFacts) -> list[Action]:
        pending = self._pending
        if pending is None or pending.joins is not None:
            return []
        proposed_s = pending.proposed_s
        if proposed_s is not None and now_s - proposed_s < self.times.propose_s:
            return []
        pending.proposed_s = now_s
        pending.times_proposed += 1
        if pending.times_proposed <= PROPOSALS_MAX:
            return [Propose(self._command(pending))]
        # Refused each time: the members that vote have changed since. The set as it is, committed
        # anew, makes the proposal impossible; until then the data go on naming both.
        return [Propose(("change", self.view, pending.version, set_text(facts.in_sync)))]

    def _command(self, pending: Pending) -> tuple[Any, ...]:
        return "change", self.view, pending.version, set_text(pending.members)


def written_set(
    facts: StoreFacts,
    voters: frozenset[str],
    proposed: frozenset[StoreMember],
    found: str | None,
) -> str:
    """
    Return the set that the store's data must say, so that each answer waits for all of it.

    ``proposed``: the members of a change that may be committed yet. ``found``: what the data said
    when a process took over from one whose proposals may be committed yet; else None.
    """
    if not facts.is_open(voters):
        return EMPTY
    if found == EMPTY:
        return EMPTY  # Below a majority, that process may have proposed whom it did not write.
    return set_text(facts.in_sync | proposed | read_set(found or ""))


def without(
    members: frozenset[StoreMember], leave: Collection[StoreMember], voters: frozenset[str]
) -> frozenset[StoreMember]:
    """Return the set without those of ``leave`` that a majority can do without, in their order."""
    for one in leave:
        rest = members - {one}
        if len({member.node for member in rest} & voters) >= majority_of(voters):
            members = rest
    return members
