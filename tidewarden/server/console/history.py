"""Keeps the last hour of some figures: one number each ten seconds, in bounded memory."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence

STEP_MS = 10_000
POINTS = 360
STEP_S = STEP_MS // 1000


def slot_of(unix_ms: int) -> int:
    """Return the number of the step that a moment lies in."""
    return unix_ms // STEP_MS


class Ring:
    """Keeps one figure's last :data:`POINTS` numbers, each under its slot; NaN: none."""

    __slots__ = ("_last", "_numbers")

    def __init__(self) -> None:
        self._numbers = array("d", [math.nan] * POINTS)
        self._last = -1

    def put(self, slot: int, number: float) -> None:
        """Set the number of a slot, unless the slot is older than those that are kept."""
        if slot <= self._last - POINTS:
            return
        if slot > self._last:
            for passed in range(max(self._last + 1, slot - POINTS + 1), slot):
                self._numbers[passed % POINTS] = math.nan
            self._last = slot
        self._numbers[slot % POINTS] = number

    def at(self, slot: int) -> float:
        """Return the number of a slot, or NaN."""
        kept = self._last - POINTS < slot <= self._last
        return self._numbers[slot % POINTS] if kept else math.nan

    def over(self, first: int, last: int) -> list[float]:
        """Return the numbers from a slot to another one, both included."""
        return [self.at(slot) for slot in range(first, last + 1)]

    def latest(self, slot: int, seconds: int) -> float:
        """Return the newest number of the seconds before a slot; 0: none is known."""
        known = (self.at(one) for one in range(slot, slot - seconds // STEP_S - 1, -1))
        return next((number for number in known if not math.isnan(number)), 0.0)

    def growth(self, slot: int, seconds: int) -> float:
        """
        Return the figure's growth within the seconds before a slot; 0: it is none, or unknown.
        """
        known = [
            number for number in self.over(slot - seconds // STEP_S, slot) if not math.isnan(number)
        ]
        return known[-1] - known[0] if known else 0.0

    def risen(self, slot: int, seconds: int) -> float:
        """Return how much a counter has counted meanwhile; one that begins anew counts from 0."""
        known = [
            number for number in self.over(slot - seconds // STEP_S, slot) if not math.isnan(number)
        ]
        return sum(
            after - before if after >= before else after
            for before, after in itertools.pairwise(known)
        )


class History:
    """Keeps one ring for each figure of a subject; the names are ours, so there are few."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring] = {}

    def put(self, slot: int, figures: Mapping[str, float]) -> None:
        """Note the figures of a slot."""
        for name, number in figures.items():
            ring = self._rings.get(name)
            if ring is None:
                ring = self._rings[name] = Ring()
            ring.put(slot, number)

    def ring(self, name: str) -> Ring | None:
        """Return the ring of a figure; None: it was never put."""
        return self._rings.get(name)

    def latest(self, name: str, slot: int) -> float:
        """Return a figure's number of a slot, or of the one before it; 0: neither is there."""
        ring = self._rings.get(name)
        if ring is None:
            return 0.0
        found = ring.at(slot)
        found = ring.at(slot - 1) if math.isnan(found) else found
        return 0.0 if math.isnan(found) else found

    def series(
        self, slot: int, gauges: Iterable[str], counters: Iterable[str]
    ) -> dict[str, list[float | None]]:
        """Return the hour before a slot; of counters, what they counted in each step."""
        first = slot - POINTS + 1
        found: dict[str, list[float | None]] = {}
        for name in gauges:
            if ring := self._rings.get(name):
                found[name] = [_known(number) for number in ring.over(first, slot)]
        for name in counters:
            if ring := self._rings.get(name):
                found[name] = counted(ring.over(first - 1, slot))
        return found


def counted(numbers: Sequence[float]) -> list[float | None]:
    """Return what a counter counted from each number to the next one; None: it began anew."""
    return [
        _known(after - before) if not after < before else None
        for before, after in itertools.pairwise(numbers)
    ]


def add_series(
    sums: dict[str, list[float | None]], part: Mapping[str, Sequence[float | None]]
) -> None:
    """
    Add a subject's series to the sums of several, a point each; an unknown point adds nothing.
    """
    for name, numbers in part.items():
        points = sums.setdefault(name, [None] * len(numbers))
        for index, number in enumerate(numbers):
            if number is not None:
                points[index] = (points[index] or 0) + number


def _known(number: float) -> float | None:
    if math.isnan(number):
        return None
    return int(number) if number == int(number) else number
