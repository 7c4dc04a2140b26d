"""Who sends most: the answer of ``R.TRAFFIC`` and of ``/v1/traffic``."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidewarden.peer_line import UnreachableNode

from .space_saving import SpaceSaving
from .tables import FIELDS, By, Key
from .windows import Over

Sort = Literal["requests", "bytes", "errors", "time"]
RANKED: dict[Sort, tuple[int, ...]] = {
    "requests": (0,),
    "bytes": (1, 2),
    "errors": (3,),
    "time": (4,),
}
"""Which measures the rank is by."""
TOP, TOP_MAX = 20, 100


class TrafficQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of the traffic is asked for."""

    by: Annotated[By, Meta(description="What the rows are of.", examples=["queue"])] = "request"
    top: Annotated[int, Meta(ge=1, le=TOP_MAX, description="How many rows.")] = TOP
    sort: Annotated[Sort, Meta(description="Which rows are the first.")] = "requests"
    over: Annotated[Over, Meta(description="The last minute, or since each node started.")] = (
        "minute"
    )
    node: Annotated[
        str, Meta(max_length=200, description="One node's name, or all.", examples=["n0"])
    ] = "all"


class TrafficSums(msgspec.Struct, frozen=True):
    """Adds up requests."""

    requests: int
    bytes_in: int
    bytes_out: int
    errors: int
    us: Annotated[int, Meta(description="Microseconds until they were answered, waits included.")]


class TrafficRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One of those who send most: what was counted of it for sure.

    ``error`` says how much more it may have had; it is absent where nothing was missed. The fields
    before ``requests`` are those that the rows are by.
    """

    requests: int
    bytes_in: int
    bytes_out: int
    errors: int
    us: int
    requests_per_s: float
    user: str | None = None
    verb: str | None = None
    kind: str | None = None
    """What the name is of: queue, provider, lock, schedule."""
    name: str | None = None
    peer: str | None = None
    error: TrafficSums | None = None


class TrafficReport(msgspec.Struct, frozen=True):
    """Says who sends most, over all nodes that answered."""

    by: By
    over: Over
    sort: Sort
    seconds: Annotated[float, Meta(description="How long the longest counting node has counted.")]
    nodes: list[str]
    unreachable: list[UnreachableNode]
    total: Annotated[TrafficSums, Meta(description="Of everything, also of what has no row.")]
    unlisted_max: Annotated[
        TrafficSums,
        Meta(description="The most that anything may have had that no counter was kept for."),
    ]
    rows: list[TrafficRow]


def report(
    query: TrafficQuery,
    table: SpaceSaving[Key],
    seconds: float,
    nodes: Sequence[str],
    unreachable: Sequence[UnreachableNode],
) -> TrafficReport:
    """Report the greatest of a table, the first being the greatest."""
    measures = RANKED[query.sort]

    def rank(entry: tuple[Key, Sequence[int], Sequence[int]]) -> tuple[int, int]:
        _, sums, errors = entry
        return sum(sums[one] + errors[one] for one in measures), sums[0]

    return TrafficReport(
        query.by,
        query.over,
        query.sort,
        round(seconds, 1),
        list(nodes),
        list(unreachable),
        TrafficSums(*table.totals),
        TrafficSums(*table.floors),
        [
            _row(query.by, key, sums, errors, seconds)
            for key, sums, errors in heapq.nlargest(query.top, table.entries(), key=rank)
        ],
    )


def _row(
    by: By, key: Key, sums: Sequence[int], errors: Sequence[int], seconds: float
) -> TrafficRow:
    named = dict(zip(FIELDS[by], key, strict=True))
    requests, bytes_in, bytes_out, failed, us = sums
    return TrafficRow(
        requests,
        bytes_in,
        bytes_out,
        failed,
        us,
        round(requests / max(1.0, seconds), 3),
        named.get("user"),
        named.get("verb"),
        named.get("kind"),
        named.get("name"),
        named.get("peer"),
        TrafficSums(*errors) if any(errors) else None,
    )
