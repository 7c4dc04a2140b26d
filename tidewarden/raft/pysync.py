"""
PySyncObj 0.3.17 as we use it: one member and its settings. Its links are in ``wire``, its files in
``files`` and ``log_file``, its rules in ``steady`` and ``roll``; these alone touch its private
names (``tests/meta/test_documents.py``).

Importing it guards the library for the whole process: pickles are read by a whitelist, frames have
a longest length, dead links are noticed, and a ``.meta`` that cannot be read is an error instead of
a forgotten vote. Everything here runs in the tick thread; nothing here knows asyncio.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pysyncobj.node
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj import FAIL_REASON, SyncObjConf, replicated
from pysyncobj.node import Node

from tidewarden.clock import Clock

from . import files, inflate, resolver
from .hardened import FOLLOWER
from .membership_changes import MembershipChanges
from .state import Committed, RaftView, State, Times
from .wire import KEEPALIVE, RaftConnection, RaftTransport

SUCCESS: int = FAIL_REASON.SUCCESS
REQUEST_DENIED: int = FAIL_REASON.REQUEST_DENIED
MISSING_LEADER: int = FAIL_REASON.MISSING_LEADER
REASONS: dict[int, str] = {
    FAIL_REASON.QUEUE_FULL: "too many proposals wait",
    FAIL_REASON.MISSING_LEADER: "no leader is known",
    FAIL_REASON.DISCARDED: "another leader's entry took its place",
    FAIL_REASON.NOT_LEADER: "the leader changed",
    FAIL_REASON.LEADER_CHANGED: "the leader changed",
    FAIL_REASON.REQUEST_DENIED: "the member is not connected or not caught up",
    FAIL_REASON.UNKNOWN_OUTCOME: "its outcome is unknown",
}
STATES: tuple[State, State, State] = ("follower", "candidate", "leader")


class Voter(MembershipChanges):
    """
    One member's Raft: the library's object with our rules, our transport and our replicated facts.

    Raises: OSError: it cannot listen. Nothing is left open then.
    """

    transport: ClassVar[type] = RaftTransport

    def __init__(
        self,
        own: str,
        seeds: Mapping[str, str],
        conf: SyncObjConf,
        times: Times,
        clock: Clock,
        joining: bool = False,
    ) -> None:
        # What is set before the library's constructor runs is ours; what is set after it is
        # replicated state.
        self._led_term, self._led_since = -1, float("-inf")
        try:
            super().__init__(own, seeds, joining, conf, self.transport, times, clock)
        except OSError:
            self._SyncObj__raftLog._destroy()
            self.close()
            raise
        self.epoch, self.holder = 0, ""

    @replicated  # type: ignore[untyped-decorator]  # the library has no types
    def claim(self, node: object, boot: object, seen: object) -> int:
        """
        Grant the next epoch to ``<node>.<boot>``; returns it, or 0 for arguments that make no
        claim.
        """
        before = Committed(self.epoch, self.holder)
        facts = before.claimed(node, boot, seen)
        self.epoch, self.holder = facts.epoch, facts.holder
        return 0 if facts is before else facts.epoch

    def sight(self, ticked: float) -> RaftView:
        """What is to be seen now; ``ticked``: when the last good tick was over."""
        leads = self._isLeader()
        if leads:
            self.leader_heard = ticked
            if self._led_term != self.raftCurrentTerm:
                self._led_term, self._led_since = self.raftCurrentTerm, ticked
        else:
            self._led_term = -1
        known = self._getLeader()
        return RaftView(
            state=STATES[self._SyncObj__raftState],
            term=self.raftCurrentTerm,
            leader=None if known is None else self._names.get(known.id),
            settled=leads and self.raftLastApplied >= self._SyncObj__noopIDx,
            commit=self.raftCommitIndex,
            facts=Committed(self.epoch, self.holder),
            ticked=ticked,
            leader_heard=self.leader_heard,
            led_since=self._led_since,
            heard={
                self._names[address]: at
                for address, at in self.heard.items()
                if address in self._names
            },
            members=self.members,
            members_committed=self.committed(),
            outcast=self.outcast,
            told_version=self.told_version,
            refusal=self.refusal,
        )

    def strangers_refused(self) -> int:
        """How many connections were refused since the start."""
        refused: int = self._SyncObj__transport.strangers_refused
        return refused

    def leads(self) -> bool:
        """Whether the library calls this node leader: no proof of anything."""
        return bool(self._isLeader())

    def knows_leader(self) -> bool:
        """Whether the library believes in some leader."""
        return self._getLeader() is not None

    def step_down(self) -> None:
        """Be a follower of nobody yet, keeping term and vote."""
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self.hold_off()

    def hand_over(self, name: str | None) -> int:
        """
        Ask the member ``name`` (``None``: another) to lead, and step down. Returns a fail reason, 0
        when asked.

        The lease ends before the question leaves: the others vote for who was asked though they
        hear a leader.
        """
        answers: list[int] = []
        heir = self._heir(name)
        if heir is None:
            return REQUEST_DENIED
        lease_until, self.lease_until = self.lease_until, float("-inf")
        self.transferLeadership(heir, lambda _, reason: answers.append(reason))
        if answers[0] == SUCCESS:
            self.step_down()
        else:
            self.lease_until = lease_until
        return answers[0]

    def _heir(self, name: str | None) -> Node | None:
        """
        Who can lead at once: it has everything, and was heard within an election time. The latest
        heard, or ``name`` alone.

        Stock asks whoever once had everything, and who has died since would leave the cluster
        without a leader.
        """
        last, near = self._SyncObj__raftLog[-1][1], self._heard_within(self.times.election_min_s)
        match = self._SyncObj__raftMatchIndex
        ready = [
            node
            for node in self._SyncObj__otherNodes
            if (found := self._names.get(node.id)) in near
            and name in (None, found)
            and match.get(node) == last
        ]
        return max(ready, key=lambda node: (self.heard[node.id], node.id), default=None)

    def wish(self, name: str | None) -> int:
        """
        Have leadership handed to ``name``, here or, when another leads, there. Returns a fail
        reason, 0 when asked.
        """
        leader = self._getLeader()
        self.refusal = ""
        if self.leads():
            return self.hand_over(name)
        if leader is None or not self._SyncObj__transport.send(
            leader, {"type": "wish", "to": name}
        ):
            return MISSING_LEADER
        return SUCCESS

    def give_up(self) -> None:
        """Hand leadership to whoever can take it and step down at once."""
        if self.leads():
            self.hand_over(None)
            self.step_down()

    def close(self) -> None:
        """
        Close the wake-up pipe, which the library leaks. After the last tick and the last proposal.
        """
        pipe = getattr(self, "_SyncObj__pipeNotifier", None)
        if pipe is not None:
            os.close(pipe._PipeNotifier__pipeR)
            os.close(pipe._PipeNotifier__pipeW)
            self._SyncObj__pipeNotifier = None


def configure(folder: Path, bind: str, password: str, times: Times) -> SyncObjConf:
    """
    The library's settings.

    Args: ``folder``: where journal and dump lie; ``bind``: ``host:port`` to listen on, nothing
    else; ``password``: encrypts and authenticates every frame.
    """
    return SyncObjConf(
        autoTick=False,
        appendEntriesPeriod=times.heartbeat_s,
        raftMinTimeout=times.election_min_s,
        raftMaxTimeout=times.election_max_s,
        leaderFallbackTimeout=times.fallback_s,
        # Followers are silent to each other, and the stock transport closes a silent link just when
        # the first vote request comes along it, which wastes the first election. Ours watches links
        # itself.
        connectionTimeout=3600,
        connectionRetryTime=times.retry_s,
        tcp_keepalive=KEEPALIVE,
        appendEntriesUseBatch=False,  # a proposal leaves at once
        commandsWaitLeader=False,
        commandsQueueSize=1000,
        journalFile=str(folder / "raft.journal"),
        fullDumpFile=str(folder / "raft.dump"),
        useFork=False,  # a fork of a threaded process may hang
        # compaction is not crash-safe, and tens of entries a day need none
        logCompactionMinEntries=10**9,
        logCompactionMinTime=10**9,
        # asks ``roll`` wherever the library would change its members itself
        dynamicMembershipChange=True,
        bindAddress=bind,
        password=password,
        preferredAddrType="ipv4",
        maxBindRetries=1,
    )


def _guard() -> None:
    files.guard()
    pysyncobj.tcp_connection.zlib = inflate
    pysyncobj.node.globalDnsResolver = lambda: resolver.NAMES
    pysyncobj.tcp_server.TcpConnection = pysyncobj.transport.TcpConnection = RaftConnection


_guard()
