"""Changes the cluster as a whole: another member leads, or a node joins or leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tidewarden.clock import Clock, sleep
from tidewarden.errors import NoLeader, NoQuorum, NotFound, Timeout

from . import pysync
from .membership import NOT_THERE, Members
from .proposals import Proposals
from .state import RaftView, Times
from .voter import Voter

CHANGE_TRIES_S = 5.0
"""How long a change of the members is tried, at pace 1: a leader that leaves hands over first."""


class Operations:
    """
    Asks this member's thread, which asks the leader's.

    ``leader`` names who leads as far as this member knows, ``names`` are the members', ``view`` is
    what the thread saw last.
    """

    def __init__(
        self,
        own: str,
        proposals: Proposals,
        voter: Voter,
        times: Times,
        clock: Clock,
        leader: Callable[[], str | None],
        names: Callable[[], list[str]],
        view: Callable[[], RaftView | None],
    ) -> None:
        self._own, self._times, self._clock = own, times, clock
        self._proposals, self._voter = proposals, voter
        self._leader, self._names, self._view = leader, names, view

    async def transfer(self, node: str | None) -> str:
        """
        Transfer leadership to ``node``, and wait until a new leader leads.

        ``None``: to another member, the one most caught up.

        Returns: the name of the new leader; nothing is done when ``node`` leads already. Raises:
        NoLeader: this member knows of none. NotFound: no such member. Timeout: it did not take
        over.
        """
        self._member()
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
                if node in (None, leader):
                    return str(leader)
                raise Timeout(f"{node} did not take over: {leader} leads now.")
            if now >= until:
                why = (
                    pysync.REASONS.get(reason) or self._refusal() or "it did not stand for election"
                )
                raise Timeout(
                    f"{node or 'Another member'} did not take over within {limit_s:g} s: {why}."
                )
            if leader == before and now >= asked_again:
                asked_again = now + 3 * self._times.heartbeat_s
                reason = await self._proposals.ask(lambda voter: voter.wish(node))
            await sleep(self._clock, self._times.tick_s)

    async def join(self, name: str, address: str) -> int:
        """
        Let a node join that listens for Raft at ``address``.

        It gets its vote when it was heard and has everything.

        Returns: the version of the members that has it; the present one if it joins already at that
        address. Raises: Exists, NoLeader, NoQuorum.
        """

        def there(members: Members, asked: bool) -> bool:
            # Once asked for, it may have its vote before this is looked at; before, one that votes
            # is another.
            seat = members.seats.get(name)
            return (
                seat is not None
                and seat.address == address
                and (asked or not (seat.mark and seat.votes))
            )

        return await self._change(there, lambda members: members.joined(name, address))

    async def leave(self, name: str) -> int:
        """
        Have the member ``name`` be none any more. One that leads hands leadership over first.

        Returns: the version of the members without it. Raises: NotFound: it is none, or the last.
        NoLeader, NoQuorum.
        """
        self._members().left(name)  # raises what is wrong with it

        def gone(members: Members, asked: bool) -> bool:
            return name not in members.seats or (
                asked and name == self._own and self._told_version() > 0
            )

        return await self._change(gone, lambda old: old.left(name))

    async def _change(
        self,
        done: Callable[[Members, bool], bool],
        make: Callable[[Members], Members],
    ) -> int:
        """
        Propose a version of the members until one that is ``done`` is committed.

        ``done(members, whether it was proposed)``.
        """
        self._member()
        asked = False
        limit_s = CHANGE_TRIES_S * self._times.claim_s
        until = self._clock.monotonic() + limit_s
        why = refusal = ""
        unsure = False
        while self._clock.monotonic() < until:
            members = self._members()
            if done(members, asked):
                if version := self._told_version():
                    return version
                if self._committed():
                    return members.version
            elif self._committed() and self._leader() is not None:
                new, asked = make(members), True
                try:
                    await self._proposals.propose(functools.partial(self._voter.propose, new))
                except NoLeader as error:
                    why = str(error).rstrip(".")
                except Timeout:
                    why, unsure = f"no majority has answered within {limit_s:g} s", True
                refusal = self._refusal() or refusal
            await sleep(self._clock, self._times.heartbeat_s)
        if refusal and not unsure:
            raise NoQuorum(f"The members were not changed: {refusal}.")
        if asked:
            raise NoQuorum(
                f"The members' change is not committed, and may still be: {refusal or why}."
            )
        if not self._committed():
            raise NoQuorum("The members were not changed: the change before is not committed.")
        raise NoLeader("The members were not changed: this node knows of no leader.")

    def _refusal(self) -> str:
        view = self._view()
        return "" if view is None else view.refusal

    def _members(self) -> Members:
        view = self._view()
        if view is None or view.members is None:
            raise NoLeader(
                "This node does not know the cluster's members yet: it has heard no leader."
            )
        return view.members

    def _member(self) -> None:
        """Raises: NoLeader: this node is none."""
        view = self._view()
        if view is None:
            return
        left = view.members is not None and self._own not in view.members.seats
        if left or view.removed_because:
            raise NoLeader("This node is no member of the cluster any more: ask one that is.")

    def _committed(self) -> bool:
        view = self._view()
        return view is not None and view.members_committed

    def _told_version(self) -> int:
        """
        Return the version by which this node has left; 0: it has not.

        It is told of the version, for it gets no more of the log.
        """
        view = self._view()
        return 0 if view is None or view.removed_because != NOT_THERE else view.told_version
