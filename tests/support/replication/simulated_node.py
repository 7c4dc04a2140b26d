"""The daemon of one simulated host: the product's decisions, and as little as can be beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidewarden.cluster.replication import next_role
from tidewarden.cluster.replication.election import Election, Stores, candidates, elect_command
from tidewarden.cluster.replication.set_keeper import (
    STAMPS_APART,
    Open,
    Propose,
    SetKeeper,
    Yield,
)
from tidewarden.cluster.replication.store_look import NOBODY, StoreData, StoreLook
from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.raft.store_facts import StoreFacts, set_text

from .simulated_store import SimulatedStore

TURN_S = 0.03
REPORT_S = 0.1
WAIT_S = 0.06
SILENT_S = 0.7


@dataclass
class SimulatedNode:
    """One host: its store, and the node process beside it."""

    name: str
    store: SimulatedStore
    propose: Callable[[SimulatedNode, tuple[Any, ...]], None]
    store_of: Callable[[str], SimulatedStore]
    voters: frozenset[str]
    up: bool = False
    frozen: bool = False
    facts: StoreFacts | None = None
    """As applied here; None: not read through Raft's quorum since the process began."""
    heard: dict[str, tuple[float, StoreReport]] = field(default_factory=dict)
    election: Election | None = None
    keeper: SetKeeper | None = None
    stamp: int = 0
    gives_up: str = ""
    another_please: bool = False
    followed: int = 0
    let_in: str = ""
    opened: tuple[int, int] | None = None
    start_seen: int = 0
    answered_s: float = 0.0
    next_turn_s: float = 0.0
    next_round_s: float = 0.0
    next_report_s: float = 0.0
    round: tuple[float, int, int] | None = None
    """A round under way: until when it waits, its offset, and the store's start."""
    said: StoreReport | None = None
    near: bool = False
    """Known to be bad: believes that whoever is attached has everything."""
    worst: bool = False
    """Elects the member that came least far, on purpose: it, too, has every answered write."""

    @property
    def awake(self) -> bool:
        return self.up and not self.frozen

    def begins(self, now_s: float) -> None:
        self.up, self.frozen, self.facts = True, False, None
        self.heard, self.election, self.keeper, self.round = {}, None, None, None
        self.followed, self.let_in, self.opened, self.start_seen = 0, "", None, 0
        self.gives_up, self.another_please, self.answered_s = "", False, now_s
        self.next_turn_s = self.next_round_s = self.next_report_s = now_s

    # Its own store.

    def look(self) -> StoreLook:
        store, data = self.store, self.store.data
        loads = store.loads is not None
        founding = "word" if data.view else ""
        found = StoreData(data.view, data.stamp, data.says, data.seq, founding, data.author)
        return StoreLook(
            self.name,
            str(store.start),
            pid=1,
            role=store.role,
            loading=loads,
            link_up=bool(store.linked_to) and not loads,
            place=NOBODY if store.master is None else (store.master.node, 1),
            syncing=False,
            sync_share=0.0,
            rewriting=False,
            disk_fault=False,
            offset=len(data.log),
            replicas=frozenset(),
            data=None if loads else found,
        )

    def report_of(self, node: str) -> StoreReport | None:
        return self.heard[node][1] if node in self.heard else None

    def turn(self, now_s: float) -> None:
        self.next_turn_s = now_s + TURN_S
        if not self.store.answers:
            late = now_s - self.answered_s > SILENT_S or not self.store.up
            primary = self.facts is not None and self.facts.primary == self.name
            self.another_please = primary and late
            return
        self.answered_s = now_s
        if self.store.start != self.start_seen:
            self.start_seen, self.followed = self.store.start, 0
        for _ in range(4):
            if self.facts is None or not self.step(self.facts, now_s):
                return

    def step(self, facts: StoreFacts, now_s: float) -> bool:
        look, store = self.look(), self.store
        same = store.master is not None and store.master.node == facts.primary
        key = f"{facts.view} {store.start}"
        primary = self.report_of(facts.primary)
        step = next_role.next_step(
            self.name, facts, look, primary, (self.followed, same), self.let_in == key
        )
        self.another_please = False
        match step:
            case next_role.Stay(_, another_please):
                self.another_please = another_please
                if not self.followed and store.master is not None:
                    self.followed = facts.view
                return False
            case next_role.Promote():
                says = set_text(facts.in_sync) if facts.is_open(self.voters) else ""
                if store.promote(facts.view, says):
                    self.opened, self.let_in = (facts.view, store.start), key
            case next_role.LetIn():
                self.let_in = key
            case next_role.Demote() | next_role.Detach():
                store.follow(None, now_s)
                self.let_in, self.followed = "", 0
            case next_role.Follow(address, _):
                store.follow(self.store_of(address.partition(":")[0]), now_s)
                self.followed = facts.view
                return False
        return True

    def serves(self) -> bool:
        facts = self.facts
        if facts is None or not self.store.answers or self.store.loads is not None:
            return False
        return next_role.serves(facts, self.look()) and bool(self.let_in)

    def report(self) -> StoreReport:
        look, facts, store = self.look(), self.facts, self.store
        if not store.answers:
            return StoreReport(another_please=self.another_please)
        data = look.data or StoreData()
        follows = facts is not None and self.followed == facts.view and look.link_up
        return StoreReport(
            incarnation=look.incarnation,
            continues=tuple(store.continues),
            loading=look.loading,
            view=data.view,
            seq=data.seq,
            founding=data.founding,
            offset=look.offset,
            role=look.role,
            serves_view=facts.view if facts is not None and self.serves() else 0,
            follows=".".join(facts.primary_member) if facts is not None and follows else "",
            fsync="everysec",
            another_please=self.another_please or bool(self.gives_up),
            address=f"{self.name}:1",
        )

    # The primary's part.

    def keep(self, now_s: float) -> None:
        """Begin or end a round of the in-sync set."""
        facts, store = self.facts, self.store
        if facts is None or not self.serves():
            self.round, self.gives_up = None, ""
            return
        keeper = self.keeper
        if keeper is None or (keeper.view, keeper.member) != (facts.view, store.member):
            fresh = self.opened == (facts.view, store.start)
            keeper = self.keeper = SetKeeper(
                store.member, facts.view, None if fresh else store.data.says
            )
            self.stamp = store.data.stamp + (0 if fresh else STAMPS_APART)
            self.round, self.gives_up = None, ""
        if self.round is None:
            if now_s < self.next_round_s:
                return
            self.stamp += 1
            store.open(facts.view, self.stamp, keeper.opens(facts, self.voters))
            self.round = now_s + WAIT_S, len(store.data.log), store.start
        until_s, offset, start = self.round
        if start != store.start:
            self.round = None
            return
        others = facts.in_sync - {store.member}
        if now_s < until_s and any(store.acks.get(one, -1) < offset for one in others):
            return
        self.round, self.gives_up = None, ""
        self.next_round_s = now_s + keeper.next_s(busy=True)
        acks = dict.fromkeys(store.acks, offset) if self.near else dict(store.acks)
        for action in keeper.round(now_s, facts, self.voters, acks, offset):
            match action:
                case Open():
                    self.next_round_s = now_s
                case Propose(command):
                    self.propose(self, command)
                case Yield(why):
                    self.gives_up = why

    # The Raft leader's part.

    def choose(self, now_s: float, ended: frozenset[str]) -> tuple[Any, ...] | None:
        if self.facts is None:
            return None
        if self.election is None:
            self.election = Election(now_s)
        reports = {node: report for node, (_, report) in self.heard.items()}
        silence = {node: now_s - at_s for node, (at_s, _) in self.heard.items()}
        choice = self.election.decide(self.facts, self.voters, reports, silence, now_s, ended=ended)
        command = choice.command
        if self.worst and command is not None and command[0] == "elect":
            heard = {node: one for node, one in reports.items() if silence[node] < SILENT_S}
            stores = Stores(self.facts, self.voters, heard)
            able = [one for one in candidates(stores) if not one.restarted]
            if able:
                return elect_command(stores, able[-1], self.facts.primary)
        return command
