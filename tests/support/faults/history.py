"""
What clients asked of a cluster and were told, and whether it could have been so: a record of
operations, and a checker.

An operation that was not answered may or may not have happened, so that nothing is concluded from
it. From the others much is: each rule below is a function that returns what contradicts it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from support.providers.scripted_provider import Presented

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
USES = ("ack", "touch", "release", "fail")
"""Verbs that succeed only under a lease number that is current."""
CLAIMED_AGAIN_S = 20.0
"""How long a leader may take to claim again from a new primary; it takes a second or two."""
REMEMBERED_S = 10.0
"""
For so long after a put nobody has forgotten the task, whatever the store's clock did: far below
`dedup_ms`, two steps taken off.
"""


@dataclass(slots=True)
class Operation:
    """
    One thing that a client asked for. ``invoked``, ``answered``: monotonic seconds; never answered:
    infinity.

    ``key``: a task, a lock, an account, a fence. ``lease``: the number it spoke of or was given.
    ``value``: what a read found.
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
    """
    Everything that was asked. ``claims``: epoch, and the holder who says that it leads under it.
    """

    operations: list[Operation] = field(default_factory=list)
    claims: list[tuple[int, str]] = field(default_factory=list)

    def begin(self, kind: str, who: str, place: str, key: str = "", lease: int = 0) -> Operation:
        """
        Write down that something is asked now. Until it is told otherwise, nobody knows what
        becomes of it.
        """
        operation = Operation(kind, who, place, key, lease, invoked=time.monotonic())
        self.operations.append(operation)
        return operation

    def granted(self, asked: Operation, key: str, lease: int, place: str = "") -> Operation:
        """A take was answered with this task."""
        now = time.monotonic()
        grant = Operation(
            "grant", asked.who, place or asked.place, key, lease, None, asked.invoked, now, OK
        )
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
            f"{kind} "
            + " ".join(
                f"{counts[kind, how]} {how}" for how in (OK, REFUSED, UNKNOWN) if counts[kind, how]
            )
            for kind in kinds
        )


def lacking(history: History, kinds: Collection[str], places: Collection[str]) -> list[str]:
    """
    What a run has to hold for its checks to say anything: an OK of each kind of operation, a task
    handed out of each queue.
    """
    there, handed = (
        {one.kind for one in history.of(*kinds)},
        {one.place for one in history.of("grant")},
    )
    return [f"not one {kind} was answered OK" for kind in kinds if kind not in there] + [
        f"nothing was handed out of {place}" for place in places if place not in handed
    ]


def lost_puts(history: History, left: Mapping[str, Collection[str]]) -> list[str]:
    """
    Every task whose put was answered OK was delivered, or still lies in its queue (``left``: ids by
    queue).
    """
    delivered = {(one.place, one.key) for one in history.of("grant")}
    return [
        f"lost: {put.key} of {put.place}, put with OK by {put.who} at {put.answered:.3f}"
        for put in history.of("put")
        if (put.place, put.key) not in delivered and put.key not in left.get(put.place, ())
    ]


def unfinished(history: History, left: Mapping[str, Collection[str]]) -> list[str]:
    """
    Every task that was delivered was acknowledged, perhaps unheard, or still lies in its queue
    (those of ``left``).
    """
    ended = {
        (one.place, one.key)
        for one in history.operations
        if one.kind == "ack" and one.outcome != REFUSED
    }
    handed = {(one.place, one.key) for one in history.of("grant") if one.place in left}
    return [
        f"gone: {key} of {place} was delivered, but nobody acknowledged it"
        for place, key in sorted(handed - ended)
        if key not in left[place]
    ]


def put_once(history: History, place: str, left: Collection[str], puts: int) -> list[str]:
    """
    A queue made as many tasks as there were ids (``puts``: by its own count), however often each
    put was repeated.
    """
    ids = {one.key for one in history.of("grant") if one.place == place} | set(left)
    return [] if puts == len(ids) else [f"{puts} tasks were put for {len(ids)} ids in {place}"]


def results(history: History) -> list[str]:
    """Who waited for a task's end was told what its acks and its later life agree with."""
    wrong = []
    acks: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for ack in history.operations:
        if ack.kind == "ack" and ack.outcome != REFUSED:
            acks[ack.place, ack.key].append(ack)
    puts = {(put.place, put.key): put for put in history.of("put")}
    done: dict[tuple[str, str], float] = {}
    for wait in history.of("wait"):
        place, key = task = wait.place, wait.key
        word, result = wait.value
        sent = {str(ack.lease) for ack in acks[task] if ack.invoked < wait.answered}
        if word == "done":
            done[task] = min(done.get(task, math.inf), wait.answered)
            if not sent or (result and result not in sent):
                wrong.append(
                    f"{key} in {place} was told to be done ({result!r}); acknowledged under"
                    f" {sorted(sent)}"
                )
        elif word not in ("timeout", "unknown"):
            wrong.append(f"{key} in {place} was told to be {word}")
        elif any(ack.answered < wait.invoked for ack in acks[task]) and word == "timeout":
            wrong.append(f"{key} in {place} was acknowledged, and told not to have ended")
        put = puts.get(task)
        if (
            word == "unknown"
            and put
            and put.answered < wait.invoked
            and wait.answered < put.invoked + REMEMBERED_S
        ):
            wrong.append(f"{key} in {place} was put with OK, and told to be unknown soon after")
    return wrong + [
        f"{one.key} in {one.place} was given to {one.who} after it was told to be done"
        for one in history.of("grant")
        if done.get((one.place, one.key), math.inf) < one.invoked
    ]


def surely_held(
    history: History, lane_of: Callable[[str, str], str | None]
) -> dict[tuple[str, str], list[tuple[float, float, str]]]:
    """
    By place and lane (``lane_of(place, key)``, None: of none), from when until when each task or
    lock was certainly held, and which.

    That is from when its number was told until the last time that something was asked for which
    then succeeded under it.
    """
    last: dict[tuple[str, str, int], float] = {}
    for use in history.of(*USES):
        number = use.place, use.key, use.lease
        last[number] = max(last.get(number, -math.inf), use.invoked)
    held: defaultdict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for one in history.of("grant"):
        lane, until = (
            lane_of(one.place, one.key),
            last.get((one.place, one.key, one.lease), -math.inf),
        )
        if lane is not None and until > one.answered:
            held[one.place, lane].append((one.answered, until, one.key))
    return held


def crowded(
    history: History, lane_of: Callable[[str, str], str | None], limit: int = 1
) -> list[str]:
    """Of one lane never more than ``limit`` tasks were held at a time."""
    wrong = []
    for (place, lane), many in surely_held(history, lane_of).items():
        open_until: list[tuple[float, str]] = []
        for since, until, key in sorted(many):
            while open_until and open_until[0][0] <= since:
                heapq.heappop(open_until)
            heapq.heappush(open_until, (until, key))
            if len(open_until) > limit:
                wrong.append(
                    f"{sorted(key for _, key in open_until)} of {lane} in {place} were held at a"
                    " time"
                )
    return wrong


def lateness_s(history: History, since: float) -> list[float]:
    """
    How long after their time tasks that were put from then on (monotonic) came first, sorted.

    A put's value is its delay, s; None where it has to wait for others.
    """
    first: dict[tuple[str, str], float] = {}
    for one in history.of("grant"):
        first[one.place, one.key] = min(one.answered, first.get((one.place, one.key), math.inf))
    return sorted(
        first[put.place, put.key] - put.answered - put.value
        for put in history.of("put")
        if put.invoked >= since and put.value is not None and (put.place, put.key) in first
    )


def newest_before(
    grants: Iterable[Operation], asked: Iterable[Operation]
) -> Iterator[tuple[Operation, Operation]]:
    """
    Each of ``asked`` with the grant of the greatest number that had been told before it was asked,
    where there is one.
    """
    told = sorted(grants, key=lambda one: one.answered)
    newest, n = None, 0
    for one in sorted(asked, key=lambda one: one.invoked):
        while n < len(told) and told[n].answered < one.invoked:
            newest = told[n] if newest is None or told[n].lease > newest.lease else newest
            n += 1
        if newest is not None:
            yield one, newest


def by_task(operations: Iterable[Operation]) -> defaultdict[tuple[str, str], list[Operation]]:
    """The operations by place and key."""
    found: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in operations:
        found[one.place, one.key].append(one)
    return found


def lease_numbers(history: History) -> list[str]:
    """
    Each number is given once, and who got a task after somebody else's lease had been told got a
    greater one.
    """
    given = Counter((one.place, one.key, one.lease) for one in history.of("grant"))
    wrong = [
        f"lease {lease} of {key} in {place} was given {n} times"
        for (place, key, lease), n in given.items()
        if n > 1
    ]
    for (place, key), many in by_task(history.of("grant")).items():
        wrong += [
            f"{key} in {place}: lease {after.lease} was given after {before.lease}"
            for after, before in newest_before(many, many)
            if after.lease <= before.lease
        ]
    return wrong


def old_numbers(history: History) -> list[str]:
    """
    Nothing succeeded under a number once a greater one had been handed out; no task was
    acknowledged under two.
    """
    wrong = []
    grants, acks = by_task(history.of("grant")), by_task(history.of("ack"))
    for (place, key), uses in by_task(history.of(*USES)).items():
        wrong += [
            f"{use.kind} of {key} in {place} under {use.lease} succeeded after {newer.lease} was"
            f" with {newer.who}"
            for use, newer in newest_before(grants[place, key], uses)
            if newer.lease > use.lease
        ]
    for (place, key), many in acks.items():
        if len(numbers := {ack.lease for ack in many}) > 1:
            wrong.append(f"{key} in {place} was acknowledged under {sorted(numbers)}")
        ended = min(ack.answered for ack in many)
        wrong += [
            f"{one.key} in {one.place} was given to {one.who} after its ack"
            for one in grants[place, key]
            if ended < one.invoked
        ]
    return wrong


def epochs(history: History) -> list[str]:
    """
    The cluster's epoch only grows, and no two holders led under the same one.

    A primary that dies right after a claim takes it with it, for a claim waits for no other store:
    whoever leads then claims again from the new primary, within a second or two of reaching it.
    """
    seen = history.of("fence")
    wrong = [
        f"the fence went from epoch {a.lease} to {b.lease}"
        for at, (a, b) in enumerate(pairwise(seen), 1)
        if b.lease < a.lease and not _is_back(seen[at:], a.lease)
    ]
    holders: defaultdict[int, set[str]] = defaultdict(set)
    for epoch, holder in history.claims:
        holders[epoch].add(holder)
    wrong += [
        f"epoch {epoch} was led by {sorted(who)}"
        for epoch, who in sorted(holders.items())
        if len(who) > 1
    ]
    return wrong


def _is_back(seen: Sequence[Operation], epoch: int) -> bool:
    """Whether the fence, which is lower from the first on, soon was at that epoch again."""
    fell = seen[0].answered
    return any(one.lease >= epoch for one in seen if one.answered - fell <= CLAIMED_AGAIN_S)


def ticks(ids: Iterable[str], puts: int, every_ms: int, catchup: str) -> list[str]:
    """
    A schedule's tasks (``NAME:TICK``, each id that was seen or still lies there): each tick once,
    none left out.

    ``puts``: how many tasks its queue says were put. With ``catchup`` other than ``all``, ticks may
    be missing.
    """
    at = sorted(int(one.rpartition(":")[2]) for one in set(ids))
    wrong = []
    if puts != len(at):
        wrong.append(f"{puts} tasks were put for {len(at)} ticks")
    if catchup == "all":
        wrong += [
            f"no tick between {a} and {b}, every {every_ms} ms"
            for a, b in pairwise(at)
            if b - a != every_ms
        ]
    wrong += [
        f"ticks {a} and {b} are too near, every {every_ms} ms"
        for a, b in pairwise(at)
        if (b - a) % every_ms
    ]
    return wrong


def generations(history: History, log: Iterable[Presented]) -> list[str]:
    """
    Readers never see an account go back; the provider is shown its tokens in order, and none again
    once its successor lies in the store. The first stored pair is generation 1, its token the
    provider's generation 0.
    """
    wrong = []
    reads: defaultdict[str, list[Operation]] = defaultdict(list)
    wrong += [
        f"{one.key}: there is no such account"
        for one in history.of("read", outcome=REFUSED)
        if one.value == "NOTFOUND"
    ]
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
            wrong.append(
                f"{one.account}: generation {one.generation} was sent after {shown[one.account]}"
            )
        shown[one.account] = max(shown.get(one.account, 0), one.generation)
        stored = [
            read.value
            for read in reads[one.account]
            if read.answered < one.at and read.value > one.generation + 1
        ]
        if stored:
            wrong.append(
                f"{one.account}: generation {one.generation} was sent when {max(stored) - 1} was"
                " stored"
            )
    return wrong
