"""Keeps the counts of the last minute, and those since the start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from .space_saving import SpaceSaving
from .tables import MEASURES, By, Key, Tables

Over = Literal["minute", "start"]

SLOT_S = 10.0
SLOTS = 6


@dataclass(frozen=True, slots=True)
class _Slot:
    since: float
    tables: Tables


class Windows:
    """
    Keeps tables for the last minute, in slots of ten seconds, and for all time.

    Args:
        now: in monotonic seconds, as everywhere here.
    """

    def __init__(self, now: float) -> None:
        self._start = now
        self._all = Tables()
        """The counts since the start, without those of the running slot."""
        self._closed: deque[_Slot] = deque(maxlen=SLOTS)
        self._running = _Slot(now, Tables())

    def add(self, tables: Tables, now: float) -> None:
        """Add the counts until now."""
        if now - self._running.since >= SLOT_S:
            self._close(now)
        self._running.tables.merge(tables)

    def _close(self, now: float) -> None:
        slot, self._running = self._running, _Slot(now, Tables())
        self._all.merge(slot.tables)
        self._closed.append(slot)

    def seen(self, over: Over, by: By, now: float) -> tuple[SpaceSaving[Key], float]:
        """
        Return the counts, and the seconds that they cover.

        The last minute has sixty to seventy, or as many as there are since the start.
        """
        if now - self._running.since >= SLOT_S:
            self._close(now)
        found: SpaceSaving[Key] = SpaceSaving(len(MEASURES))
        if over == "start":
            slots, since = [self._all], self._start
        else:
            slots = [slot.tables for slot in self._closed]
            since = self._closed[0].since if self._closed else self._running.since
        for tables in (*slots, self._running.tables):
            found.merge(tables.by[by])
        return found, now - since
