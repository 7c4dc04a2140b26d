"""
Raft members in one thread: virtual time, links in memory, faults by seed; the same seed is the same
run.

The members are ``tidewarden.raft.voter.Voter`` with its settings and its files, or the stock
library's object with the same settings; only the clock, the chance and the wire are ours.
:meth:`World.check` looks at every member after every event, and raises :class:`Violation`.
"""

from __future__ import annotations

import heapq
import math
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pysyncobj.syncobj
from support.raft.disk import Disk, unfit
from support.raft.members import Ours, Wire

from tidewarden.raft import files, pysync, wire
from tidewarden.raft.state import Times
from tidewarden.raft.store_facts import StoreFacts

TIMES = Times()
STEP_S = 2e-5
"""Time goes on by so much at each look at the clock: the library waits for it in loops."""
SETTLE_S = 6.0
"""After the last fault a leader is there, and everybody has everything, within so much."""


class Violation(AssertionError):
    """A promise that was broken; the text says which, by whom and when."""


class Member:
    """One member through all its lives. Its clock runs at ``rate``."""

    def __init__(self, world: World, name: str, rate: float, offset: float) -> None:
        self.world, self.name, self.rate, self.offset = world, name, rate, offset
        self.voter: Any = None
        self.life = 0
        self.paused = False
        self.full = False  # its disk
        self.inbox: list[tuple[str, bytes]] = []
        self.turn = 0  # the number of the tick that is due; an older one was overtaken
        self.checked = 0
        self.judged = 0  # the index up to which its facts about the stores were
        self.seeds: dict[str, str] = {}  # as its configuration names the members
        self.joining = False

    def monotonic(self) -> float:
        """What this member's clock shows."""
        self.world.now += STEP_S
        return self.offset + self.rate * self.world.now

    def secret(self, name: str) -> Any:
        return getattr(self.voter, f"_SyncObj__{name}")


class World:
    """The members, their network and their time, in seconds. Use it as a context manager."""

    def __init__(
        self, seed: int, size: int = 3, breed: type = Ours, late: float = 0.0, batch_bytes: int = 0
    ) -> None:
        """
        ``late``: share of messages that come late and out of order; ``batch_bytes``: how much of a
        snapshot one holds.
        """
        self.seed, self.breed, self.late, self.batch_bytes = seed, breed, late, batch_bytes
        self.delay_s = 0.002
        # When a cut link is closed: by us, or for the stock library by the kernel.
        self.noticed_s = TIMES.link_s if issubclass(breed, Ours) else wire.UNANSWERED_MS / 1000
        self.beliefs = False  # whether the stock library's word for leadership is judged as a lease
        self.now = 1000.0
        self.random = random.Random(seed)
        self.marks = random.Random(f"{seed} marks")
        self.events: list[tuple[float, str, int, Callable[[], None]]] = []
        self.number = 0
        self.cuts: dict[tuple[str, str], float] = {}  # one way; since when
        self.holding: dict[tuple[str, str], list[bytes]] = {}
        self.sent: dict[tuple[str, str], bytes] = {}  # the last message of each link
        self.healed: dict[tuple[str, str], float] = {}
        self.chances: dict[tuple[str, str], random.Random] = {}
        self.arrived: dict[tuple[str, str], float] = {}
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[bytes, int, int]] = {}
        self.answers: dict[int, tuple[Any, int]] = {}
        self.stores: dict[int, StoreFacts] = {}  # by the index of who has applied so much
        self.opened = math.inf  # the lowest index at which the set was a majority
        names = [f"n{index}" for index in range(size)]
        drift = [self.random.uniform(0.97, 1.03) for _ in names]
        self.members = {
            f"{name}:1": Member(self, name, drift[i], 100.0 * i) for i, name in enumerate(names)
        }
        for member in self.members.values():
            member.seeds = {name: f"{name}:1" for name in names}
        self.running = next(iter(self.members.values()))
        self.disk = Disk(lambda: self.running.full)

    def __enter__(self) -> World:
        shared_memory = Path("/dev/shm")  # files outlive a process there, and cost no disk
        self.folder = Path(
            tempfile.mkdtemp(prefix="raft-", dir=shared_memory if shared_memory.is_dir() else None)
        )
        self.before = (pysyncobj.syncobj.monotonicTime, pysyncobj.syncobj.random, files.new_mark)
        self.disk.take()
        files.new_mark = lambda: f"{self.marks.getrandbits(64):x}"
        pysyncobj.syncobj.monotonicTime = lambda: self.running.monotonic()
        pysyncobj.syncobj.random = random.Random(f"{self.seed} elections")
        Wire.world = self
        for address in self.members:
            self.start(address)
        return self

    def __exit__(self, *_: object) -> None:
        for address, member in self.members.items():
            if member.voter is not None:
                self.kill(address)
        pysyncobj.syncobj.monotonicTime, pysyncobj.syncobj.random, files.new_mark = self.before
        self.disk.give_back()
        shutil.rmtree(self.folder)

    # Faults.

    def start(self, address: str) -> None:
        """Begin the next life of a member, on the files of the last."""
        member = self.members[address]
        folder = self.folder / member.name
        folder.mkdir(exist_ok=True)
        conf = pysync.configure(folder, address, "", TIMES)
        conf.password = None  # no wire to guard, and stretching it takes longer than a run
        if self.batch_bytes:
            conf.logCompactionBatchSize = self.batch_bytes
            conf.fullDumpFile = None  # the library leaves the files of its snapshots open
        member.life, member.checked, member.judged = member.life + 1, 0, 0
        self.running = member
        if fault := unfit(folder):
            self.broken(f"{address} cannot start again: {fault}")
        member.voter = self.breed(member.name, member.seeds, conf, TIMES, member, member.joining)
        self._due(member, self.now)

    def newcomer(self, name: str, seeds: Iterable[str], joining: bool = True) -> str:
        """
        A further member, started on an empty folder; ``seeds``: who its configuration names.
        Returns its address.
        """
        address = f"{name}:1"
        member = self.members.get(address)
        if member is None:
            drift = random.Random(f"{self.seed} {name}").uniform(0.97, 1.03)
            member = self.members[address] = Member(self, name, drift, 100.0 * len(self.members))
        elif member.voter is not None:
            self.kill(address)
        shutil.rmtree(self.folder / name, ignore_errors=True)
        member.full = False
        member.seeds = {name: address} | {seed.removesuffix(":1"): seed for seed in seeds}
        member.joining = joining
        self.start(address)
        return address

    def kill(self, address: str) -> None:
        """End a member's life as SIGKILL does; its files stay."""
        member = self.members[address]
        member.turn += 1
        if issubclass(self.breed, Ours):
            member.secret("raftLog").unsaid = 0  # what nobody has heard of is gone
        member.secret("raftLog")._destroy()
        member.voter.close()
        member.voter, member.paused, member.inbox = None, False, []

    def fill(self, address: str) -> None:
        self.members[address].full = True

    def free(self, address: str) -> None:
        self.members[address].full = False

    def pause(self, address: str) -> None:
        """As SIGSTOP: its kernel goes on taking what arrives."""
        self.members[address].paused = True
        self.members[address].turn += 1

    def resume(self, address: str, reads_first: bool | None = None) -> None:
        """
        As SIGCONT; whether it first reads what has arrived, or first goes on, is chance unless
        told.
        """
        member = self.members[address]
        member.paused = False
        inbox, member.inbox = member.inbox, []
        if not (self.random.random() < 0.5 if reads_first is None else reads_first):
            self._tick(member, member.turn)
        for sender, data in inbox:
            if member.voter is not None:
                self._guarded(member, member.secret("transport").receive, sender, data)
        self._due(member, self.now)

    def cut(self, sender: str, receiver: str, hold: bool = False) -> None:
        """
        Let nothing through in one direction; with ``hold`` it arrives after :meth:`heal`, as TCP
        sends it again.
        """
        self.cuts.setdefault((sender, receiver), self.now)
        if hold:
            self.holding.setdefault((sender, receiver), [])

    def part(self, *groups: list[str]) -> None:
        """Cut all links between groups, and heal those within."""
        self.heal()
        for group in groups:
            for other in groups:
                if group is not other:
                    for one in group:
                        for two in other:
                            self.cut(one, two)

    def heal(self, *links: tuple[str, str]) -> None:
        """Mend these links, or all; what was held arrives now, in its order."""
        for link in links or tuple(self.cuts):
            if self.now - self.cuts.pop(link, self.now) > self.noticed_s:
                self.healed[link] = self.now
            for data in self.holding.pop(link, ()):
                self.post(*link, data, self.now + self.delay_s)

    # The network.

    def life_seen(self, own: str, other: str) -> int | None:
        """
        The life of ``other`` that ``own`` is connected to; a cut link is noticed late, a mended one
        soon.
        """
        member = self.members.get(other)
        if member is None or member.voter is None:
            return None
        for link in ((own, other), (other, own)):
            if link in self.cuts and self.now - self.cuts[link] > self.noticed_s:
                return None
            if (
                link not in self.cuts
                and self.now - self.healed.get(link, -math.inf) < TIMES.retry_s
            ):
                return None
        return member.life

    def refuses(self, own: str, other: str) -> bool:
        """Whether the host of ``other`` answers ``own``, and that nobody has the port."""
        member = self.members.get(other)
        cut = (own, other) in self.cuts or (other, own) in self.cuts
        return member is not None and member.voter is None and not cut

    def send(self, sender: str, receiver: str, message: Any) -> None:
        link = (sender, receiver)
        if receiver not in self.members:
            return
        if (chance := self.chances.get(link)) is None:
            chance = self.chances[link] = random.Random(f"{self.seed} {link}")
        data = self.sent[link] = pickle.dumps(message)
        delay_s = self.delay_s * chance.uniform(0.5, 1.5)
        if chance.random() < self.late:  # what a replaced connection still delivers
            self.post(sender, receiver, data, self.now + chance.uniform(0.05, 1.5))
            return
        at = self.arrived[link] = max(self.now + delay_s, self.arrived.get(link, 0.0))
        self.post(sender, receiver, data, at)

    def post(self, sender: str, receiver: str, data: bytes, at: float) -> None:
        """Have ``data`` arrive at a time; lost if the receiver's life has ended by then."""
        member = self.members.get(receiver)
        life = member.life if member is not None else 0
        self._at(at, f"{sender}>{receiver}", lambda: self._arrive(sender, receiver, data, life))

    def _arrive(self, sender: str, receiver: str, data: bytes, life: int) -> None:
        member = self.members.get(receiver)
        if (sender, receiver) in self.cuts:
            if (sender, receiver) in self.holding:
                self.holding[sender, receiver].append(data)
        elif member is None or member.voter is None or member.life != life:
            return
        elif member.paused:
            member.inbox.append((sender, data))
        else:
            self._guarded(member, member.secret("transport").receive, sender, data)
            self._due(member, self.now)

    def _guarded(self, member: Member, act: Callable[..., None], *args: Any) -> None:
        """As a member's thread does: whom its disk fails steps down, and goes on."""
        self.running = member
        try:
            act(*args)
        except OSError:
            member.voter.step_down()

    # Time.

    def _at(self, at: float, key: str, action: Callable[[], None]) -> None:
        self.number += 1  # the key comes first: a set of nodes has another order in each process
        heapq.heappush(self.events, (at, key, self.number, action))

    def _due(self, member: Member, at: float) -> None:
        member.turn += 1
        turn = member.turn
        self._at(at, member.name, lambda: self._tick(member, turn))

    def _tick(self, member: Member, turn: int) -> None:
        if turn != member.turn or member.voter is None or member.paused:
            return
        self._guarded(member, member.voter.doTick, 0)
        self._due(member, self.now + TIMES.tick_s)

    def run(self, seconds: float, until: Callable[[], object] | None = None) -> bool:
        """Let time pass; returns whether ``until`` came true."""
        end = self.now + seconds
        while self.events and self.events[0][0] <= end:
            at, _, _, action = heapq.heappop(self.events)
            self.now = max(self.now, at)
            action()
            self.check()
            if until is not None and until():
                return True
        self.now = max(self.now, end)
        return False

    # What is to be seen, and what must hold.

    def alive(self) -> list[str]:
        return [address for address, member in self.members.items() if member.voter is not None]

    def believers(self) -> list[str]:
        """Who calls itself leader."""
        return [address for address in self.alive() if self.members[address].voter._isLeader()]

    def term(self) -> int:
        return max(self.members[address].voter.raftCurrentTerm for address in self.alive())

    def claim(self, address: str, number: int) -> None:
        """Propose a claim that no other equals; its answer, if any, comes to ``answers``."""
        member = self.members[address]
        self.running = member

        def answered(value: Any, reason: int) -> None:
            self.answers[number] = (value, reason)

        member.voter.claim(member.name, number, 0, callback=answered)

    def order(self, address: str, command: tuple[Any, ...]) -> None:
        """Have a member propose a command about the stores, and hear no answer."""
        self.running = self.members[address]
        self.running.voter.store_command(command)

    def check(self) -> None:
        """Raises: Violation."""
        leases = []
        for address, member in self.members.items():
            voter = member.voter
            if voter is None:
                continue
            until = math.inf if self.beliefs and voter._isLeader() else -math.inf
            if getattr(voter, "lease_until", until) > member.offset + member.rate * self.now:
                leases.append(address)
            if (
                voter._isLeader()
                and self.leaders.setdefault(voter.raftCurrentTerm, address) != address
            ):
                self.broken(
                    f"{address} and {self.leaders[voter.raftCurrentTerm]} lead in term"
                    f" {voter.raftCurrentTerm}"
                )
            if voter.raftCommitIndex > member.checked:
                self._check_log(address, member)
            if isinstance(voter, Ours) and voter.raftLastApplied > member.judged:
                self._check_stores(address, member)
        if len(leases) > 1:
            self.broken(f"{' and '.join(leases)} believe at once that they lead")

    def _check_log(self, address: str, member: Member) -> None:
        log, commit = member.secret("raftLog"), member.voter.raftCommitIndex
        first = log[0][1]
        for index in range(max(member.checked, first), commit + 1):
            if index - first >= len(log):
                self.broken(f"{address} commits entry {index} without having it")
            entry = log[index - first]
            if self.committed.setdefault(index, entry) != entry:
                self.broken(f"{address} commits another entry {index} than was committed before")
        member.checked = commit

    def _check_stores(self, address: str, member: Member) -> None:
        """All that have applied as much have the same facts, and the set stays a majority."""
        voter, index = member.voter, member.voter.raftLastApplied
        facts, before = voter.stores, self.stores.get(member.judged, StoreFacts())
        if self.stores.setdefault(index, facts) != facts:
            self.broken(f"{address} has {facts} at entry {index}, another had {self.stores[index]}")
        if facts.view < before.view or facts.version < before.version:
            self.broken(f"{address} goes back from {before} to {facts}")
        member.judged = index
        versions = [found for at, found in member.secret("raftLog").versions if at <= index]
        voters = versions[-1].voters if versions else frozenset()
        if facts.is_open(voters):
            self.opened = min(self.opened, index)
        elif facts.view and index > self.opened:
            self.broken(f"no majority of {sorted(voters)} has a whole copy: {facts}")

    def broken(self, what: str) -> NoReturn:
        """Raises: Violation: always; it names seed and time."""
        raise Violation(f"{what} (seed {self.seed}, second {self.now - 1000:.3f})")
