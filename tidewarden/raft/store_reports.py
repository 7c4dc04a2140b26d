"""Keeps what each member last said of its own store, and when it was heard."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

REPORT_MAX = 16_384
"""Longest report: its characters, and one for each value."""
DEPTH_MAX = 3
"""Tuples within tuples of a report, itself among them."""
INTEGER_MAX = 2**63

Report = tuple[Any, ...]


class StoreReports:
    """
    Keeps the last report of each other member.

    One thread writes. Any may read :attr:`heard`, which is never changed but replaced as a whole.
    """

    def __init__(self) -> None:
        self.heard: Mapping[str, tuple[float, Report]] = {}
        """By name: when a report was last heard, monotonic seconds, and what it said."""
        self.changes = 0
        """How often another content came, or somebody was forgotten."""

    def hear(self, name: str, at: float, value: object) -> None:
        """Keep what ``name`` said; what is no report changes nothing."""
        if not isinstance(value, tuple) or not is_report(value):
            return
        before = self.heard.get(name)
        self.heard = {**self.heard, name: (at, value)}
        if before is None or before[1] != value:
            self.changes += 1

    def hear_again(self, name: str, at: float) -> None:
        """Note that ``name`` stands by what it said last."""
        if name in self.heard:
            self.heard = {**self.heard, name: (at, self.heard[name][1])}

    def keep(self, names: Collection[str]) -> None:
        """Forget everybody else."""
        kept = {name: report for name, report in self.heard.items() if name in names}
        if len(kept) < len(self.heard):
            self.heard = kept
            self.changes += 1


def is_report(value: object) -> bool:
    """Return whether it is a tuple of plain values, not too long and not too deep."""
    return isinstance(value, tuple) and _left(value, REPORT_MAX, DEPTH_MAX) >= 0


def _left(value: object, most: int, depth: int) -> int:
    """Return what is left of ``most`` characters after ``value``; negative: it is none, or long."""
    most -= 1
    if type(value) is tuple and depth:
        for item in value:
            most = _left(item, most, depth - 1)
            if most < 0:
                return -1
        return most
    if type(value) is str:
        return most - len(value)
    if type(value) is bool or (type(value) is int and abs(value) < INTEGER_MAX):
        return most
    # what is no number equals nothing, itself neither: it would be news each time
    return most if type(value) is float and math.isfinite(value) else -1
