"""
The members as the log has them: whom this one counts, hears, votes for, and whether it is one
itself.

The library's own change of members has no guard against two at once, does not tell who was removed,
and would let a folder made anew vote a second time. Here the newest version in the log
(:mod:`.membership`) holds; the configuration's members are only the seed of a cluster that has none
yet. Every message carries the mark of its sender's folder, and one with another mark than was
committed for its name is answered with ``no_member`` and counts for nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from pysyncobj import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import _COMMAND_TYPE

from tidewarden.clock import Clock

from . import files, membership
from .hardened import LEADER, HardenedSyncObj, Message, library_now
from .membership import Members
from .state import Times

logger = logging.getLogger("tidewarden.raft")

NOT_THERE, ANOTHER_FOLDER = "not there", "another folder"


class MembershipChanges(HardenedSyncObj):
    """The library's object with members that change. Raises: as the library's."""

    def __init__(
        self,
        own: str,
        seeds: Mapping[str, str],
        joining: bool,
        conf: SyncObjConf,
        transport: type,
        times: Times,
        clock: Clock,
    ) -> None:
        """
        ``seeds``: Raft addresses by name, as configured; ``joining``: do not stand before the log
        names this member.
        """
        # What is set before the library's constructor runs is ours; what is set after it is
        # replicated state.
        self.own = own
        self.outcast = ""
        """
        Why this member is none any more, or not yet: :data:`NOT_THERE`, :data:`ANOTHER_FOLDER`, or
        "".
        """
        self.told_version = 0
        """Of the members, in whose name that was said."""
        self.refusal = ""
        """Why the leader, this one or another, did not do what it was last asked for here."""
        self._seeds, self._joining = dict(seeds), joining
        self._adopted: Members | None = None
        self._marks: dict[str, str] = {}  # of those that were heard, by name
        self._names = {address: name for name, address in seeds.items()}
        self._addresses = dict(seeds)
        self._passing_on = False
        others = [address for name, address in seeds.items() if name != own]
        super().__init__(seeds[own], others, conf, transport, times, clock)
        self._follow_log()
        self._hurry_if_alone()

    # What is to be seen.

    @property
    def members(self) -> Members | None:
        """
        The newest version that this member has; None: the cluster is not founded, or it has not
        heard of it.
        """
        return self._adopted

    def committed(self) -> bool:
        """Whether that version is committed, as far as this member knows."""
        versions = self._SyncObj__raftLog.versions
        return not versions or versions[-1][0] <= self.raftCommitIndex

    def may_stand(self) -> bool:
        """Whether it may be elected."""
        if self.outcast:
            return False
        return not self._joining if self._adopted is None else self.own in self._adopted.voters

    # What the log says.

    def _follow_log(self) -> None:
        """Make the library count whom the newest version of the log names."""
        versions = self._SyncObj__raftLog.versions
        newest = versions[-1][1] if versions else None
        if newest is self._adopted:
            return
        self._adopted = newest
        if newest is not None and self.own in newest.seats:
            self.outcast = ""
        addresses = self._seeds if newest is None else self._reached(newest)
        self._addresses = dict(addresses)
        self._names = {address: name for name, address in addresses.items()}
        seats = {} if newest is None else newest.seats
        # Who joined anew is known by what it says from now on.
        self._marks = {
            name: mark for name, mark in self._marks.items() if name in seats and seats[name].mark
        }
        votes = addresses.keys() if newest is None else newest.voters
        voters = {addresses[name] for name in votes if name != self.own}
        watchers = {
            address for name, address in addresses.items() if name not in votes and name != self.own
        }
        self._count(voters, watchers)

    def _reached(self, members: Members) -> dict[str, str]:
        """
        Where everybody is. Whoever finds itself moved goes by its configuration, for then all have
        been.
        """
        addresses = members.addresses()
        if addresses.get(self.own, self._seeds[self.own]) == self._seeds[self.own]:
            return addresses
        return addresses | {
            name: address for name, address in self._seeds.items() if name in addresses
        }

    def _count(self, voters: set[str], watchers: set[str]) -> None:
        others, silent = self._SyncObj__otherNodes, self._SyncObj__readonlyNodes
        for node in [node for node in others | silent if node.id not in voters | watchers]:
            others.discard(node)
            silent.discard(node)
            self._SyncObj__connectedNodes.discard(node)
            for known in (
                self._SyncObj__raftNextIndex,
                self._SyncObj__raftMatchIndex,
                self._SyncObj__lastResponseTime,
            ):
                known.pop(node, None)
            self._acked.pop(node.id, None)
            self.heard.pop(node.id, None)
            self._SyncObj__transport.dropNode(node)
        known_here = {node.id: node for node in others | silent}
        for address in sorted(voters | watchers):
            node = known_here.get(address)
            if node is None:
                node = self._SyncObj__nodeClass(address)
                self._SyncObj__raftNextIndex[node] = self._SyncObj__raftLog[-1][1] + 1
                self._SyncObj__raftMatchIndex[node] = 0
                self._SyncObj__lastResponseTime[node] = library_now()
                self._SyncObj__transport.addNode(node)
            (others if address in voters else silent).add(node)
            (silent if address in voters else others).discard(node)
        if self._SyncObj__raftState == LEADER:
            # what a majority said was another majority's
            self.lease_until = -math.inf if others else math.inf
        self._hurry_if_alone()

    def _hurry_if_alone(self) -> None:
        if not self._SyncObj__otherNodes and self.may_stand():
            self._SyncObj__raftElectionDeadline = 0.0  # nobody to wait for

    # Who speaks.

    def outgoing(self, message: Message) -> Message:
        marked = super().outgoing(message) | {"mark": self._SyncObj__raftLog.mark}
        denied = (
            message["type"] == "apply_command_response"
            and message.get("error") == FAIL_REASON.REQUEST_DENIED
        )
        return marked | {"why": self.refusal} if denied else marked

    def no_member(self, why: str) -> Message:
        """What is said to somebody who is no member here, by a version that is committed."""
        return {"type": "no_member", "why": why, "version": self._committed_version()}

    def _committed_version(self) -> int:
        commit = self.raftCommitIndex
        return max(
            (found.version for at, found in self._SyncObj__raftLog.versions if at <= commit),
            default=0,
        )

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        name = self._names.get(node.id)
        if message["type"] == "no_member":
            self._on_no_member(message)
            return
        if name is None:
            self._hear_guest(node, message)
            return
        seat = self._adopted.seats.get(name) if self._adopted is not None else None
        mark = message.get("mark", "")
        if seat is not None and seat.mark and seat.mark != mark:
            self._SyncObj__transport.send(node, self.no_member(ANOTHER_FOLDER))
            return
        self._marks[name] = mark
        if message["type"] == "append_entries" and message["term"] >= self.raftCurrentTerm:
            self.outcast = ""  # whoever said so went by a change that was not committed
        if isinstance(why := message.get("why"), str):
            self.refusal = why
        super()._SyncObj__onMessageReceived(node, message)
        self._follow_log()

    def _hear_guest(self, node: Node, message: Message) -> None:
        """
        Somebody who is no member here: of a later version that this one has yet to hear of, or of
        an earlier one.

        A leader's log is taken in any case. A vote is given to whoever has a longer log: without
        it, those who let a member in while this one was away could never elect that member. Anybody
        else is told that it is none.
        """
        kind = message["type"]
        if kind in ("request_vote", "pre_vote"):
            _, index, term = self._SyncObj__raftLog[-1]
            if (message["last_log_term"], message["last_log_index"]) <= (term, index):
                self._SyncObj__transport.send(node, self.no_member(NOT_THERE))
                return
        elif kind == "ping":
            self._SyncObj__transport.send(node, self.no_member(NOT_THERE))
            return
        elif kind != "append_entries":
            return
        if kind == "append_entries" and message["term"] >= self.raftCurrentTerm:
            self.outcast = ""
        super()._SyncObj__onMessageReceived(node, message)
        self._follow_log()

    def _on_no_member(self, message: Message) -> None:
        version, why = message.get("version"), message.get("why")
        if (
            not isinstance(version, int)
            or version <= self._committed_version()
            or why not in (NOT_THERE, ANOTHER_FOLDER)
        ):
            return  # it knows no more than this one
        if self.outcast != why:
            logger.warning(
                "not a member of the cluster, says one that is (version %d of its members): %s",
                version,
                why,
            )
        self.outcast, self.told_version = why, version

    # Time.

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self._follow_log()
        if not self.may_stand():
            self._stand = False
            self._SyncObj__raftElectionDeadline = math.inf
        elif self._SyncObj__raftElectionDeadline == math.inf:
            self.hold_off()
        super()._onTick(timeToWait)
        if self._SyncObj__raftState == LEADER:
            self._tend()
        self._follow_log()

    def hold_off(self) -> None:
        """Do not stand for election for one longest election time from now."""
        self._SyncObj__raftElectionDeadline = library_now() + self.times.election_max_s

    # What a leader does.

    def _tend(self) -> None:
        """
        Found the cluster, learn the marks of those that are heard first, give a vote to who has
        caught up.
        """
        if self._passing_on:
            self._passing_on = False
            self.give_up()
            return
        if not self._settled() or not self.committed():
            return
        members, own = self._adopted, {self.own: self._SyncObj__raftLog.mark}
        if members is None:
            self.propose(membership.founded(self._seeds, self._marks | own))
            return
        new = members.met(self._marks | own)
        if new is members:
            new = members.seated(self._caught_up())
        if new is members:
            new = members.moved(self._addresses)
        if new is not members:
            self.propose(new)

    def _caught_up(self) -> list[str]:
        commit, match = self.raftCommitIndex, self._SyncObj__raftMatchIndex
        near = self._heard_within(self.times.election_max_s)
        waiting = self._SyncObj__readonlyNodes
        return [
            name
            for node in waiting
            if (name := self._names.get(node.id)) in near and match.get(node, 0) >= commit
        ]

    def _heard_within(self, seconds: float) -> set[str]:
        since = self.clock.monotonic() - seconds
        return {
            self._names[address]
            for address, at in self.heard.items()
            if at > since and address in self._names
        }

    def _settled(self) -> bool:
        return bool(self.raftLastApplied >= (self._SyncObj__noopIDx or math.inf))

    def propose(self, members: Members, callback: Callable[[Any, int], None] | None = None) -> None:
        """
        Have the leader, which may be another, make ``members`` of the version in force. Any thread.
        """
        self.refusal = ""
        self._applyCommand(files.entry_of(members), callback, _COMMAND_TYPE.MEMBERSHIP)

    # What the library asks of a change of members: ours, in place of its own.

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> Members | None:
        return files.members_of(command)

    def _SyncObj__changeCluster(self, request: Members) -> bool:
        """Whether this leader takes the new version into its log."""
        if not self._settled():
            self.refusal = "this leader has committed nothing of its own yet"
        elif not self.committed():
            self.refusal = "another change is on its way"
        else:
            self.refusal = membership.fault(
                self._adopted, request, self.own, self._heard_within(self.times.election_max_s)
            )
            self._passing_on = self._adopted is not None and self.own not in request.voters
        if self.refusal:
            logger.info("version %d of the members is refused: %s", request.version, self.refusal)
        return not self.refusal

    def _SyncObj__doChangeCluster(self, request: Members, reverse: bool = False) -> bool:
        return True  # the log itself says who the members are: see _follow_log

    def _SyncObj__updateClusterConfiguration(self, newNodes: Any) -> None:
        pass  # likewise, not the snapshot
