"""Counts how late tasks are taken and how long they are held, for the histograms of a node."""

from __future__ import annotations

from collections.abc import Sequence

from tidewarden.histograms import HELD, LATENESS, Family

from .sessions.session import Held
from .shards.shard import Shard
from .task import Taken


class TaskTimes:
    """Counts for all takes of one process; the system's own queues apart from users'."""

    def __init__(self) -> None:
        self.lateness = Family(LATENESS)
        self.held = Family(HELD)
        self._user, self._system = self.lateness.of("user"), self.lateness.of("system")
        self._acked = self.held.of("ack")  # most are

    def taken(self, tasks: Sequence[Taken], shards: Sequence[Shard]) -> None:
        """Count tasks of these shards, whose answers have just come."""
        for index, task in enumerate(tasks):
            if task.due_ms:
                late_ms = shards[index].now_ms - task.due_ms
                histogram = self._system if task.queue[0] == "_" else self._user
                histogram.observe(late_ms / 1000 if late_ms > 0 else 0.0)

    def ended(self, entry: Held, how: str, now: float) -> None:
        """Count a lease that its holder has ended; ``now``: the loop's time."""
        if entry[2]:
            held = self._acked if how == "ack" else self.held.of(how)
            held.observe(now - entry[2])
