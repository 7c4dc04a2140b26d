"""
Counts requests from five sides: by user, verb, name, peer, and by user, verb and name together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from .space_saving import COUNTERS, SpaceSaving

By = Literal["request", "user", "verb", "queue", "peer"]
"""``request``: user, verb and name; ``queue``: the name, of a queue, provider, lock or schedule."""
MEASURES = ("requests", "bytes_in", "bytes_out", "errors", "us")
"""The measures; ``us``: microseconds until requests were answered."""

Key = tuple[str, ...]
FIELDS: Mapping[By, tuple[str, ...]] = {
    "request": ("user", "verb", "kind", "name"),
    "user": ("user",),
    "verb": ("verb",),
    "queue": ("kind", "name"),
    "peer": ("peer",),
}
"""The names of the parts of a key."""
KINDS = {"T": "provider", "P": "provider", "L": "lock", "S": "schedule"}
ROWS_A_PART = 100


class Part(msgspec.Struct, frozen=True, array_like=True):
    """
    Holds a piece of a table on its way to another process or node; the first has floors and totals.
    """

    by: By
    measures: int
    totals: list[int]
    floors: list[int]
    rows: list[tuple[Key, list[int], list[int]]]
    more: bool = False
    """Whether another piece of this table follows."""


class Tables:
    """Counts the traffic of some time, a :class:`SpaceSaving` for each side of it."""

    __slots__ = ("by",)

    def __init__(self, counters: int = COUNTERS) -> None:
        self.by: dict[By, SpaceSaving[Key]] = {
            side: SpaceSaving(len(MEASURES), counters) for side in FIELDS
        }

    def add(self, user: str, verb: str, name: str, peer: str, sums: Sequence[int]) -> None:
        """Count requests of one user, verb, name (empty: of none) and peer."""
        by, kind = self.by, kind_of(verb) if name else ""
        by["request"].add((user, verb, kind, name), sums)
        by["user"].add((user,), sums)
        by["verb"].add((verb,), sums)
        by["peer"].add((peer,), sums)
        if name:
            by["queue"].add((kind, name), sums)

    def merge(self, other: Tables) -> None:
        """Add counts from elsewhere, or of another time."""
        for side, table in self.by.items():
            table.merge(other.by[side])

    def empty(self) -> bool:
        """Return whether nothing was counted."""
        return not self.by["verb"].totals[0]


def kind_of(verb: str) -> str:
    """Return the kind of name that a verb is about."""
    return KINDS.get(verb.partition(".")[0], "queue")


def parts_of(side: By, table: SpaceSaving[Key], rows_max: int = ROWS_A_PART) -> Iterator[Part]:
    """Yield a table in pieces, none of which is long."""
    table.trim()
    rows = [(key, list(sums), list(errors)) for key, sums, errors in table.entries()]
    head = (side, table.measures, table.totals, table.floors)
    for first in range(0, max(1, len(rows)), rows_max):
        yield Part(*head, rows[first : first + rows_max], first + rows_max < len(rows))


def table_of(parts: Sequence[Part], counters: int = COUNTERS) -> SpaceSaving[Key]:
    """
    Put the table together that came in these pieces.

    Raises: ValueError: it counts what this version does not know.
    """
    first = parts[0]
    if first.measures != len(MEASURES) or len(first.totals) != len(first.floors) != first.measures:
        raise ValueError(f"{first.measures} measures")
    table: SpaceSaving[Key] = SpaceSaving(first.measures, counters)
    table.totals, table.floors = first.totals, first.floors
    for part in parts:
        for key, sums, errors in part.rows:
            table.restore(key, sums, errors)
    return table


SIDES: tuple[By, ...] = get_args(By)
