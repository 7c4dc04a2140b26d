"""
A priority queue of times, one for each key at most: pure, and bounded by how many keys have one.
"""

from __future__ import annotations

import heapq

Key = tuple[str, int]
SLACK = 64  # entries without a meaning that a small queue may have


class TimerQueue:
    """
    Keeps the earliest time that was set for each key, in seconds of any one clock.

    A heap cannot drop what is in its midst: an entry that an earlier one has overtaken stays there
    until its time, which may be a month away. So the heap is built anew when most of it is of that
    kind.
    """

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._at)

    def set_earlier(self, key: Key, at: float, margin_s: float = 0.0) -> bool:
        """
        Set the key's time to ``at``, unless it has one that is less than ``margin_s`` later.

        Returns whether it is now the first of all.
        """
        known = self._at.get(key)
        if known is not None and at >= known - margin_s:
            return False
        self._at[key] = at
        heap = self._heap
        if len(heap) >= 2 * len(self._at) + SLACK:
            heap[:] = [(its, one) for one, its in self._at.items()]
            heapq.heapify(heap)
        else:
            heapq.heappush(heap, (at, key))
        return heap[0][0] >= at

    def next_at(self) -> float | None:
        """Return the first of all times; ``None``: there is none."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float, most: int) -> list[Key]:
        """
        Remove and return the keys whose time has come, earliest first.

        At most that many are returned; they have no time from then on.
        """
        due: list[Key] = []
        while len(due) < most and (at := self.next_at()) is not None and at <= now:
            key = heapq.heappop(self._heap)[1]
            del self._at[key]
            due.append(key)
        return due

    def clear(self) -> None:
        """Forget every key's time."""
        self._at.clear()
        self._heap.clear()
