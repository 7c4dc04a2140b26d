"""Reads the state of a tube: how many jobs are in which state, and which is next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidewarden.queue.queues import Queues

from .job_numbers import Job
from .jobs import FIRST_DEADLINE_MS

URGENT = 1024
"""A ready job of a smaller priority is urgent."""
MOVED_MAX = 200  # due jobs that one reading moves to ready
AT_ONCE = 64  # tubes that are read together
Order = tuple[int, int, str]
"""The key by which jobs of any tubes are compared: band, deadline, id."""


class TubeState(NamedTuple):
    """
    Describes one tube at one moment.

    ``ready``, ``delayed`` and ``buried``: the next job of each, with what it is ordered by.
    """

    counts: dict[str, int]
    paused_until_ms: int
    paused_for_ms: int
    now_ms: int
    ready: tuple[Order, Job] | None
    delayed: tuple[tuple[int, str], Job] | None
    buried: tuple[tuple[int, str], Job] | None
    counters: dict[str, int]

    @property
    def jobs(self) -> int:
        """Return how many jobs the tube has."""
        states = ("ready", "reserved", "delayed", "buried")
        return sum(self.counts[state] for state in states)


async def read_tube(queues: Queues, queue: str) -> TubeState:
    """Read the tube of a queue that is there. Raises: StoreDown."""
    rows = await queues.scripts.run_each(
        "queue.tube", queue, (FIRST_DEADLINE_MS + URGENT, MOVED_MAX)
    )
    counts = dict.fromkeys(("delayed", "ready", "reserved", "buried", "urgent"), 0)
    counters: dict[str, int] = {}
    ready, delayed, buried = [], [], []
    paused_until_ms = paused_for_ms = 0
    for numbers, (until_ms, for_ms), first, later, aside, counted in rows:
        for name, number in zip(counts, numbers, strict=True):
            counts[name] += number
        paused_until_ms = max(paused_until_ms, until_ms)
        paused_for_ms = max(paused_for_ms, for_ms)
        if first:
            ready.append((first[0], first[1], _text(first[2])))
        if later:
            delayed.append((later[0], _text(later[1])))
        if aside:
            buried.append((aside[0], _text(aside[1])))
        for name, number in zip(counted[::2], counted[1::2], strict=True):
            counters[name.decode()] = counters.get(name.decode(), 0) + int(number)
    now_ms = max(shard.now_ms for shard in queues.catalog.shards[queue])
    return TubeState(
        counts,
        paused_until_ms,
        paused_for_ms,
        now_ms,
        (min(ready), Job(queue, min(ready)[2])) if ready else None,
        (min(delayed), Job(queue, min(delayed)[1])) if delayed else None,
        (min(buried), Job(queue, min(buried)[1])) if buried else None,
        counters,
    )


async def read_tubes(queues: Queues, names: Iterable[str]) -> list[TubeState]:
    """Read many tubes, some at a time."""
    return [
        found
        for part in _parts(list(names))
        for found in await asyncio.gather(*(read_tube(queues, name) for name in part))
    ]


def _parts(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), AT_ONCE):
        yield names[first : first + AT_ONCE]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
