"""
Adds up the requests that a node's processes have answered, of the last minute and since the start.
"""

from __future__ import annotations

from tidewarden.clock import Clock, rest

from .recorder import Recorder
from .space_saving import SpaceSaving
from .tables import By, Key, Part, Tables, table_of
from .windows import Over, Windows

GATHER_S = 1.0


class NodeTraffic:
    """
    Adds up the notes of this process, the node's first, and the tables that further ones send.

    Args:
        recorder: this process's.
        clock: for the windows.
    """

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self.recorder = recorder
        self._clock = clock
        self._windows = Windows(clock.monotonic())

    async def run(self) -> None:
        """Gather once a second, until cancelled."""
        while True:
            self.gather()
            await rest(self._clock, GATHER_S)

    def gather(self) -> None:
        """Add the notes of this process since the last time."""
        self.add(self.recorder.harvest())

    def add(self, tables: Tables) -> None:
        """Add counts of any process of this node."""
        self._windows.add(tables, self._clock.monotonic())

    def seen(self, by: By, over: Over) -> tuple[SpaceSaving[Key], float]:
        """Return the counts, and the seconds that they cover."""
        self.gather()
        return self._windows.seen(over, by, self._clock.monotonic())


class PartsOfProcess:
    """Puts together the tables that a further process sends in parts, and adds them."""

    def __init__(self, traffic: NodeTraffic) -> None:
        self._traffic = traffic
        self._parts: list[Part] = []

    def hear(self, part: Part) -> None:
        """Take the next part."""
        self._parts.append(part)
        if part.more:
            return
        parts, self._parts = self._parts, []
        tables = Tables()
        tables.by[part.by] = table_of(parts)
        self._traffic.add(tables)
