"""Writes the statistics that clients of beanstalkd read: of a job, of a tube, of the node."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from typing import Any

from .context import DoorContext
from .jobs import priority_of
from .tube_state import TubeState

STATES = {"leased": "reserved", "waiting": "delayed"}
"""The words of beanstalkd for our states; a job that waits in its lane cannot be reserved."""
VERSION = "1.12"
COMMANDS = (
    *("put", "peek", "peek-ready", "peek-delayed", "peek-buried", "reserve"),
    *("reserve-with-timeout", "delete", "release", "use", "watch", "ignore", "bury", "kick"),
    *("touch", "stats", "stats-job", "stats-tube", "list-tubes", "list-tube-used"),
    *("list-tubes-watched", "pause-tube"),
)
"""The commands in the order in which they are shown; others are not shown."""


def document(rows: Mapping[str, Any]) -> str:
    """Write a YAML dictionary."""
    return "---\n" + "".join(f"{name}: {value}\n" for name, value in rows.items())


def of_job(
    number: int, tube: str, task: Mapping[str, Any], tally: Iterable[int], now_ms: int, run_ms: int
) -> str:
    """
    Show a job.

    Args:
        task: as peek shows it.
        tally: what has happened to it, as tally.lua says.
        now_ms: the store's clock.
        run_ms: how long a task of the queue is leased that does not say itself.
    """
    put_delay_s, delay_s, reserves, timeouts, releases, buries, kicks = tally
    left_ms = 0
    if task["state"] == "leased":
        left_ms = task["lease_end_ms"] - now_ms
    elif task["state"] == "delayed":
        left_ms = task["next_ms"] - now_ms
    return document(
        {
            "id": number,
            "tube": tube,
            "state": STATES.get(task["state"], task["state"]),
            "pri": priority_of(task["deadline_ms"]),
            "age": max(0, now_ms - task["due_ms"] + put_delay_s * 1000) // 1000,
            "delay": delay_s,
            "ttr": max(1, (task["lease_ms"] or run_ms) // 1000),
            "time-left": seconds_left(left_ms),
            "file": 0,
            "reserves": reserves,
            "timeouts": timeouts,
            "releases": releases,
            "buries": buries,
            "kicks": kicks,
        }
    )


def seconds_left(left_ms: int) -> int:
    """
    Return the whole seconds that are left.

    Right after a reserve it is one less than the ttr, as beanstalkd says, which counts nanoseconds:
    some have always passed.
    """
    return max(0, left_ms - 1) // 1000


def of_tube(door: DoorContext, tube: str, seen: TubeState) -> str:
    """Show a tube; the counts of users, watchers and waiters are of this node."""
    left_ms = seen.paused_until_ms - seen.now_ms
    return document(
        {
            "name": tube,
            **_current(seen.counts),
            "total-jobs": seen.counters.get("put", 0),
            "current-using": door.using[tube],
            "current-watching": door.watching[tube],
            "current-waiting": door.waiting[tube],
            "cmd-delete": seen.counters.get("acked", 0) + seen.counters.get("deleted", 0),
            "cmd-pause-tube": seen.counters.get("pauses", 0),
            "pause": seen.paused_for_ms // 1000,
            "pause-time-left": seconds_left(left_ms),
        }
    )


def of_node(door: DoorContext, seen: Iterable[TubeState], tubes: int) -> str:
    """
    Show jobs of the whole cluster; connections, commands and the process are of this node.
    """
    tubes_seen = list(seen)
    counts = {name: sum(one.counts[name] for one in tubes_seen) for name in _STATES}
    counters = {
        name: sum(one.counters.get(name, 0) for one in tubes_seen) for name in ("expired", "put")
    }
    connections = door.peers.connections
    used = resource.getrusage(resource.RUSAGE_SELF)
    here = os.uname()
    return document(
        {
            **_current(counts),
            **{f"cmd-{name}": door.calls[name] for name in COMMANDS},
            "job-timeouts": counters["expired"],
            "total-jobs": counters["put"],
            "max-job-size": door.job_bytes,
            "current-tubes": tubes,
            "current-connections": len(connections),
            "current-producers": sum(one.is_producer for one in connections),
            "current-workers": sum(one.is_worker for one in connections),
            "current-waiting": sum(one.is_waiting for one in connections),
            "total-connections": door.peers.connections_total,
            "pid": os.getpid(),
            "version": f'"{VERSION}"',
            "rusage-utime": f"{used.ru_utime:.6f}",
            "rusage-stime": f"{used.ru_stime:.6f}",
            "uptime": int(door.clock.monotonic() - door.started),
            "binlog-oldest-index": 0,
            "binlog-current-index": 0,
            "binlog-records-migrated": 0,
            "binlog-records-written": 0,
            "binlog-max-size": 0,
            "draining": "true" if door.peers.draining else "false",
            "id": door.id,
            "hostname": here.nodename,
            "os": here.version,
            "platform": here.machine,
        }
    )


_STATES = ("urgent", "ready", "reserved", "delayed", "buried")


def _current(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"current-jobs-{name}": counts[name] for name in _STATES}
