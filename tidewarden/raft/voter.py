"""
Holds PySyncObj 0.3.17 to Raft's rules, with members that change.

What the library leaves out or does wrongly is put right in this one subclass:

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
* The newest version of the members in the log (:mod:`.membership`) says who counts for a majority,
  whose messages are taken, and whether this one is a member; the configuration's members are only
  the seed of a cluster that has none yet. The library's own change of members has no guard against
  two at once, does not tell who was removed, and would let a folder made anew vote a second time.
* Every message carries the mark of its sender's folder, and one with another mark than was
  committed for its name is answered with ``no_member`` and counts for nothing.
* Every message carries the word of its sender's cluster, drawn when that was founded. One under
  another word counts for nothing, whatever name it comes under: members that were made anew while
  the others were away may have founded a second cluster.

Each is held by ``tests/unit/raft/test_simulation_regressions.py`` or
``tests/unit/raft/test_voter_membership.py``, which the stock library fails. All of this runs in the
tick thread; :attr:`Voter.lease_until` may be read from any.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.syncobj import _COMMAND_TYPE

from tidewarden.clock import Clock

from . import files, membership
from .membership import ANOTHER_FOLDER, NOT_THERE, Members
from .pysync import MISSING_LEADER, REQUEST_DENIED, SUCCESS, library_now
from .state import Committed, RaftView, State, Times, ended_members, turn_to_ask
from .store_facts import StoreFacts, applied, read_facts
from .store_reports import Report, StoreReports
from .wire import Message, RaftTransport

logger = logging.getLogger("tidewarden.raft")

FOLLOWER, CANDIDATE, LEADER = range(3)
STATES: tuple[State, State, State] = ("follower", "candidate", "leader")
CARRYING = ("append_entries", "next_node_idx", "ping")
"""
Messages that a report goes with: a leader's heartbeat, what acknowledges it, and, to members of
this version, what followers say to each other.
"""
DRIFT = 0.9
"""
The share of an election time that a lease lasts: clocks of members may differ by a tenth in speed.
"""


class Voter(SyncObj):  # type: ignore[misc]  # the library has no types
    """
    Adds our rules, our transport and our replicated facts to the library's object.

    Its transport passes what it sends through :meth:`outgoing`. Raises: OSError: it cannot listen.
    Nothing is left open then.
    """

    transport: ClassVar[type] = RaftTransport
    stores_plain: Any = StoreFacts().plain()
    """Replicated: the facts about the stores, in plain values; a snapshot without has none."""

    def __init__(
        self,
        own: str,
        seeds: Mapping[str, str],
        conf: SyncObjConf,
        times: Times,
        clock: Clock,
        joining: bool = False,
    ) -> None:
        """
        Begin with ``seeds``, Raft addresses by name, as configured.

        ``joining``: do not stand before the log names this member.
        """
        # What is set before the library's constructor runs is ours; what is set after it is
        # replicated state.
        self.clock, self.times = clock, times
        self._begin_elections(clock.monotonic())
        self._begin_membership(own, seeds, joining)
        others = [address for name, address in seeds.items() if name != own]
        try:
            super().__init__(seeds[own], others, conf, transportClass=self.transport)
            self._follow_log()
            self._hurry_if_alone()
        except OSError:
            self._SyncObj__raftLog._destroy()
            self.close()
            raise
        self.epoch, self.holder = 0, ""
        self.stores_plain = StoreFacts().plain()

    def _begin_elections(self, now: float) -> None:
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
        self._followed, self._followed_name = now, ""
        self._acked: dict[str, float] = {}  # by member: when what it last acknowledged was sent
        self._echo: float | None = None
        self._verified: int | None = None
        self._round, self._polling, self._granted = 0, False, set[str]()
        self._stand, self._forced_term = False, -1
        self._led_term, self._led_since = -1, -math.inf
        self._beat_due = 0.0
        """When the heartbeat after the last one was due."""

    def _begin_membership(self, own: str, seeds: Mapping[str, str], joining: bool) -> None:
        self.own = own
        self.removed_because = ""
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
        self._worded: set[str] = set()  # of those, who say the word of their cluster
        self._tended: tuple[object, ...] | None = None
        """What was known when a leader last found nothing to change of the members."""
        self.apart: Mapping[str, float] = {}
        """When members were last heard under the word of another cluster, by name."""
        self._names = {address: name for name, address in seeds.items()}
        self._addresses = dict(seeds)
        self._passing_on = False
        self.seat_waits = ""
        """Who has joined and gets no vote yet, and why, as this leader sees it."""
        self.ended: frozenset[str] = frozenset()
        """Those whose processes have ended: see :func:`.state.ended_members`."""
        self._found_ended: frozenset[str] = frozenset()
        self._said_ended: dict[str, frozenset[str]] = {}
        self.reports = StoreReports()
        """What the other members say of their stores."""
        self._own_report: Report = ()
        self.stands_until = -math.inf
        """
        Until when (``clock.monotonic``) this node stands by its own report: the loop says so anew
        while it turns.
        """
        self._carriers: set[str] = set()
        """Addresses of linked members that read reports which go with other messages."""
        self._untold: set[str] = set()
        """Those of them that the newest report is yet to go to, with a message."""
        self._told: set[str] = set()
        """Addresses of members that were told something over the link that there is now."""
        self._believers: set[str] = set()
        """Addresses of linked members that take any message for a report that is stood by."""
        self._stores_read: tuple[Any, StoreFacts] = (None, StoreFacts())

    # What is replicated.

    @replicated  # type: ignore[untyped-decorator]  # the library has no types
    def claim(self, node: object, boot: object, seen: object) -> int:
        """
        Grant the next epoch to ``<node>.<boot>`` and return it.

        It is 0 for arguments that make no claim.
        """
        before = Committed(self.epoch, self.holder)
        facts = before.claimed(node, boot, seen)
        self.epoch, self.holder = facts.epoch, facts.holder
        return 0 if facts is before else facts.epoch

    @replicated  # type: ignore[untyped-decorator]  # the library has no types
    def store_command(self, command: object) -> StoreFacts:
        """Apply one command to the facts about the stores, and return them as they are then."""
        facts = applied(self.stores, self._voters_of_entry(), command)
        if facts is not self.stores:
            self.stores_plain = facts.plain()
        return self.stores

    def _voters_of_entry(self) -> frozenset[str]:
        """
        Return who votes by the newest version of the members at or before the entry being applied.

        The same on every member and at each replay, unlike what a member has adopted meanwhile.
        """
        index = self.raftLastApplied + 1  # the library counts an entry when it is applied
        versions = self._SyncObj__raftLog.versions
        found = next((members for at, members in reversed(versions) if at <= index), None)
        return frozenset() if found is None else found.voters

    @property
    def stores(self) -> StoreFacts:
        """Return the facts about the stores, as applied here. Any thread may read them."""
        read = self._stores_read
        if read[0] is not self.stores_plain:  # a command or a snapshot put others there
            plain = self.stores_plain
            read = self._stores_read = (plain, read_facts(plain))
        return read[1]

    # What is to be seen.

    def view(self, ticked: float) -> RaftView:
        """Return what is to be seen now; ``ticked``: when the last good tick was over."""
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
            removed_because=self.removed_because,
            told_version=self.told_version,
            refusal=self.refusal,
            stores=self.stores,
            reports=self.reports.changes,
            apart=self.apart,
            seat_waits=self.seat_waits if leads else "",
        )

    def strangers_refused(self) -> int:
        """Return how many connections were refused since the start."""
        refused: int = self._SyncObj__transport.strangers_refused
        return refused

    def leads(self) -> bool:
        """Return whether the library calls this node leader, which proves nothing."""
        return bool(self._isLeader())

    def knows_leader(self) -> bool:
        """Return whether the library believes in some leader."""
        return self._getLeader() is not None

    @property
    def members(self) -> Members | None:
        """
        Return the newest version of the members that this member has.

        None: the cluster is not founded, or this member has not heard of it.
        """
        return self._adopted

    def committed(self) -> bool:
        """
        Return whether the newest version of the members is committed, as far as this member knows.
        """
        versions = self._SyncObj__raftLog.versions
        return not versions or versions[-1][0] <= self.raftCommitIndex

    @property
    def word(self) -> str:
        """
        Return the word of this member's cluster, once it is known to be committed; empty: not yet.

        What was not committed may yet be founded otherwise, by the members that this one belongs
        to.
        """
        commit = self.raftCommitIndex
        versions = self._SyncObj__raftLog.versions
        return next((found.word for at, found in reversed(versions) if at <= commit), "")

    def may_stand(self) -> bool:
        """Return whether this member may be elected."""
        if self.removed_because:
            return False
        return not self._joining if self._adopted is None else self.own in self._adopted.voters

    def rest_s(self) -> float:
        """Return how long a tick may wait for messages, seconds: until something else is due."""
        if self._hurries():
            return self.times.tick_s
        if self._SyncObj__raftState == LEADER:
            due, most_s = self._SyncObj__newAppendEntriesTime, self.times.heartbeat_s
        else:  # the next heartbeat comes before it waits in vain
            due, most_s = self._SyncObj__raftElectionDeadline, 1.5 * self.times.heartbeat_s
        # what is due at a moment is done behind it: a tick just before would be for nothing
        return float(min(max(due - library_now(), 0.0) + self.times.behind_s, most_s))

    def _hurries(self) -> bool:
        """Tell whether more is under way than heartbeats between members that are linked."""
        if self._stand or self._polling or self.ended or self._found_ended or self._passing_on:
            return True
        if not self.committed() or not self._SyncObj__transport.is_calm:
            return True
        if self._SyncObj__raftState == LEADER:
            return not self._settled()
        return self._SyncObj__raftState == CANDIDATE or not self.knows_leader()

    def awaits_acks(self) -> bool:
        """
        Tell, once for each heartbeat of this leader, whether nothing but its answers is waited for.
        """
        due, self._beat_due = self._beat_due, self._SyncObj__newAppendEntriesTime
        if due == self._beat_due or self._SyncObj__raftState != LEADER or self._hurries():
            return False
        return bool(self._SyncObj__raftLog[-1][1] == self.raftCommitIndex)

    def is_sticky(self) -> bool:
        """
        Return whether a leader was heard, here or by a majority, too recently to vote for another.

        A leader whose process has ended does not count: a member that is wrong about that costs a
        lease, which is shown to people alone.
        """
        now = self.clock.monotonic()
        if self._followed_name in self.ended and not self.leads():
            return False
        return now < self.lease_until or now - self._followed < self.times.election_min_s

    # Messages: what goes out, and who is heard.

    def outgoing(self, message: Message) -> Message:
        known = {"mark": self._SyncObj__raftLog.mark, "word": self.word}
        marked = self._stamped(message) | known
        denied = (
            message["type"] == "apply_command_response"
            and message.get("error") == FAIL_REASON.REQUEST_DENIED
        )
        return marked | {"why": self.refusal} if denied else marked

    def _stamped(self, message: Message) -> Message:
        """
        Add to a message what our rules need.

        Before any member hears anything, the log is on the disk.
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

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        name = self._names.get(node.id)
        word, own = message.get("word", ""), self.word
        if word and own and word != own:
            if name is not None:
                self.apart = {**self.apart, name: self.clock.monotonic()}
            return
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
        if "word" in message:
            self._worded.add(name)
        if message["type"] == "append_entries" and message["term"] >= self.raftCurrentTerm:
            self.removed_because = ""  # whoever said so went by a change that was not committed
        if isinstance(why := message.get("why"), str):
            self.refusal = why
        self._judge(node, message)
        self._follow_log()

    def _hear_guest(self, node: Node, message: Message) -> None:
        """
        Judge a message of a peer that is no member here, but may be one of another version.

        A leader's log is taken in any case. A vote is given to a peer that has a longer log:
        without it, members that let a node in while this one was away could never elect that node.
        Any other peer is told that it is no member.
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
            self.removed_because = ""
        self._judge(node, message)
        self._follow_log()

    def no_member(self, why: str) -> Message:
        """Make the message that tells a peer that it is no member, by a committed version."""
        return {"type": "no_member", "why": why, "version": self._committed_version()}

    def _committed_version(self) -> int:
        commit = self.raftCommitIndex
        return max(
            (found.version for at, found in self._SyncObj__raftLog.versions if at <= commit),
            default=0,
        )

    def _on_no_member(self, message: Message) -> None:
        version, why = message.get("version"), message.get("why")
        if (
            not isinstance(version, int)
            or version <= self._committed_version()
            or why not in (NOT_THERE, ANOTHER_FOLDER)
        ):
            return  # it knows no more than this one
        if self.removed_because != why:
            logger.warning(
                "not a member of the cluster, says one that is (version %d of its members): %s",
                version,
                why,
            )
        self.removed_because, self.told_version = why, version

    def _judge(self, node: Node, message: Message) -> None:
        self.heard[node.id] = self.clock.monotonic()
        self._lives(self._names.get(node.id, ""))
        if "report" in message and message["type"] in CARRYING and node.id in self._names:
            self._on_store_report(node, message)
        elif message.get("stands") is True and message.get("word", "") == self.word:
            self.reports.hear_again(self._names.get(node.id, ""), self.heard[node.id])
        rule = RULES.get(message["type"])
        judged = message if rule is None else rule(self, node, message)
        try:
            if judged is not None:
                super()._SyncObj__onMessageReceived(node, judged)
        finally:
            self._echo = self._verified = None

    # One rule a message: what the library gets to see of it, or nothing. See RULES.

    def _on_append(self, node: Node, message: Message) -> Message | None:
        if message["term"] < self.raftCurrentTerm:
            self._tell_term(node)
            return None
        self.leader_heard = self._followed = self.clock.monotonic()
        self._followed_name = self._names.get(node.id, "")
        self._polling = False
        if message["term"] >= self._forced_term:
            self._stand = False
        self._echo = message.get("sent")
        if "serialized" in message:
            return message | {"commit_index": 0}
        return message if "transmission" in message else self._without_needless_cut(message)

    def _without_needless_cut(self, message: Message) -> Message:
        """
        Keep the entries that a late message would cut off the log.

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
        """Hand leadership over, as another member was asked to have it done."""
        if self._SyncObj__raftState == LEADER and self.hand_over(message["to"]):
            why = "it is not connected, or has not got everything"
            self._SyncObj__transport.send(node, {"type": "wish_denied", "why": why})

    def _on_stale_term(self, node: Node, message: Message) -> None:
        if message["term"] > self.raftCurrentTerm:
            self.retire(message["term"])

    def _on_store_report(self, node: Node, message: Message) -> None:
        if message.get("carries") is True:
            self._carriers.add(node.id)
        if message.get("believes") is True:
            self._believers.add(node.id)
        if message.get("word", "") == self.word:  # else it is of no cluster yet, or this one is
            self.reports.hear(self._names[node.id], self.heard[node.id], message.get("report"))

    def say_store(self, report: Report, now: bool = True) -> None:
        """
        Tell every member that is connected what this node says of its store.

        Unless ``now``, it goes with the next heartbeat or its acknowledgement, to whom there is
        one before the next report.
        """
        now = now or bool(self.ended)  # who is to be the primary is about to be chosen by it
        self._own_report = report
        others = self._SyncObj__otherNodes | self._SyncObj__readonlyNodes
        linked = others & self._SyncObj__connectedNodes
        for node in sorted(linked, key=lambda node: str(node.id)):
            waits = node.id in self._carriers & self._believers and node.id not in self._untold
            if now or not waits:
                self._SyncObj__transport.send(node, {"type": "store_report"} | self._tell(node))
            else:
                self._untold.add(node.id)

    def _tell(self, node: Node) -> Message:
        """
        Return the own report as every message tells it, which is about to leave.

        A member that was told nothing else yet has to know that this one reads what goes with
        other messages: else it would never send anything so.
        """
        self._untold.discard(node.id)
        self._told.add(node.id)
        return {"report": self._own_report, "carries": True, "believes": True}

    def carried(self, node: Node, message: Message) -> Message:
        """
        Return what goes with a message to ``node``.

        That is a report that it was not told yet; or that this node stands by what it told, which a
        member of a former version takes from the report alone. Nothing is stood by that it was not
        told.
        """
        believes, kind = node.id in self._believers, message["type"]
        carries = kind in CARRYING and (believes or kind != "ping")
        if node.id in self._untold:
            return self._tell(node) if carries else {}
        if not self._stands():
            return {}
        if believes and node.id in self._told:
            return {"stands": True}
        return self._tell(node) if carries and node.id in self._carriers else {}

    def _stands(self) -> bool:
        """Tell whether this node stands by its report: where its loop hangs, it does not."""
        return bool(self._own_report) and self.clock.monotonic() < self.stands_until

    # Deaths of members.

    def on_port_refused(self, node: Node) -> None:
        """Note that no process has a member's port, whose link has ended."""
        name = self._names.get(node.id)
        if name is not None and node not in self._SyncObj__connectedNodes:
            self._find_ended(self._found_ended | {name})

    def _lives(self, name: str) -> None:
        """Note that a member is heard: it has not ended, or has begun anew."""
        if name in self._found_ended:
            self._find_ended(self._found_ended - {name})

    def _find_ended(self, found: frozenset[str]) -> None:
        if found != self._found_ended:
            self._found_ended = found
            for node in sorted(self._SyncObj__otherNodes, key=lambda node: str(node.id)):
                self._say_ended(node)
            self._judge_ended()

    def _say_ended(self, node: Node) -> None:
        found = sorted(self._found_ended)
        self._SyncObj__transport.send(node, {"type": "ended", "names": found})

    def _on_ended(self, node: Node, message: Message) -> None:
        names = message.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            self._said_ended[self._names[node.id]] = frozenset(names) & set(self._names.values())
            self._judge_ended()

    def _SyncObj__onNodeConnected(self, node: Node) -> None:
        if node in self._SyncObj__connectedNodes:  # this link takes the place of another
            self._forget_link(node)
        super()._SyncObj__onNodeConnected(node)
        self._lives(self._names.get(node.id, ""))
        if self._found_ended:
            self._say_ended(node)
        if self._stands() and node in self._SyncObj__otherNodes | self._SyncObj__readonlyNodes:
            self._SyncObj__transport.send(node, {"type": "store_report"} | self._tell(node))

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:
        super()._SyncObj__onNodeDisconnected(node)
        self._said_ended.pop(self._names.get(node.id, ""), None)
        self._forget_link(node)
        self._judge_ended()

    def _forget_link(self, node: Node) -> None:
        """Forget what a member can read, and what it was told: it may be another version now."""
        for known in (self._carriers, self._believers, self._untold, self._told):
            known.discard(node.id)

    def _judge_ended(self) -> None:
        linked = {self._names.get(node.id, "") for node in self._SyncObj__connectedNodes}
        gone = ended_members(
            self.own, self._found_ended, self._said_ended, linked, self._voters_counted()
        )
        if gone == self.ended:
            return
        if more := gone - self.ended:
            logger.warning("the process of %s has ended", " and ".join(sorted(more)))
        self.ended = gone
        if self._followed_name in gone and self._SyncObj__raftState != LEADER:
            self._SyncObj__raftElectionDeadline = library_now() + self._turn_s()

    def _voters_counted(self) -> frozenset[str]:
        return frozenset(self._seeds) if self._adopted is None else self._adopted.voters

    def _turn_s(self) -> float:
        """Return the seconds until it is this member's turn to ask: its leader has ended."""
        turn = turn_to_ask(self.own, self._voters_counted(), self.ended)
        return turn * self.times.turn_s

    def _tell_term(self, node: Node) -> None:
        self._SyncObj__transport.send(node, {"type": "stale_term", "term": self.raftCurrentTerm})

    # Time: elections.

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self._follow_log()
        if not self.may_stand():
            self._stand = False
            self._SyncObj__raftElectionDeadline = math.inf
        elif self._SyncObj__raftElectionDeadline == math.inf:
            self.hold_off()
        self._tick(timeToWait)
        if self._SyncObj__raftState == LEADER:
            self._tend()
        self._follow_log()

    def _tick(self, timeToWait: float = 0.0) -> None:
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
            deadline = now + (
                self.times.turn_s + self._turn_s()
                if self._followed_name in self.ended
                else self._SyncObj__generateRaftTimeout() / 2
            )
        self._SyncObj__raftElectionDeadline = math.inf  # the library must not stand on its own
        try:
            super()._onTick(timeToWait)
        finally:
            if self._SyncObj__raftElectionDeadline == math.inf:
                self._SyncObj__raftElectionDeadline = deadline

    def _checkCommandsToApply(self) -> None:
        # Commits are counted before this, and nobody answers who votes alone: it would wait a whole
        # tick for nothing.
        super()._checkCommandsToApply()
        if (
            self._SyncObj__raftState == LEADER
            and not self._SyncObj__otherNodes
            and self._SyncObj__raftLog[-1][1] > self.raftCommitIndex
        ):
            self.wake()

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

    def hold_off(self) -> None:
        """Do not stand for election for one longest election time from now."""
        self._SyncObj__raftElectionDeadline = library_now() + self.times.election_max_s

    def retire(self, term: int) -> None:
        """
        Follow no leader yet in ``term``, if it is newer.

        A vote of the same term is never forgotten.
        """
        if term > self.raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = library_now() + self._SyncObj__generateRaftTimeout()

    def step_down(self) -> None:
        """Be a follower without a leader yet, keeping term and vote."""
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self.hold_off()

    # Leadership is handed over.

    def hand_over(self, name: str | None) -> int:
        """
        Ask the member ``name`` (``None``: another) to lead, and step down.

        Returns: a fail reason, 0 when asked.

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
        Return the member that can lead at once: the latest heard, or ``name`` alone.

        It has everything, and was heard within an election time. Stock asks any member that once
        had everything, and one that has died since would leave the cluster without a leader.
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
        Have leadership handed to ``name``, here or, when another leads, there.

        Returns: a fail reason, 0 when asked.
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
        """Hand leadership to a member that can take it, and step down at once."""
        if self.leads():
            self.hand_over(None)
            self.step_down()

    # The members, as the newest version in the log names them.

    def _follow_log(self) -> None:
        """Make the library count the members that the newest version of the log names."""
        versions = self._SyncObj__raftLog.versions
        newest = versions[-1][1] if versions else None
        if newest is self._adopted:
            return
        self._adopted = newest
        if newest is not None and self.own in newest.seats:
            self.removed_because = ""
        addresses = self._seeds if newest is None else self._reached(newest)
        self._addresses = dict(addresses)
        self._names = {address: name for name, address in addresses.items()}
        self.reports.keep(addresses)
        self._found_ended &= addresses.keys()
        seats = {} if newest is None else newest.seats
        # Who joined anew is known by what it says from now on.
        self._marks = {
            name: mark for name, mark in self._marks.items() if name in seats and seats[name].mark
        }
        self._worded &= addresses.keys()
        self.apart = {name: at for name, at in self.apart.items() if name in addresses}
        votes = addresses.keys() if newest is None else newest.voters
        voters = {addresses[name] for name in votes if name != self.own}
        watchers = {
            address for name, address in addresses.items() if name not in votes and name != self.own
        }
        self._count(voters, watchers)

    def _reached(self, members: Members) -> dict[str, str]:
        """
        Return where every member is reached.

        A member that finds itself moved goes by its configuration, for then all have been.
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

    # What a leader does for the members.

    def _tend(self) -> None:
        """Found the cluster, note the marks of members heard first, and seat those caught up."""
        if self._passing_on:
            self._passing_on = False
            self.give_up()
            return
        if not self._settled() or not self.committed():
            return
        members, own = self._adopted, {self.own: self._SyncObj__raftLog.mark}
        if members is None:
            self.propose(membership.founded(self._seeds, self._marks | own, files.new_mark()))
            return
        known = members, self._marks | own, frozenset(self._worded), self._addresses
        waiting = self._SyncObj__readonlyNodes
        if known == self._tended and not waiting:
            return
        self._tended = known
        new = members.met(self._marks | own)
        if new is members:
            new = members.seated(self._seatable(members))
        if new is members:
            new = members.moved(self._addresses)
        if new is members and members.seats.keys() <= self._worded | {self.own}:
            new = members.named(files.new_mark())
        if new is not members:
            self._tended = None  # it may be refused, or lost
            self.propose(new)

    def _seatable(self, members: Members) -> list[str]:
        """Return which members may vote: those caught up, if enough stores would be whole then."""
        caught_up = self._caught_up()
        faults = {
            name: self.stores.membership_fault("", members.voters | {name}) for name in caught_up
        }
        waiting = next((f"{name}: {fault}" for name, fault in faults.items() if fault), "")
        if waiting and waiting != self.seat_waits:
            logger.info("a member that joined gets its vote later, %s", waiting)
        self.seat_waits = waiting
        return [name for name, fault in faults.items() if not fault]

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
        """Return whether this leader takes the new version into its log."""
        if not self._settled():
            self.refusal = "this leader has committed nothing of its own yet"
        elif not self.committed():
            self.refusal = "another change is on its way"
        else:
            stores = self._stores_fault(request)
            self.refusal = stores or membership.fault(
                self._adopted, request, self.own, self._heard_within(self.times.election_max_s)
            )
            if not stores:
                self._passing_on = self._adopted is not None and self.own not in request.voters
        if self.refusal:
            logger.info("version %d of the members is refused: %s", request.version, self.refusal)
        return not self.refusal

    def _stores_fault(self, request: Members) -> str:
        """
        Return why the stores forbid that ``request`` votes, or "".

        The leader judges by the facts that it has applied, so no command may stand in its log that
        will change them before the new members count. Commands after them are judged by them.
        """
        old = self._adopted
        if old is None or request.voters == old.voters:
            return ""
        if self._store_command_waits():
            return "a decision about the stores is on its way"
        leaver = min(old.voters - request.voters, default="")
        return self.stores.membership_fault(leaver, request.voters)

    def _store_command_waits(self) -> bool:
        log, method = self._SyncObj__raftLog, self._methodToID["store_command_v0"]
        after = self.raftLastApplied + 1 - log[0][1]
        return any(files.method_of(entry[0]) == method for entry in log[max(0, after) :])

    def _SyncObj__doChangeCluster(self, request: Members, reverse: bool = False) -> bool:
        return True  # the log itself says who the members are: see _follow_log

    def _SyncObj__updateClusterConfiguration(self, newNodes: Any) -> None:
        pass  # likewise, not the snapshot

    # What the library does with its state.

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

    # The end.

    def wake(self) -> None:
        """End the wait of the tick that is under way. Any thread, as long as none closes it."""
        pipe = getattr(self, "_SyncObj__pipeNotifier", None)
        if pipe is not None:
            with contextlib.suppress(BlockingIOError):  # full: it is awake
                pipe.notify()

    def close(self) -> None:
        """
        Close the wake-up pipe, which the library leaks. After the last tick and the last proposal.
        """
        pipe = getattr(self, "_SyncObj__pipeNotifier", None)
        if pipe is not None:
            os.close(pipe._PipeNotifier__pipeR)
            os.close(pipe._PipeNotifier__pipeW)
            self._SyncObj__pipeNotifier = None


RULES: dict[str, Callable[[Voter, Node, Message], Message | None]] = {
    "append_entries": Voter._on_append,
    "next_node_idx": Voter._on_ack,
    "request_vote": Voter._on_request_vote,
    "response_vote": Voter._on_response_vote,
    "pre_vote": Voter._on_pre_vote,
    "pre_vote_ok": Voter._on_pre_vote_ok,
    "timeout_now": Voter._on_timeout_now,
    "wish": Voter._on_wish,
    "store_report": Voter._on_store_report,
    "ended": Voter._on_ended,
    "stale_term": Voter._on_stale_term,
}
