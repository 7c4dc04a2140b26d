"""
Histograms of durations, in fixed buckets, and the list of those that a node keeps.

Each part of a node owns the families that it feeds, and shows them in its ``stats()`` under
:data:`STATS`, as nested mappings of numbers: those of a node's processes are added up like any
other figure (:mod:`tidewarden.server.stats_merge`). A family's labels are names from tables or the
configuration, never what a stranger may choose, and there are at most :data:`SERIES_MAX` of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

STATS = "histograms"
"""Under this name a part's ``stats()`` has its families."""
SERIES_MAX = 500
"""Of one family in one process; what comes after them is counted under :data:`OTHERS`."""
OTHERS = "(others)"
BETWEEN = "\t"
"""Stands between the labels of a series in ``stats()``; no name has it."""

QUICK_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Bounds for what a machine does: from a tenth of a millisecond to half a minute."""
LONG_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0),
)
"""Bounds for what people and deadlines wait for: from a millisecond to a day."""


@dataclass(frozen=True, slots=True)
class Kind:
    """
    Says what a family counts.

    Args:
        name: in ``/metrics`` after ``tidewarden_``; ends in ``_seconds``.
        help: what it is, for people.
        labels: of each of its series.
        bounds: inclusive upper ends of its buckets, in seconds; one more has no end.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]


REQUESTS = Kind(
    "request_duration_seconds",
    "Time from a request's turn until its answer was ready, of those that do not wait",
    ("door", "verb"),
    QUICK_S,
)
WAITS = Kind(
    "request_wait_seconds",
    "Likewise of those that wait as long as their caller says: takes, puts, locks, streams",
    ("door", "verb"),
    LONG_S,
)
LATENESS = Kind(
    "task_lateness_seconds",
    "Time from a task's due time until it was taken for the first time here, by the store's clock",
    ("queues",),
    LONG_S,
)
HELD = Kind(
    "task_held_seconds",
    "Time from a task's take until its holder, the same connection or session, ended the lease",
    ("how",),
    LONG_S,
)
SCRIPTS = Kind(
    "store_script_seconds",
    "Time from a script's call until its answer was read, by script; many requests may share one",
    ("script",),
    QUICK_S,
)
COMMITS = Kind(
    "store_commit_seconds",
    "Time of one group commit: until replicas or the disk had what its answers waited for",
    ("outcome",),
    QUICK_S,
)
REFRESHES = Kind(
    "token_refresh_seconds",
    "Time of a refresh from its lease until its outcome was stored, by the outcome's class",
    ("provider", "outcome"),
    QUICK_S,
)
WEBHOOKS = Kind(
    "webhook_delivery_seconds",
    "Time of one delivery to a webhook's receiver",
    ("webhook", "outcome"),
    QUICK_S,
)
ELECTIONS = Kind(
    "election_seconds",
    "Time from the last word of a leader until another, or a new term of it, was known here",
    (),
    QUICK_S,
)
FAILOVERS = Kind(
    "store_failover_seconds",
    "Time in which no store was open as the primary, as this node heard of it",
    (),
    LONG_S,
)
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        *(REQUESTS, WAITS, LATENESS, HELD, SCRIPTS, COMMITS),
        *(REFRESHES, WEBHOOKS, ELECTIONS, FAILOVERS),
    )
}


class Histogram:
    """Counts durations by the bucket that they fall in, and adds them up."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def stats(self) -> dict[str, float]:
        """Return how many are in each bucket that is not empty, by its index, and their sum."""
        filled = {str(index): count for index, count in enumerate(self.counts) if count}
        return {**filled, "sum": self.sum} if filled else {}


class Family:
    """Holds the histograms of one kind, each with its own labels."""

    __slots__ = ("_series", "kind")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._series: dict[tuple[str, ...], Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """Return the histogram with these labels; made at the first call."""
        found = self._series.get(labels)
        if found is None:
            if len(self._series) >= SERIES_MAX:
                labels = (OTHERS,) * len(labels)
            found = self._series.setdefault(labels, Histogram(self.kind.bounds))
        return found

    def stats(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return what :data:`STATS` has of this family; a series without a count is left out."""
        series = {BETWEEN.join(labels): one.stats() for labels, one in self._series.items()}
        return {self.kind.name: {labels: counts for labels, counts in series.items() if counts}}


def told_of(*families: Family) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Return the entry of a part's stats that has these families."""
    return {STATS: {name: told for one in families for name, told in one.stats().items()}}


def series_of(
    stats: Mapping[str, Mapping[str, float]], bounds: tuple[float, ...]
) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
    """Yield labels, count of each bucket, and sum of each series that :meth:`Family.stats` told."""
    for labels, told in stats.items():
        counts = [int(told.get(str(index), 0)) for index in range(len(bounds) + 1)]
        yield tuple(labels.split(BETWEEN)) if labels else (), counts, float(told.get("sum", 0.0))
