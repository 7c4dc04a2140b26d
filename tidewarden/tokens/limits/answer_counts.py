"""
Counts one client's answers by kind, in buckets of time, until a node tells the others of them.

An account that failed last time is no witness (it may fail for good), so a kind that many witnesses
meet is met by as many accounts: one that has failed once is no witness again before it is well.
Times are milliseconds of the leases' clock, which never steps, or monotonic seconds. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidewarden.config.error_classes import ERROR_CLASSES, Kind, class_of
from tidewarden.tokens.provider.token_response import Verdict

WIDTH_MS = 2_000
"""The width of a young bucket; old ones are joined to buckets of :data:`WIDTH_OLD_MS` …"""
WIDTH_OLD_MS = 30_000
WIDTH_PART = 8
"""… and of this part of their age, so that there are some dozens, however slow a client is."""
YOUNG_MS = 40_000
OLDER_MS = 10_000
"""Answers that a node tells late count as of so long ago: they came within the last half minute."""
HOUR_MS = 3_600_000
ANSWERS = 50
"""
Incidents are judged by the last hour's answers, or by so many of the last witnesses' if those are
more: at a client with twelve accounts an hour shows nothing.
"""
KEPT_MS = 2 * 86_400_000
"""Older answers are not kept, however few there are."""
GOODPUT_S, GOODPUT_S_MIN = 5.0, 0.25
"""The longest and shortest time over which a node's answers a second are counted."""


def kind_of(verdict: Verdict) -> Kind:
    """
    Return the kind of evidence that a verdict is.

    ``silent``: no answer came; ``other``: the answer says nothing of other accounts.
    """
    if verdict.outcome == "ok":
        return "ok"
    found = class_of(verdict.outcome).kind
    if verdict.answered:
        return "other" if found == "silent" else found
    return "other" if found == "other" else "silent"


def is_refusal(outcome: str) -> bool:
    """Return whether answers of that class refuse a grant or our client."""
    found = ERROR_CLASSES.get(outcome)  # an account that is well has none
    return found is not None and found.kind in ("refused", "client")


class Bucket(msgspec.Struct, array_like=True):
    """Counts answers to one client's refreshes, of all nodes, that came from ``since_ms`` on."""

    since_ms: int = 0
    ok: int = 0
    limited: int = 0
    others: int = 0
    """Answers of any other kind, of witnesses or not."""
    erring: int = 0
    """Witnesses that got the provider's errors, gateways' and pages of HTML included."""
    client: int = 0
    """Witnesses that were told that our client is refused."""
    refused: int = 0
    """Witnesses, refreshed well before, whose grant was refused, by whichever word."""
    accepted: int = 0
    """Accounts that had been refused and are accepted again."""
    refused_again: int = 0
    """Accounts that had been refused and are refused again."""
    proven_client: int = 0
    """Witnesses, refreshed well before, that were told that our client is refused …"""
    proven_erring: int = 0
    """… or were answered with the provider's errors: others say nothing of what is usual."""
    mended: int = 0
    """Accounts that had failed, by whatever, and are well again."""
    erring_again: int = 0
    """Accounts that had failed and were answered with the provider's errors again."""
    unproven: int = 0
    """Witnesses, never refreshed by us, whose grant was refused."""

    def add(self, other: Bucket) -> None:
        """Add the counts of another. One by one: a report adds hundreds, and a loop is slow."""
        self.ok += other.ok
        self.limited += other.limited
        self.others += other.others
        self.erring += other.erring
        self.client += other.client
        self.refused += other.refused
        self.accepted += other.accepted
        self.refused_again += other.refused_again
        self.proven_client += other.proven_client
        self.proven_erring += other.proven_erring
        self.mended += other.mended
        self.erring_again += other.erring_again
        self.unproven += other.unproven

    @property
    def answered(self) -> int:
        """Return the number of all answers."""
        return self.ok + self.limited + self.others

    @property
    def served(self) -> int:
        """
        Return the number of answers that show the provider at work: new pairs, refused grants.
        """
        return self.ok + self.refused + self.unproven

    @property
    def proven(self) -> int:
        """
        Return the number of answers that tell how accounts fare that were refreshed well before.
        """
        return self.ok + self.refused + self.proven_client + self.proven_erring

    @property
    def empty(self) -> bool:
        """Return whether nothing is counted."""
        return not any(getattr(self, name) for name in COUNTS)


FAILED = ("erring", "client", "refused", "proven_client", "proven_erring", "unproven")
"""Counts of witnesses that failed."""
COUNTS = tuple(name for name in Bucket.__struct_fields__ if name != "since_ms")


def total(buckets: Iterable[Bucket]) -> Bucket:
    """Add up buckets."""
    found = Bucket()
    for bucket in buckets:
        found.add(bucket)
    return found


def within(buckets: Iterable[Bucket], since_ms: int) -> Bucket:
    """Add up the buckets that began at that time or later."""
    return total(bucket for bucket in buckets if bucket.since_ms >= since_ms)


def judged(buckets: list[Bucket], opened_ms: int, clock_ms: int) -> tuple[Bucket, int]:
    """
    Return the sum of the answers that incidents are judged by, and when the first of them came.

    They are an hour's answers, or the last :data:`ANSWERS` of witnesses, whichever are more.
    ``opened_ms``: what came before it counts for nothing.
    """
    since_ms = max(opened_ms, clock_ms - HOUR_MS)
    seen, from_ms = Bucket(), since_ms
    for bucket in reversed(buckets):
        if bucket.since_ms < opened_ms or (bucket.since_ms < since_ms and seen.proven >= ANSWERS):
            break
        seen.add(bucket)
        from_ms = min(from_ms, bucket.since_ms)
    return seen, from_ms


def still_failing(
    buckets: Iterable[Bucket], since_ms: int, failed: Sequence[str], well: str
) -> int:
    """
    Return how many of the witnesses that failed are not known to be well again.

    The buckets are in order of time: an account that is well again after an earlier incident takes
    nothing off a later one.
    """
    found = 0
    for bucket in buckets:
        if bucket.since_ms >= since_ms:
            found += sum(getattr(bucket, name) for name in failed) - getattr(bucket, well)
            found = max(0, found)
    return found


def collect(buckets: list[Bucket], told: Told, clock_ms: int, split_ms: int) -> list[Bucket]:
    """
    Add what a node tells to the counts of all nodes, in place.

    Counts that are too old are taken out and returned.

    Args:
        buckets: in order of time; joined where they are old, and kept while they are judged by.
        split_ms: nothing from this time on is joined with what was before it.
    """
    _add(buckets, told.older, clock_ms - OLDER_MS, split_ms)
    _add(buckets, told.recent, clock_ms, split_ms)
    _join_old(buckets, clock_ms, split_ms)
    if not buckets or buckets[0].since_ms >= clock_ms - HOUR_MS:
        return []
    _, from_ms = judged(buckets, 0, clock_ms)
    from_ms = max(from_ms, clock_ms - KEPT_MS)
    gone = [bucket for bucket in buckets if bucket.since_ms < from_ms]
    del buckets[: len(gone)]
    return gone


def _add(buckets: list[Bucket], told: Bucket, at_ms: int, split_ms: int) -> None:
    if told.empty:
        return
    place = len(buckets)
    while place and buckets[place - 1].since_ms > at_ms:
        place -= 1
    if place:
        last = buckets[place - 1]
        if at_ms - last.since_ms < WIDTH_MS and not last.since_ms < split_ms <= at_ms:
            last.add(told)
            return
    fresh = Bucket(at_ms)
    fresh.add(told)
    buckets.insert(place, fresh)


def _join_old(buckets: list[Bucket], clock_ms: int, split_ms: int) -> None:
    at = 0
    while at + 1 < len(buckets):
        one, following = buckets[at], buckets[at + 1]
        if following.since_ms >= clock_ms - YOUNG_MS:
            break
        width_ms = max(WIDTH_OLD_MS, (clock_ms - following.since_ms) // WIDTH_PART)
        apart = one.since_ms < split_ms <= following.since_ms
        if following.since_ms - one.since_ms < width_ms and not apart:
            one.add(following)
            del buckets[at + 1]
        else:
            at += 1


class Silence(msgspec.Struct, array_like=True):
    """Says what one node meets with at the provider that is not one account's matter."""

    since_ms: int = 0
    last_ms: int = 0
    next_ms: int = 0
    """When the node tries next; 0: as each account is due."""
    outcome: str = ""
    brief: str = ""
    told: bool = False
    """The event ``provider.silent`` was told."""


@dataclass(slots=True)
class Told:
    """Holds what a node tells at a time. Times are milliseconds."""

    node: str = ""
    recent: Bucket = field(default_factory=Bucket)
    """Answers of the last moment, as counts."""
    older: Bucket = field(default_factory=Bucket)
    """Answers before that."""
    words: dict[Kind, tuple[str, str]] = field(default_factory=dict)
    """Class and brief of the last answer by kind."""
    goodput: float = 0.0
    """The answers a second of all nodes, 429 excluded, as this node reckons them."""
    wait_ms: int = 0
    """The shortest time that a 429 named; 0: none did."""
    error_wait_ms: int = 0
    """The longest time that a provider's error named."""
    in_a_row: dict[Kind, int] = field(default_factory=dict)
    """Witnesses that failed since this node last had an answer of a provider at work, by kind."""
    short: bool = False
    """The rate granted this node fewer requests than it asked for."""
    probe: bool | None = None
    """Whether a probe of this node's went well; None: there was none."""
    unclaim: bool = False
    """This node's probe was not sent."""
    silence: Silence | None = None
    """The trouble that this node meets with and that is no account's matter."""
    silent: bool = False
    """No provider answers this node any more."""
    answered: bool = False
    """The trouble that this node had told of is over."""

    @property
    def counted(self) -> Bucket:
        """Return all answers that are told."""
        return total((self.recent, self.older))


class Ended(NamedTuple):
    """Holds the end of a refresh: its answer, or that there is none."""

    account: str
    verdict: Verdict
    witness: bool = True
    """Its account had no troubles when it was asked."""
    proven: bool = False
    """Its account's last refresh went well."""
    refused_before: bool = False
    """Its account had been refused since it was well."""
    early: bool = False
    """Not half of the time had passed until its account was due: somebody had it refreshed."""

    @property
    def kind(self) -> Kind:
        """
        Return the kind of evidence that the answer is.

        A 429 to an early request shows a limit of the account: a few accounts whose workers ask
        again and again must not slow all others.
        """
        kind = kind_of(self.verdict)
        return "other" if kind == "limited" and self.early else kind


class AnswerCounts:
    """
    Counts a client's answers until they are told, those of the last moment apart.

    A failure that has just begun must not drown in half a minute of good answers.
    """

    def __init__(self, now_s: float) -> None:
        self.untold = Told()
        """The counts that are told next, without those of the moment before the last."""
        self._former = Bucket()
        self._slot_s = now_s
        self._ends: deque[float] = deque(maxlen=10_000)
        self.odd = False
        """Answers were counted that are not good ones of accounts that were well."""

    @property
    def recent(self) -> Bucket:
        """Return the counts of the last moment."""
        return total((self.untold.recent, self._former))

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to tell."""
        told = self.untold
        counted = (told.recent, self._former, told.older)
        return told.probe is None and not told.unclaim and all(bucket.empty for bucket in counted)

    def count_well(self, now_s: float) -> None:
        """
        Count a good answer of an account that was well: :meth:`count` for most of them, for less.
        """
        self._turn(now_s)
        self._ends.append(now_s)
        self.untold.recent.ok += 1
        if self.untold.in_a_row:
            self.untold.in_a_row.clear()

    def count(self, ended: Ended, kind: Kind, now_s: float) -> None:
        """Count an answer."""
        self.odd = True
        self._turn(now_s)
        told, verdict = self.untold, ended.verdict
        counts = told.recent
        if kind == "silent":
            return
        if kind == "ok":
            self.count_well(now_s)
            counts.accepted += ended.refused_before
            counts.mended += not ended.witness
            return
        wait_ms = int((verdict.retry_after_s or 0) * 1000)
        if kind == "limited":
            counts.limited += 1
            told.wait_ms = min(told.wait_ms or wait_ms, wait_ms or told.wait_ms)
        else:
            self._ends.append(now_s)
            counts.others += 1
            told.error_wait_ms = max(told.error_wait_ms, wait_ms)
        if kind in ("erring", "client") and ended.witness:
            told.in_a_row[kind] = told.in_a_row.get(kind, 0) + 1
        elif kind == "refused" and ended.witness:
            told.in_a_row.clear()
        counts.erring += kind == "erring" and ended.witness
        counts.erring_again += kind == "erring" and not ended.witness
        counts.client += kind == "client" and ended.witness
        if ended.witness and ended.proven:
            counts.refused += kind == "refused"
            counts.proven_client += kind == "client"
            counts.proven_erring += kind == "erring"
        elif ended.witness:
            counts.unproven += kind == "refused"
        counts.refused_again += kind in ("refused", "client") and ended.refused_before
        told.words[kind] = verdict.outcome, verdict.brief or verdict.outcome

    def take(self, node: str, now_s: float, nodes: int) -> Told:
        """Return all counts, to be told by ``node``, one of ``nodes``, and begin to count anew."""
        self._turn(now_s)
        told, recent = self.untold, self.recent
        told.node, told.recent, told.goodput = node, recent, self._goodput(now_s) * nodes
        self.untold, self._former, self._slot_s, self.odd = Told(), Bucket(), now_s, False
        return told

    def put_back(self, told: Told) -> None:
        """Put back counts that could not be told, so that they are told with the next ones."""
        self._former.add(told.recent)
        self.untold.older.add(told.older)
        if self.untold.recent.served == 0:
            for kind, failed in told.in_a_row.items():
                self.untold.in_a_row[kind] = self.untold.in_a_row.get(kind, 0) + failed
        if self.untold.probe is None:
            self.untold.probe = told.probe
        self.untold.unclaim = self.untold.unclaim or told.unclaim
        self.odd = True

    def _goodput(self, now_s: float) -> float:
        """Return how many answers a second this node got of late, 429 excluded; at least one."""
        while self._ends and self._ends[0] < now_s - GOODPUT_S:
            self._ends.popleft()
        over_s = max(GOODPUT_S_MIN, now_s - self._ends[0]) if self._ends else GOODPUT_S
        return max(1.0, len(self._ends) / over_s)

    def _turn(self, now_s: float) -> None:
        passed_s, width_s, told = now_s - self._slot_s, WIDTH_MS / 1000, self.untold
        if passed_s <= width_s:
            return
        told.older.add(self._former)
        self._former = told.recent
        if passed_s > 2 * width_s:
            told.older.add(self._former)
            self._former = Bucket()
        told.recent, self._slot_s = Bucket(), now_s
