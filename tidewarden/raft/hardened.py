"""
PySyncObj 0.3.17 held to Raft's rules: what it leaves out or does wrongly, put right in one place.

* A node asks before it stands for election (pre-vote), and nobody votes while a leader is heard
  (stickiness): a member that lost only its own link unseats nobody.
* A message of an older term is answered with the newer one, so that an old leader hears of it.
* Acknowledgements carry their term; those of another term do not count.
* A log is cut where it conflicts, nowhere else. A snapshot's commit index is not believed before
  its log is there.
* An entry that cannot be applied is passed over, by all alike; stock tries it again for ever, on
  every member.
* A leader knows how long no other can be elected, and when it leads no more, counted from when it
  *sent* what a majority acknowledged.

Each is held by ``tests/unit/raft/test_simulation_regressions.py``, which the stock library fails.
All of this runs in the tick thread; :attr:`HardenedSyncObj.lease_until` may be read from any.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node

from tidewarden.clock import Clock

from .state import Times

logger = logging.getLogger("tidewarden.raft")

FOLLOWER, CANDIDATE, LEADER = range(3)
DRIFT = 0.9
"""
The share of an election time that a lease lasts: clocks of members may differ by a tenth in speed.
"""

Message = dict[str, Any]


def library_now() -> float:
    """
    The library's clock, seconds; looked up at each call, for the simulation puts another there.
    """
    now: float = pysyncobj.syncobj.monotonicTime()
    return now


class HardenedSyncObj(SyncObj):  # type: ignore[misc]  # the library has no types
    """
    The library's object with these rules. Its transport passes what it sends through
    :meth:`outgoing`.
    """

    def __init__(
        self,
        own: str,
        others: Iterable[str],
        conf: SyncObjConf,
        transport: type,
        times: Times,
        clock: Clock,
    ) -> None:
        # What is set before the library's constructor runs is ours; what is set after it is
        # replicated state.
        self.clock, self.times = clock, times
        now = clock.monotonic()
        self.leader_heard = now
        """When a leader was last heard, or this node last led; at first the start."""
        self.heard: dict[str, float] = {}
        """When anything last came from each member, by address."""
        self.lease_until = -math.inf
        """
        Until when (``clock.monotonic``) no other member can be elected, unless this node gives
        leadership up.
        """
        # a restart forgets whom it followed, so it counts as having heard a leader
        self._followed = now
        self._acked: dict[str, float] = {}  # by member: when what it last acknowledged was sent
        self._echo: float | None = None
        self._verified: int | None = None
        self._round, self._polling, self._granted = 0, False, set[str]()
        self._stand, self._forced_term = False, -1
        super().__init__(own, others, conf, transportClass=transport)

    def outgoing(self, message: Message) -> Message:
        """
        What is sent instead of ``message``. Before anybody hears anything, the log is on the disk.
        """
        self._SyncObj__raftLog.sync()
        kind = message["type"]
        if kind == "append_entries":
            return message | {"sent": self.clock.monotonic()}
        if kind == "next_node_idx":
            stamped = message | {"term": self.raftCurrentTerm, "sent": self._echo}
            return (
                stamped if self._verified is None else stamped | {"next_node_idx": self._verified}
            )
        if kind == "request_vote" and message["term"] == self._forced_term:
            return message | {"forced": True}
        return message

    def is_sticky(self) -> bool:
        """Whether a leader was heard, here or by a majority, too recently to vote for another."""
        now = self.clock.monotonic()
        return now < self.lease_until or now - self._followed < self.times.election_min_s

    def retire(self, term: int) -> None:
        """
        Be a follower of nobody yet in ``term``, if it is newer; a vote of the same term is never
        forgotten.
        """
        if term > self.raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = library_now() + self._SyncObj__generateRaftTimeout()

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        # Stock is in the new term before it is on the disk. Where that is full it would go on in a
        # term that nobody knows of after a restart, and take entries of it: a log that is ahead of
        # term and vote, which no member may begin with.
        self._SyncObj__raftLog.setCurrentTerm(term, voted_for)
        super()._SyncObj__setCurrentTerm(term, voted_for)

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        try:
            return super()._SyncObj__doApplyCommand(command)
        except Exception as error:
            # garbage can make a pickle raise anything, and ours raise nothing
            logger.error("an entry of the log cannot be applied, and is passed over: %s", error)
            return None

    def _SyncObj__setState(self, state: int) -> None:
        if state != LEADER:
            self.lease_until = -math.inf
        elif self._SyncObj__raftState != LEADER:
            self._acked.clear()
            self.lease_until = -math.inf if self._SyncObj__otherNodes else math.inf
        super()._SyncObj__setState(state)

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self._SyncObj__raftLog.sync()  # a leader counts itself, and who is alone nobody else
        if self._SyncObj__raftState == LEADER or not self._SyncObj__otherNodes:
            super()._onTick(timeToWait)
            return
        if self._stand:
            self._stand = False
            self._SyncObj__raftElectionDeadline = 0.0
            super()._onTick(timeToWait)
            return
        deadline, now = self._SyncObj__raftElectionDeadline, library_now()
        if deadline < now:
            # stock names a leader that has long been silent for ever
            self._SyncObj__raftLeader = None
            self._ask()
            deadline = now + self._SyncObj__generateRaftTimeout() / 2
        self._SyncObj__raftElectionDeadline = math.inf  # the library must not stand on its own
        try:
            super()._onTick(timeToWait)
        finally:
            if self._SyncObj__raftElectionDeadline == math.inf:
                self._SyncObj__raftElectionDeadline = deadline

    def _ask(self) -> None:
        """Ask all members whether they would vote for this one."""
        self._round += 1
        self._polling, self._granted = True, set()
        _, index, term = self._SyncObj__raftLog[-1]
        asked = {"type": "pre_vote", "term": self.raftCurrentTerm + 1, "round": self._round}
        for node in self._SyncObj__otherNodes:
            self._SyncObj__transport.send(
                node, asked | {"last_log_index": index, "last_log_term": term}
            )

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        self.heard[node.id] = self.clock.monotonic()
        rule = RULES.get(message["type"])
        judged = message if rule is None else rule(self, node, message)
        try:
            if judged is not None:
                super()._SyncObj__onMessageReceived(node, judged)
        finally:
            self._echo = self._verified = None

    # One rule a message: what the library gets to see of it, or nothing.

    def _on_append(self, node: Node, message: Message) -> Message | None:
        if message["term"] < self.raftCurrentTerm:
            self._tell_term(node)
            return None
        self.leader_heard = self._followed = self.clock.monotonic()
        self._polling = False
        if message["term"] >= self._forced_term:
            self._stand = False
        self._echo = message.get("sent")
        if "serialized" in message:
            return message | {"commit_index": 0}
        return message if "transmission" in message else self._without_needless_cut(message)

    def _without_needless_cut(self, message: Message) -> Message:
        """
        Stock drops everything after ``prevLogIdx``, and with a late message what this member
        acknowledged since.

        Entries that are here already are left out of the message; if all are, it is made to end
        where the log does, and what is told to the leader, and taken for committed, is only what
        the message had spoken of.
        """
        log = self._SyncObj__raftLog
        first, last = log[0][1], log[-1][1]
        prev, entries = message["prevLogIdx"], message["entries"]
        if (
            prev is None
            or not first <= prev < last
            or log[prev - first][2] != message["prevLogTerm"]
        ):
            return message
        end = prev
        for entry in entries:
            if end == last or log[end + 1 - first][2] != entry[2]:
                rest = {
                    "prevLogIdx": end,
                    "prevLogTerm": log[end - first][2],
                    "entries": entries[end - prev :],
                }
                return message | rest
            end += 1
        self._verified = end + 1
        whole = {"prevLogIdx": last, "prevLogTerm": log[last - first][2], "entries": []}
        return message | whole | {"commit_index": min(message["commit_index"], end)}

    def _on_ack(self, node: Node, message: Message) -> None:
        if message.get("term") != self.raftCurrentTerm or self._SyncObj__raftState != LEADER:
            return
        responded = self._SyncObj__lastResponseTime
        before = responded.get(node, -math.inf)
        super()._SyncObj__onMessageReceived(node, message)
        sent = message.get("sent")
        if sent is not None:
            # Stock counts from when the answer came: one that waited while this process was stopped
            # would count anew.
            responded[node] = max(before, library_now() - (self.clock.monotonic() - sent))
            self._acked[node.id] = max(sent, self._acked.get(node.id, sent))
            voters = {voter.id for voter in self._SyncObj__otherNodes}
            needed = (len(voters) + 1) // 2
            newest = sorted(
                (at for address, at in self._acked.items() if address in voters), reverse=True
            )
            if 0 < needed <= len(newest):
                self.lease_until = newest[needed - 1] + DRIFT * self.times.election_min_s

    def _on_request_vote(self, node: Node, message: Message) -> Message | None:
        if message["term"] < self.raftCurrentTerm:
            self._tell_term(node)
            return None
        return None if self.is_sticky() and not message.get("forced") else message

    def _on_pre_vote(self, node: Node, message: Message) -> None:
        _, index, term = self._SyncObj__raftLog[-1]
        if message["term"] <= self.raftCurrentTerm:
            self._tell_term(node)
        elif not self.is_sticky() and (message["last_log_term"], message["last_log_index"]) >= (
            term,
            index,
        ):
            granted = {"type": "pre_vote_ok", "term": message["term"], "round": message["round"]}
            self._SyncObj__transport.send(node, granted)

    def _on_response_vote(self, node: Node, message: Message) -> Message | None:
        return message if node in self._SyncObj__otherNodes else None

    def _on_pre_vote_ok(self, node: Node, message: Message) -> None:
        if node not in self._SyncObj__otherNodes or not self._polling:
            return
        if (message["round"], message["term"]) != (self._round, self.raftCurrentTerm + 1):
            return
        self._granted.add(node.id)
        if len(self._granted) >= (len(self._SyncObj__otherNodes) + 1) // 2:
            self._polling, self._stand = False, True

    def _on_timeout_now(self, node: Node, message: Message) -> None:
        """
        Stand at once, in the one term in which others may vote though they hear a leader: it gave
        its lease up.
        """
        if message["term"] == self.raftCurrentTerm and node == self._getLeader():
            self._stand, self._forced_term = True, self.raftCurrentTerm + 1

    def _on_wish(self, node: Node, message: Message) -> None:
        """Another member was asked to have leadership handed over."""
        if self._SyncObj__raftState == LEADER and self.hand_over(message["to"]):
            why = "it is not connected, or has not got everything"
            self._SyncObj__transport.send(node, {"type": "wish_denied", "why": why})

    def _on_stale_term(self, node: Node, message: Message) -> None:
        if message["term"] > self.raftCurrentTerm:
            self.retire(message["term"])

    def _tell_term(self, node: Node) -> None:
        self._SyncObj__transport.send(node, {"type": "stale_term", "term": self.raftCurrentTerm})


RULES: dict[str, Callable[[HardenedSyncObj, Node, Message], Message | None]] = {
    "append_entries": HardenedSyncObj._on_append,
    "next_node_idx": HardenedSyncObj._on_ack,
    "request_vote": HardenedSyncObj._on_request_vote,
    "response_vote": HardenedSyncObj._on_response_vote,
    "pre_vote": HardenedSyncObj._on_pre_vote,
    "pre_vote_ok": HardenedSyncObj._on_pre_vote_ok,
    "timeout_now": HardenedSyncObj._on_timeout_now,
    "wish": HardenedSyncObj._on_wish,
    "stale_term": HardenedSyncObj._on_stale_term,
}
