"""What schedules will put within a time to come: ticks in order, and rates of the busy ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tidewarden.clock import in_turns
from tidewarden.errors import BadArg

from .rows import spec_from
from .trigger import DAY_MS, Spec, ticks_to_come

WITHIN_MS_MAX = 31 * DAY_MS
TICKS_MAX = 1_000
RATES_MAX = 1_000
BUSY_PER_DAY = 48  # a schedule with more ticks on a day is told as a rate


class Outlook:
    """
    Finds the ticks of all schedules up to a moment, in their order, a bounded number.

    ``rows``: the schedules as S.LIST shows them. What is told is whole up to ``until_ms``, which is
    earlier than asked for where there is ``more``.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], now_ms: int, until_ms: int) -> None:
        self._rows = rows
        self._now_ms = now_ms
        self._until_ms = until_ms
        self._more = False
        self._resting = 0  # that are paused, stuck or cannot be read
        self._ticks: list[dict[str, Any]] = []
        self._rates: list[dict[str, Any]] = []
        self._next: list[tuple[int, int]] = []  # a heap: next tick, number of the row
        self._coming: dict[int, Iterator[int]] = {}  # by number of the row: the ticks after that

    def pieces(self) -> Iterator[None]:
        """Do the work, and yield after each piece of it."""
        for number, row in enumerate(self._rows):
            if row["state"] != "active":
                self._resting += 1
            elif row["next_ms"] <= self._until_ms:
                heapq.heappush(self._next, (row["next_ms"], number))
            yield
        while self._next and not self._more:
            at_ms, number = heapq.heappop(self._next)
            if number not in self._coming:
                self._begin(at_ms, number)
            elif len(self._ticks) == TICKS_MAX:
                self._cut(at_ms)
            else:
                self._ticks.append(self._named(number) | {"at_ms": at_ms})
                self._follow(number)
            yield

    def told(self) -> dict[str, Any]:
        """Return what was found."""
        return {
            "from_ms": self._now_ms,
            "until_ms": self._until_ms,
            "ticks": self._ticks,
            "rates": self._rates,
            "resting": self._resting,
            "more": self._more,
        }

    def _begin(self, at_ms: int, number: int) -> None:
        row = self._rows[number]
        spec = _spec_of(row)
        if spec is None:
            self._resting += 1
        elif spec.per_day <= BUSY_PER_DAY:
            self._coming[number] = ticks_to_come(spec, at_ms, self._now_ms)
            self._follow(number)
        elif len(self._rates) == RATES_MAX:
            self._cut(at_ms)
        else:
            often = {"next_ms": at_ms, "per_day": spec.per_day}
            self._rates.append(self._named(number) | often)

    def _follow(self, number: int) -> None:
        at_ms = next(self._coming[number], None)
        if at_ms is not None and at_ms <= self._until_ms:
            heapq.heappush(self._next, (at_ms, number))

    def _named(self, number: int) -> dict[str, Any]:
        row = self._rows[number]
        return {"name": row["name"], "queue": row["queue"]}

    def _cut(self, at_ms: int) -> None:
        self._more, self._until_ms = True, at_ms - 1


async def outlook(rows: Sequence[Mapping[str, Any]], now_ms: int, until_ms: int) -> dict[str, Any]:
    """Return what these schedules will put up to a moment; others have their turns meanwhile."""
    found = Outlook(rows, now_ms, until_ms)
    async for _ in in_turns(found.pieces(), 1):
        pass
    return found.told()


async def next_ticks(row: Mapping[str, Any], now_ms: int, count: int) -> list[int]:
    """Return the next ticks of a schedule, at most ``count``; of one that rests there are none."""
    spec = _spec_of(row) if row["state"] == "active" else None
    if spec is None:
        return []
    coming = islice(ticks_to_come(spec, row["next_ms"], now_ms), count)
    return [tick_ms async for tick_ms in in_turns(coming, 1)]


def _spec_of(row: Mapping[str, Any]) -> Spec | None:
    """Return the spec of a schedule that S.LIST shows; None: this node cannot compute its ticks."""
    try:
        return spec_from(row, row.get("anchor_ms", 0))
    except BadArg:
        return None
