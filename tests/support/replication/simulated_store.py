"""
Stores of a simulation: what valkey-servers were measured to do, and nothing of the protocol.

A log is a list of entries, each its own object; two logs are one history as far as they hold the
same objects. Offsets are lengths.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tidewarden.raft.store_facts import StoreMember

Entry = tuple[Any, ...]


@dataclass
class Data:
    """What a log comes to."""

    log: list[Entry] = field(default_factory=list)
    writes: set[int] = field(default_factory=set)
    view: int = 0
    stamp: int = 0
    says: str = ""
    seq: int = 0
    author: str = ""

    def add(self, entry: Entry) -> None:
        self.log.append(entry)
        if entry[0] == "write":
            self.writes.add(entry[1])
        elif entry[0] == "mark":
            self.seq += 1
        else:
            _, view, self.stamp, self.says, self.author = entry
            self.seq = self.seq if view == self.view else 0
            self.view = view

    def copy(self, length: int | None = None) -> Data:
        """The same log, or the beginning of it, replayed."""
        made = Data()
        for entry in self.log[:length]:
            made.add(entry)
        return made

    def begins(self, other: Data) -> bool:
        """Whether this is the beginning of another's log."""
        length = len(self.log)
        return length <= len(other.log) and (not length or self.log[-1] is other.log[length - 1])


@dataclass
class SimulatedStore:
    """One valkey-server of one host."""

    node: str
    rng: random.Random
    up: bool = False
    stopped: bool = False
    """It hangs: SIGSTOP."""
    start: int = 0
    continues: list[str] = field(default_factory=list)
    data: Data = field(default_factory=Data)
    role: str = "slave"
    replid: str = ""
    master: SimulatedStore | None = None
    linked_to: str = ""
    """The replication id of whom it has a link to, up."""
    partial: bool = False
    """It has an id and an offset to go on from."""
    loads: Data | None = None
    loaded_s: float = 0.0
    connect_s: float = 0.0
    note: bool = False
    """The daemon's note of a sync under way, beside the data."""
    acks: dict[StoreMember, int] = field(default_factory=dict)
    generation: int = 0

    @property
    def member(self) -> StoreMember:
        return StoreMember(self.node, str(self.start))

    @property
    def answers(self) -> bool:
        return self.up and not self.stopped

    # Its life.

    def starts(self, now_s: float) -> None:
        """As a replica of nobody, with a new incarnation; a load of its log takes its time."""
        self.up, self.stopped, self.start = True, False, self.start + 1
        self.continues = [] if self.note else [*self.continues, str(self.start - 1)][-8:]
        self.note = False
        self.role, self.master, self.partial, self.linked_to = "slave", None, False, ""
        self.acks = {}
        self.loads, self.loaded_s = self.data, now_s + self.rng.uniform(0.02, 0.3)
        self.replid = f"{self.node}{self.start}x"

    def ends(self) -> None:
        self._hangs_up()
        self.up = self.stopped = False
        self.role, self.master, self.linked_to, self.loads = "slave", None, "", None

    def loses_power(self) -> None:
        """The host boots anew: nothing of what it was is a continuation, a tail is lost."""
        self.ends()
        length = len(self.data.log)
        self.data = self.data.copy(max(0, length - self.rng.randrange(0, 60)))
        self.note = True

    def loses_disk(self) -> None:
        self.ends()
        self.data, self.note = Data(), True

    # Orders of its daemon.

    def promote(self, view: int, says: str) -> bool:
        """``REPLICAOF NO ONE`` and ``open``."""
        if self.role != "master":
            self._hangs_up()
            self.generation += 1
            self.role, self.replid = "master", f"{self.node}{self.start}g{self.generation}"
            self.master, self.linked_to, self.acks, self.partial = None, "", {}, True
        return self.open(view, 1, says)

    def open(self, view: int, stamp: int, says: str) -> bool:
        if self.role != "master" or (view, stamp) <= (self.data.view, self.data.stamp):
            return False
        self.data.add(("open", view, stamp, says, ".".join(self.member)))
        return True

    def write(self, entry: Entry) -> int:
        assert self.role == "master", "READONLY"
        self.data.add(entry)
        return len(self.data.log)

    def follow(self, master: SimulatedStore | None, now_s: float) -> None:
        """``REPLICAOF``; None: nobody. A load that has begun goes on."""
        self._hangs_up()
        self.role, self.master, self.linked_to = "slave", master, ""
        self.connect_s = now_s + self.rng.uniform(0.002, 0.02)
        if master is not None:
            self.note = True

    # What happens by itself.

    def tick(self, now_s: float, reaches: bool, hears: bool, entries_max: int) -> None:
        """
        Go on by one step of time.

        ``reaches``: its master's stream comes through; ``hears``: its acknowledgements do.
        """
        if not self.answers:
            return
        if self.loads is not None:
            if now_s < self.loaded_s:
                return  # Every command but INFO is refused meanwhile.
            self.data, self.loads = self.loads, None
        master = self.master
        if master is None:
            return
        if not master.answers or master.role != "master":
            if not master.up or master.role != "master":
                self.linked_to = ""
                self.connect_s = now_s + self.rng.uniform(0.01, 0.9)
            return
        if self.linked_to != master.replid:
            if now_s >= self.connect_s and reaches and hears and master.loads is None:
                self._link(master, now_s)
            return
        if reaches:
            log, own = master.data.log, self.data.log
            for entry in log[len(own) : len(own) + entries_max]:
                self.data.add(entry)
        if hears:
            master.acks[self.member] = len(self.data.log)
        self.note = False

    def _hangs_up(self) -> None:
        if self.master is not None:
            self.master.acks.pop(self.member, None)

    def _link(self, master: SimulatedStore, now_s: float) -> None:
        self.linked_to = master.replid
        if self.partial and self.data.begins(master.data):
            return
        master.acks[self.member] = 0  # Listed long before it has loaded.
        self.loads, self.loaded_s = master.data.copy(), now_s + self.rng.uniform(0.2, 1.0)
        self.partial, self.note = True, True

    def info(self) -> bytes:
        """``INFO server replication``, as far as a server is known by it."""
        return f"run_id:{self.node}{self.start}\r\nrole:{self.role}\r\n".encode()

    def role_answer(self) -> list[Any]:
        """``ROLE``."""
        if self.role != "master":
            return [b"slave", b"", 0, b"connect", -1]
        acks = [
            [".".join(member).encode(), b"1", str(offset).encode()]
            for member, offset in sorted(self.acks.items())
        ]
        return [b"master", len(self.data.log), acks]
