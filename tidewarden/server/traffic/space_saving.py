"""
Heavy hitters in bounded memory, by several measures at once.

This is space-saving (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k
elements in data streams", 2005), fed in batches and merged as in Cafaro, Pulimeno, Tempesta ("A
parallel space saving algorithm", 2016), with counters for each of a few measures in one entry.

Of each measure, N being its sum over everything and m the number of counters:

* what is counted for a key is at most what it had, and at least that less its ``error``;
* no error is more than N/m;
* every key with more than N/m has an entry.

It holds whatever is added or merged in which order. Why: a key that has no entry had at most
``floor``, and m entries have at least as much, so that m times the floor is never more than N. A
merge keeps that: m entries have at least the sum of both floors.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from operator import add
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

COUNTERS = 128
"""m: an error is less than one in so many of all requests, bytes, errors and microseconds."""


class SpaceSaving(Generic[Key]):
    """
    Counts keys, and keeps those that had most of any measure.

    Args:
        measures: how many there are.
        counters: m.

    It has at most ``2 * (measures * counters)`` entries. ``totals`` and ``floors`` have a number
    for each measure: what all keys had, and the most that a key without an entry may have had.
    """

    __slots__ = ("_entries", "_kept_max", "_most", "counters", "floors", "measures", "totals")

    def __init__(self, measures: int, counters: int = COUNTERS) -> None:
        self.measures = measures
        self.counters = counters
        self.totals = [0] * measures
        self.floors = [0] * measures
        self._kept_max = measures * counters
        self._most = 2 * self._kept_max  # so that not every new key costs a look at all entries
        self._entries: dict[Key, list[int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: Key, sums: Sequence[int]) -> None:
        """Count a key, by a number for each measure."""
        self.totals[:] = map(add, self.totals, sums)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = [*sums, *self.floors]
            if len(self._entries) > self._most:
                self._prune()
        else:
            entry[: self.measures] = map(add, entry, sums)

    def merge(self, other: SpaceSaving[Key]) -> None:
        """Add the counts of another, which are of other requests."""
        here, there = self._entries, other._entries
        floors = self.floors
        nothing = [0] * self.measures
        for key, entry in here.items():
            if key not in there:
                entry[:] = map(add, entry, nothing + other.floors)
        for key, entry in there.items():
            known = here.get(key)
            here[key] = list(map(add, nothing + floors if known is None else known, entry))
        self.totals[:] = map(add, self.totals, other.totals)
        self.floors[:] = map(add, floors, other.floors)
        if len(here) > self._most:
            self._prune()

    def entries(self) -> Iterable[tuple[Key, Sequence[int], Sequence[int]]]:
        """
        Yield each key that is kept, what was counted of it for sure, and how much more it may have.
        """
        size = self.measures
        return ((key, entry[:size], entry[size:]) for key, entry in self._entries.items())

    def restore(self, key: Key, sums: Sequence[int], errors: Sequence[int]) -> None:
        """Put back an entry that :meth:`entries` gave; totals and floors are set beside it."""
        self._entries[key] = [*sums, *errors]

    def trim(self) -> None:
        """Keep no more entries than the guarantee needs."""
        if len(self._entries) > self._kept_max:
            self._prune()

    def _prune(self) -> None:
        """Keep the m greatest of each measure, and of the others how great they were at most."""
        entries, size = self._entries, self.measures
        keep: set[Key] = set()
        for measure in range(size):
            great = heapq.nlargest(
                self.counters,
                entries.items(),
                key=lambda item, of=measure: item[1][of] + item[1][of + size],  # type: ignore[misc]
            )
            keep.update(key for key, entry in great if entry[measure] + entry[measure + size])
        for key in entries.keys() - keep:
            entry = entries.pop(key)
            self.floors[:] = map(max, self.floors, map(add, entry[:size], entry[size:]))
