"""Measures a queue server (ours, beanstalkd, Tarantool) with 50 connections from this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.connections import CONNECTIONS, Cycle, Drain, Fill, rate_of
from benchmarks.disconnect import deaths, in_a_process
from benchmarks.lateness import lateness
from benchmarks.machine import median, percentile
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.peers.row import Row
from benchmarks.targets import Target

ENQUEUED_MAX = 100_000
DELAYED_S, DELAYED_RATE = 2.0, 50.0
DEATHS = 20

Start = Callable[[Path], contextlib.AbstractContextManager[Target]]
SERVERS: dict[str, tuple[Start, Callable[[Target], int]]] = {
    "tidewarden": (tidewarden.started, tidewarden.memory_bytes),
    "beanstalkd": (beanstalkd.started, beanstalkd.memory_bytes),
    "tarantool": (tarantool.started, tarantool.memory_bytes),
}


@contextlib.contextmanager
def started(name: str, folder: Path) -> Iterator[Target]:
    """
    The server of that name.

    Raises: Missing.
    """
    with SERVERS[name][0](folder) as target:
        yield target


async def measure(target: Target, seconds: float) -> Row:
    """
    A server's row.

    Raises: Broken.
    """
    used: Any = SERVERS[target.name][1]
    row = Row(target.name, target.version)
    row.cycle = (await rate_of(target, Cycle, CONNECTIONS, seconds * 0.25)).rate
    before = used(target)
    put = await rate_of(target, Fill, CONNECTIONS, seconds * 0.2, rounds_max=ENQUEUED_MAX, warm_s=0)
    row.enqueue = put.rate
    row.memory = (used(target) - before) / max(1, put.count)
    taken = await rate_of(target, Drain, CONNECTIONS, seconds, rounds_max=put.count, warm_s=0)
    row.consume = taken.rate
    late = await lateness(target, DELAYED_S, DELAYED_RATE)
    row.late_p50, row.late_p99 = percentile(late, 0.5), percentile(late, 0.99)
    row.death = median(await deaths(target, DEATHS, in_a_process))
    return row
