"""
What clients asked of a cluster and were told, and whether it could have been so: a record of operations, and a checker.

An operation that was not answered may or may not have happened, so that nothing is concluded from it. From the others much
is: each rule below is a function that returns what contradicts it.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from live.counting_provider import Presented

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
USES = ("ack", "touch", "release", "fail")
"""Verbs that succeed only under a lease number that is current."""


@dataclass(slots=True)
class Operation:
    """
    One thing that a client asked for. ``invoked``, ``answered``: monotonic seconds; never answered: infinity.

    ``key``: a task, a lock, an account, a fence. ``lease``: the number it spoke of or was given. ``value``: what a read found.
    """

    kind: str
    who: str
    place: str
    key: str
    lease: int = 0
    value: Any = None
    invoked: float = 0.0
    answered: float = math.inf
    outcome: str = UNKNOWN

    def ok(self, value: Any = None, lease: int = 0) -> None:
        """It was answered, and done."""
        self.answered, self.outcome = time.monotonic(), OK
        self.value, self.lease = value, lease or self.lease

    def refused(self, word: str) -> None:
        """It was answered, and not done."""
        self.answered, self.outcome, self.value = time.monotonic(), REFUSED, word


@dataclass
class History:
    """Everything that was asked. ``claims``: epoch, and the holder who says that it leads under it."""

    operations: list[Operation] = field(default_factory=list)
    claims: list[tuple[int, str]] = field(default_factory=list)

    def begin(self, kind: str, who: str, place: str, key: str = "", lease: int = 0) -> Operation:
        """Write down that something is asked now. Until it is told otherwise, nobody knows what becomes of it."""
        operation = Operation(kind, who, place, key, lease, invoked=time.monotonic())
        self.operations.append(operation)
        return operation

    def granted(self, asked: Operation, key: str, lease: int, place: str = "") -> Operation:
        """A take was answered with this task."""
        now = time.monotonic()
        grant = Operation("grant", asked.who, place or asked.place, key, lease, None, asked.invoked, now, OK)
        self.operations.append(grant)
        return grant

    def of(self, *kinds: str, outcome: str = OK) -> list[Operation]:
        """The operations of these kinds that ended so."""
        return [one for one in self.operations if one.kind in kinds and one.outcome == outcome]

    def summary(self) -> str:
        """How many operations of each kind ended how."""
        counts = Counter((one.kind, one.outcome) for one in self.operations)
        kinds = sorted({kind for kind, _ in counts})
        return "; ".join(
            f"{kind} " + " ".join(f"{counts[kind, how]} {how}" for how in (OK, REFUSED, UNKNOWN) if counts[kind, how])
            for kind in kinds
        )


def lost_puts(history: History, left: Mapping[str, Collection[str]]) -> list[str]:
    """Every task whose put was answered OK was delivered, or still lies in its queue (``left``: ids by queue)."""
    delivered = {(one.place, one.key) for one in history.of("grant")}
    return [
        f"lost: {put.key} of {put.place}, put with OK by {put.who} at {put.answered:.3f}"
        for put in history.of("put")
        if (put.place, put.key) not in delivered and put.key not in left.get(put.place, ())
    ]


def lease_numbers(history: History) -> list[str]:
    """Each number is given once, and who got a task after somebody else's lease had been told got a greater one."""
    wrong = []
    grants: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in history.of("grant"):
        grants[one.place, one.key].append(one)
    given = Counter((place, one.key, one.lease) for (place, _), many in grants.items() for one in many)
    wrong += [
        f"lease {lease} of {key} in {place} was given {n} times" for (place, key, lease), n in given.items() if n > 1
    ]
    for (place, key), many in grants.items():
        for before in many:
            wrong += [
                f"{key} in {place}: lease {after.lease} was given after {before.lease}"
                for after in many
                if before.answered < after.invoked and after.lease <= before.lease and after is not before
            ]
    return wrong


def old_numbers(history: History) -> list[str]:
    """Nothing succeeded under a number once a greater one had been handed out; no task was acknowledged under two."""
    wrong = []
    grants: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in history.of("grant"):
        grants[one.place, one.key].append(one)
    acked: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for use in history.of(*USES):
        wrong += [
            f"{use.kind} of {use.key} in {use.place} under {use.lease} succeeded after {newer.lease} was with {newer.who}"
            for newer in grants[use.place, use.key]
            if newer.lease > use.lease and newer.answered < use.invoked
        ]
        if use.kind == "ack":
            acked[use.place, use.key].add(use.lease)
    wrong += [f"{key} in {place} was acknowledged under {sorted(n)}" for (place, key), n in acked.items() if len(n) > 1]
    ended: defaultdict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    for use in history.of("ack"):
        ended[use.place, use.key] = min(ended[use.place, use.key], use.answered)
    wrong += [
        f"{one.key} in {one.place} was given to {one.who} after its ack"
        for (place, key), many in grants.items()
        for one in many
        if ended[place, key] < one.invoked
    ]
    return wrong


def epochs(history: History) -> list[str]:
    """The cluster's epoch only grows, and no two holders led under the same one."""
    seen = [one for one in history.of("fence") if one.lease]
    wrong = [f"the fence went from epoch {a.lease} to {b.lease}" for a, b in pairwise(seen) if b.lease < a.lease]
    holders: defaultdict[int, set[str]] = defaultdict(set)
    for epoch, holder in history.claims:
        holders[epoch].add(holder)
    wrong += [f"epoch {epoch} was led by {sorted(who)}" for epoch, who in sorted(holders.items()) if len(who) > 1]
    return wrong


def ticks(ids: Iterable[str], puts: int, every_ms: int, catchup: str) -> list[str]:
    """
    A schedule's tasks (``NAME:TICK``, each id that was seen or still lies there): each tick once, none left out.

    ``puts``: how many tasks its queue says were put. With ``catchup`` other than ``all``, ticks may be missing.
    """
    at = sorted(int(one.rpartition(":")[2]) for one in set(ids))
    wrong = []
    if puts != len(at):
        wrong.append(f"{puts} tasks were put for {len(at)} ticks")
    if catchup == "all":
        wrong += [f"no tick between {a} and {b}, every {every_ms} ms" for a, b in pairwise(at) if b - a != every_ms]
    wrong += [f"ticks {a} and {b} are too near, every {every_ms} ms" for a, b in pairwise(at) if (b - a) % every_ms]
    return wrong


def generations(history: History, log: Iterable[Presented]) -> list[str]:
    """
    Readers never see an account go back; the provider is shown its tokens in order, and none again once its successor lies
    in the store. The first stored pair is generation 1, its token the provider's generation 0.
    """
    wrong = []
    reads: defaultdict[str, list[Operation]] = defaultdict(list)
    for read in history.of("read"):
        reads[read.key].append(read)
    for account, many in reads.items():
        many.sort(key=lambda read: read.answered)
        newest = None  # of the reads that were answered before this one was asked
        waiting = list(many)
        for read in sorted(many, key=lambda read: read.invoked):
            while waiting and waiting[0].answered < read.invoked:
                done = waiting.pop(0)
                newest = done if newest is None or done.value > newest.value else newest
            if newest is not None and read.value < newest.value:
                wrong.append(f"{account}: generation {read.value} was read after {newest.value}")
    shown: dict[str, int] = {}
    for one in sorted(log, key=lambda one: one.at):
        if one.answer == "refused":
            wrong.append(f"{one.account}: the provider refused generation {one.generation}")
        if one.generation < shown.get(one.account, 0):
            wrong.append(f"{one.account}: generation {one.generation} was sent after {shown[one.account]}")
        shown[one.account] = max(shown.get(one.account, 0), one.generation)
        stored = [
            read.value for read in reads[one.account] if read.answered < one.at and read.value > one.generation + 1
        ]
        if stored:
            wrong.append(f"{one.account}: generation {one.generation} was sent when {max(stored) - 1} was stored")
    return wrong
