"""
Three or five simulated hosts with stores, Raft, writers and faults, on a clock of steps, by seed.

What is checked: whoever serves as the primary of the newest view has every write that was answered.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidewarden.raft.store_facts import StoreFacts, applied, majority_of
from tidewarden.store.durability.set_reading import Primaryship, primaryship_of, read_group

from .simulated_node import REPORT_S, SimulatedNode
from .simulated_store import SimulatedStore

STEP_S = 0.005
COMMIT_S = 2.0
FAULTS = (
    "kill store", "stop store", "kill host", "power cut", "lose disk", "cut off", "cut raft",
    "freeze process", "restart process", "hold stream", "hold acks", "kill all stores",
)  # fmt: skip


@dataclass
class Writer:
    """A client at one node: a few writes, then groups until they are answered or given up."""

    node: str
    rng: random.Random
    next_s: float = 0.0
    known: Primaryship | None = None
    store: SimulatedStore | None = None
    start: int = 0
    view: int = 0
    ids: tuple[int, ...] = ()
    until_s: float = 0.0
    offset: int | None = None
    """Behind the mark of the flight under way."""
    role: list[Any] | None = None
    """What its second ROLE was answered."""
    look_s: float = 0.0


class World:
    """Plays one seed."""

    def __init__(
        self,
        seed: int,
        hosts: int,
        bad: str = "",
        faults: tuple[str, ...] = FAULTS,
        worst: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.bad, self.faults = bad, faults
        self.now_s = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count(1)
        names = [f"n{at}" for at in range(hosts)]
        self.voters = frozenset(names)
        self.stores = {name: SimulatedStore(name, self.rng) for name in names}
        self.nodes = {
            name: SimulatedNode(
                name, self.stores[name], self.propose, self.stores.__getitem__, self.voters,
                worst=worst, near=bad == "near",
            )
            for name in names
        }  # fmt: skip
        self.writers = [Writer(name, self.rng) for name in names]
        self.log = [StoreFacts()]
        self.applied = dict.fromkeys(names, 0)
        self.leader, self.leaderless_s = names[0], 0.0
        self.raft_cut: set[str] = set()
        self.cut: set[str] = set()
        self.held: set[tuple[str, str, str]] = set()
        """(what, from, to): "stream" or "acks" that do not come through."""
        self.host_down: set[str] = set()
        self.failed: set[str] = set()
        """Hosts that lost something, until they are in the set again."""
        self.oked: dict[int, int] = {}
        self.answered_s: list[float] = []
        self.checked = self.faults_done = 0
        self.lost: list[int] = []
        self.story: list[str] = []
        for name in names:
            self.boots(name)

    # Time.

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.numbers), what))

    def tell(self, words: str) -> None:
        self.story.append(f"{self.now_s:7.3f} {words}")

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STEP_S
            while self.heap and self.heap[0][0] <= self.now_s:
                heapq.heappop(self.heap)[2]()
            for store in self.stores.values():
                self.replicates(store)
            self.leads()
            for node in self.nodes.values():
                if node.awake:
                    self.lives(node)
            for writer in self.writers:
                self.writes(writer)
            self.check()

    # Links.

    def reaches(self, one: str, other: str) -> bool:
        return one == other or not {one, other} & self.cut

    def in_raft(self, name: str) -> bool:
        return self.nodes[name].awake and name not in self.raft_cut | self.cut

    def quorum(self) -> list[str]:
        return [name for name in sorted(self.nodes) if self.in_raft(name)]

    def replicates(self, store: SimulatedStore) -> None:
        master = store.master
        stream = hears = True
        if master is not None:
            linked = self.reaches(store.node, master.node)
            stream = linked and ("stream", master.node, store.node) not in self.held
            hears = linked and ("acks", store.node, master.node) not in self.held
        store.tick(self.now_s, stream, hears, self.rng.randrange(1, 12))

    # Raft.

    def propose(self, node: SimulatedNode, command: tuple[Any, ...]) -> None:
        if self.rng.random() < 0.03:
            return
        slow = self.rng.random() < 0.05
        delay_s = self.rng.uniform(0.3, 2.0) if slow else self.rng.uniform(0.004, 0.03)
        self.later(delay_s, lambda: self.commits(node.name, command))

    def commits(self, name: str, command: tuple[Any, ...]) -> None:
        if len(self.quorum()) < majority_of(self.voters):
            return
        if not self.in_raft(name) and self.rng.random() < 0.5:
            return
        before = self.log[-1]
        after = applied(before, self.voters, command)
        if after is before:
            return
        self.log.append(after)
        self.tell(f"commit {command}")
        for member in after.in_sync:
            store = self.stores[member.node]
            if store.up and member.incarnation in (str(store.start), *store.continues):
                self.failed.discard(member.node)
        if after.loss and command[0] == "recover":
            kept = self.stores[after.primary].data.writes
            self.oked = {one: view for one, view in self.oked.items() if one in kept}
        for node in sorted(self.nodes):
            self.later(self.rng.uniform(0.002, 0.06), lambda node=node: self.learns(node))

    def learns(self, name: str) -> None:
        node = self.nodes[name]
        if not self.in_raft(name) or node.facts is None:
            return
        at = self.applied[name]
        ahead = len(self.log) - 1
        self.applied[name] = ahead if self.rng.random() < 0.7 else min(at + 1, ahead)
        if self.applied[name] < ahead:
            self.later(self.rng.uniform(0.01, 0.1), lambda: self.learns(name))
        node.facts = self.log[self.applied[name]]
        node.next_turn_s = self.now_s

    def leads(self) -> None:
        quorum = self.quorum()
        if len(quorum) < majority_of(self.voters):
            return
        if not self.in_raft(self.leader):
            if not self.leaderless_s:
                self.leaderless_s = self.now_s + self.rng.uniform(0.5, 1.0)
            if self.now_s < self.leaderless_s:
                return
            self.leader = self.rng.choice(quorum)
            self.nodes[self.leader].election = None
        self.leaderless_s = 0.0
        node = self.nodes[self.leader]
        command = node.choose(self.now_s)
        if command is not None:
            self.tell(f"{self.leader} proposes {command}")
            self.propose(node, command)

    # Nodes.

    def boots(self, name: str) -> None:
        node = self.nodes[name]
        self.host_down.discard(name)
        if not node.up:
            self.process_begins(name)
        self.later(self.rng.uniform(0.05, 0.3), lambda: self.store_starts(name))

    def store_starts(self, name: str) -> None:
        store = self.stores[name]
        if not store.up and name not in self.host_down:
            store.starts(self.now_s)

    def process_begins(self, name: str) -> None:
        if name in self.host_down:
            return
        self.nodes[name].begins(self.now_s)
        self.later(self.rng.uniform(0.01, 0.05), lambda: self.barrier(name))

    def barrier(self, name: str) -> None:
        node = self.nodes[name]
        if not node.up or node.facts is not None:
            return
        if not self.in_raft(name) or len(self.quorum()) < majority_of(self.voters):
            self.later(0.05, lambda: self.barrier(name))
            return
        self.applied[name] = len(self.log) - 1
        node.facts = self.log[-1]

    def lives(self, node: SimulatedNode) -> None:
        if self.now_s >= node.next_turn_s:
            node.turn(self.now_s)
        node.keep(self.now_s)
        report = node.report() if self.now_s >= node.next_report_s - REPORT_S + 0.02 else None
        if report is None or (report == node.said and self.now_s < node.next_report_s):
            return
        node.said, node.next_report_s = report, self.now_s + REPORT_S
        node.heard[node.name] = self.now_s, report
        for other in sorted(self.nodes):
            if other != node.name and self.in_raft(node.name):
                delay_s = self.rng.uniform(0.001, 0.01)
                self.later(delay_s, lambda other=other: self.hears(other, node.name, report))

    def hears(self, name: str, of: str, report: Any) -> None:
        if self.in_raft(name):
            self.nodes[name].heard[of] = self.now_s, report
            self.nodes[name].next_turn_s = min(self.nodes[name].next_turn_s, self.now_s + STEP_S)

    # Clients.

    def writes(self, writer: Writer) -> None:
        if self.now_s < writer.next_s or not self.nodes[writer.node].awake:
            return
        if writer.known is None:
            self.begins_group(writer)
            return
        store = writer.store
        assert store is not None
        lost = not store.up or store.start != writer.start or store.role != "master"
        if lost or self.now_s > writer.until_s:
            writer.known, writer.next_s = None, self.now_s + 0.02
            return
        if self.now_s < writer.look_s or not self.reaches(writer.node, store.node):
            return
        if not store.answers:
            return
        if writer.offset is None:
            self.marks(writer, store)
            return
        if writer.role is None:
            writer.role = store.role_answer()
            if self.rng.random() < 0.5:  # else what is behind it is answered at once
                writer.look_s = self.now_s + self.rng.choice((0.005, 0.02))
                return
        data = store.data
        seen = [str(data.view).encode(), data.says.encode(), data.author.encode()]
        answers = None, [b"master", writer.offset, []], 0, writer.role, seen
        if self.confirmed(answers, writer, store):
            self.oked |= dict.fromkeys(writer.ids, writer.view)
            self.answered_s.append(self.now_s)
            writer.known, writer.next_s = None, self.now_s + self.rng.uniform(0.005, 0.03)
            return
        writer.offset = writer.role = None

    def marks(self, writer: Writer, store: SimulatedStore) -> None:
        """What stands before a flight's WAIT: the mark and the first ROLE."""
        writer.offset = store.write(("mark", next(self.numbers)))
        writer.look_s = self.now_s + self.rng.choice((0.005, 0.01, 0.06))

    def begins_group(self, writer: Writer) -> None:
        facts = self.nodes[writer.node].facts
        writer.next_s = self.now_s + 0.02
        if facts is None or not facts.view:
            return
        store = self.stores[facts.primary]
        if not store.answers or store.role != "master" or store.loads is not None:
            return
        if not self.reaches(writer.node, store.node):
            return
        data = store.data
        known = primaryship_of([store.info(), (str(data.view).encode(), data.author.encode())])
        if known is None or known.view != facts.view:
            return
        writer.ids = tuple(next(self.numbers) for _ in range(self.rng.randrange(1, 5)))
        for number in writer.ids:
            store.write(("write", number))
        writer.known, writer.store, writer.start = known, store, store.start
        writer.view, writer.until_s, writer.role = data.view, self.now_s + COMMIT_S, None
        writer.next_s = writer.look_s = self.now_s
        self.marks(writer, store)  # with the writes, as they were sent

    def confirmed(self, answers: Any, writer: Writer, store: SimulatedStore) -> bool:
        if self.bad == "count":
            acks = sum(place >= answers[1][1] for place in store.acks.values())
            return acks + 1 >= majority_of(self.voters)
        return read_group(answers, writer.known).complete

    # What must not be.

    def check(self) -> None:
        """The primary of the newest view has every answered write, as soon as it serves."""
        facts = self.log[-1]
        if facts.view == self.checked or not facts.view:
            return
        store = self.stores[facts.primary]
        serves = store.answers and store.role == "master" and str(store.start) == facts.incarnation
        if serves and store.data.view == facts.view:
            self.checked = facts.view
            self.compare(store)

    def compare(self, store: SimulatedStore) -> None:
        missing = self.oked.keys() - store.data.writes
        if missing and not self.lost:
            self.lost = sorted(missing)
            self.tell(f"LOST {len(missing)} of {len(self.oked)} at {store.node}")

    # Faults.

    def harm(self) -> None:
        """One fault, somewhere; it heals by itself."""
        rng = self.rng
        self.faults_done += 1
        kind = rng.choice(self.faults)
        primary = self.log[-1].primary
        name = primary if primary and rng.random() < 0.6 else rng.choice(sorted(self.nodes))
        others = len(self.failed | self.host_down | {name})
        if kind in ("power cut", "lose disk", "kill host") and others > (len(self.nodes) - 1) // 2:
            kind = "kill store"
        self.tell(f"{kind} {name}")
        for_s = rng.uniform(0.3, 2.5)
        store, node = self.stores[name], self.nodes[name]
        if kind == "kill store":
            self.kills_store(name)
        elif kind == "kill all stores":
            for each in sorted(self.stores):
                self.kills_store(each)
        elif kind == "stop store":
            store.stopped = store.up
            self.later(for_s, lambda: setattr(store, "stopped", False))
        elif kind in ("kill host", "power cut", "lose disk"):
            self.host_down.add(name)
            node.up = False
            if kind == "kill host":
                store.ends()
            else:
                self.failed.add(name)
                (store.loses_power if kind == "power cut" else store.loses_disk)()
            self.later(for_s, lambda: self.boots(name))
        elif kind in ("cut off", "cut raft"):
            cut = self.cut if kind == "cut off" else self.raft_cut
            cut.add(name)
            self.later(for_s, lambda: self.rejoins(name, cut))
        elif kind == "freeze process":
            node.frozen = True
            self.later(for_s, lambda: self.thaws(name))
        elif kind == "restart process":
            if node.up:
                node.up = False
                self.later(rng.uniform(0.05, 0.5), lambda: self.process_begins(name))
        else:
            self.holds("stream" if kind == "hold stream" else "acks", name, for_s)

    def holds(self, what: str, name: str, for_s: float) -> None:
        other = self.rng.choice([one for one in sorted(self.nodes) if one != name])
        pair = (what, name, other) if what == "stream" else (what, other, name)
        self.held.add(pair)
        self.later(for_s, lambda: self.held.discard(pair))

    def kills_store(self, name: str) -> None:
        self.stores[name].ends()
        self.later(self.rng.uniform(0.05, 0.3), lambda: self.store_starts(name))

    def rejoins(self, name: str, cut: set[str]) -> None:
        cut.discard(name)
        self.learns(name)

    def thaws(self, name: str) -> None:
        self.nodes[name].frozen = False
        self.learns(name)

    def hurts(self) -> None:
        """The fault that is chosen to hurt: a stream held, then the primary's host is gone."""
        primary = self.log[-1].primary
        if not primary or self.host_down or self.failed:
            return
        self.faults_done += 1
        members = sorted(self.log[-1].nodes_in_sync - {primary})
        if not members:
            return
        pair = "stream", primary, self.rng.choice(members)
        self.held.add(pair)
        self.tell(f"holds {pair}, then kills {primary}")

        def dies() -> None:
            self.host_down.add(primary)
            self.nodes[primary].up = False
            self.stores[primary].ends()
            self.held.discard(pair)
            self.later(self.rng.uniform(1.5, 2.5), lambda: self.boots(primary))

        self.later(self.rng.uniform(0.1, 0.3), dies)

    def storm(self, seconds: float, harm: Callable[[], None], pause_s: tuple[float, float]) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s and not self.lost:
            self.run(self.rng.uniform(*pause_s))
            harm()

    def heal(self) -> None:
        """End what holds and cuts links; the rest ends by itself."""
        self.cut.clear()
        self.raft_cut.clear()
        self.held.clear()

    def missing(self) -> str:
        """Say what is not as it was, when all should have healed; empty: all is."""
        facts = self.log[-1]
        if facts.nodes_in_sync != self.voters:
            return f"the set is {sorted(facts.in_sync)}"
        if not self.answered_s or self.now_s - self.answered_s[-1] > 1.0:
            return "nothing is answered"
        self.compare(self.stores[facts.primary])
        return ""
