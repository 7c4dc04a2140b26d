"""Counts a client's answers until they are told to the other nodes. Times are handed in."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidewarden.config.error_classes import Kind
from tidewarden.tokens.provider.token_response import Verdict

from .evidence import WIDTH_MS, Bucket, total
from .judgement import Told

METER_S = 5.0
METER_S_MIN = 0.25


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


class Gathering:
    """
    Counts a client's answers until they are told, those of the last moment apart.

    A failure that has just begun must not drown in half a minute of good answers.
    """

    def __init__(self, now_s: float) -> None:
        self._ends: deque[float] = deque(maxlen=10_000)
        self.probe: bool | None = None
        """Whether a probe of this node's went well; None: none has ended."""
        self.unclaim = False
        """A probe was not sent."""
        self.short = False
        """The client's rate granted less than was asked for."""
        self.odd = False
        """Something but good answers of accounts that were well was counted."""
        self._reset(now_s)

    def _reset(self, now_s: float) -> None:
        self._recent, self._former, self._older = Bucket(), Bucket(), Bucket()
        self._slot_s = now_s
        self._words: dict[Kind, tuple[str, str]] = {}
        self.in_a_row: dict[Kind, int] = {}
        """Witnesses that failed since the last good answer, by kind."""
        self._wait_ms = self._error_wait_ms = 0
        self.odd = False

    @property
    def recent(self) -> Bucket:
        """What came within the last moment."""
        return total((self._recent, self._former))

    def count_well(self, now_s: float) -> None:
        """
        Count a good answer of an account that was well: :meth:`count` for most of them, for less.
        """
        self._turn(now_s)
        self._ends.append(now_s)
        self._recent.ok += 1
        if self.in_a_row:
            self.in_a_row.clear()

    def count(self, ended: Ended, kind: Kind, now_s: float) -> None:
        """Count an answer."""
        self.odd = True
        self._turn(now_s)
        counts, verdict = self._recent, ended.verdict
        if kind == "silent":
            return
        if kind == "ok":
            self._ends.append(now_s)
            counts.ok += 1
            self.in_a_row.clear()
            counts.accepted += ended.refused_before
            counts.mended += not ended.witness
            return
        wait_ms = int((verdict.retry_after_s or 0) * 1000)
        if kind == "limited":
            counts.limited += 1
            self._wait_ms = min(self._wait_ms or wait_ms, wait_ms or self._wait_ms)
        else:
            self._ends.append(now_s)
            counts.others += 1
            self._error_wait_ms = max(self._error_wait_ms, wait_ms)
        if kind in ("erring", "client") and ended.witness:
            self.in_a_row[kind] = self.in_a_row.get(kind, 0) + 1
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
        self._words[kind] = verdict.outcome, verdict.brief or verdict.outcome

    def take(self, node: str, now_s: float, nodes: int) -> Told:
        """All of it, to be told; nothing is counted then."""
        self._turn(now_s)
        told = Told(
            node,
            self.recent,
            self._older,
            self._words,
            self._goodput(now_s) * nodes,
            self._wait_ms,
            self._error_wait_ms,
            self.in_a_row,
            self.short,
            self.probe,
            self.unclaim,
        )
        self.probe, self.unclaim, self.short = None, False, False
        self._reset(now_s)
        return told

    def put_back(self, told: Told) -> None:
        """It was not told: it is told with what comes next."""
        self._former.add(told.recent)
        self._older.add(told.older)
        if self._recent.ok == 0:
            for kind, failed in told.in_a_row.items():
                self.in_a_row[kind] = self.in_a_row.get(kind, 0) + failed
        if self.probe is None:
            self.probe = told.probe
        self.unclaim = self.unclaim or told.unclaim
        self.odd = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        counted = (self._recent, self._former, self._older)
        return self.probe is None and not self.unclaim and all(bucket.empty for bucket in counted)

    def _goodput(self, now_s: float) -> float:
        """Answers a second but 429 that this node got of late; at least one."""
        while self._ends and self._ends[0] < now_s - METER_S:
            self._ends.popleft()
        over_s = max(METER_S_MIN, now_s - self._ends[0]) if self._ends else METER_S
        return max(1.0, len(self._ends) / over_s)

    def _turn(self, now_s: float) -> None:
        passed_s, width_s = now_s - self._slot_s, WIDTH_MS / 1000
        if passed_s <= width_s:
            return
        self._older.add(self._former)
        if passed_s > 2 * width_s:
            self._older.add(self._recent)
            self._recent = Bucket()
        self._former, self._recent, self._slot_s = self._recent, Bucket(), now_s
