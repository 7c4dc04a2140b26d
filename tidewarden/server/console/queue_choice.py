"""Chooses the queues whose history is kept, if there are more than can be kept."""

from __future__ import annotations

from collections.abc import Sequence

from tidewarden.clock import in_turns
from tidewarden.config.rights import Rights

QUEUES_MAX = 50
TURNED = 10
"""So many idle queues give way to others each time the names are read."""
ASKED_S = 3600.0


class QueueChoice:
    """
    Keeps at most :data:`QUEUES_MAX` queues: those that were asked for, then the busiest.

    Places that are left go to the others in turn, so that one which becomes busy is found.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._chosen: list[str] = []
        self._asked: dict[str, float] = {}
        self._work: dict[str, float] = {}
        self._busy: dict[str, float] = {}
        self._next = self._next_other = 0

    def names(self, names: Sequence[str]) -> None:
        """Note the queues that there are, and choose anew."""
        self._names = sorted(names)
        there = set(names)
        for known in (self._asked, self._work, self._busy):
            for name in known.keys() - there:
                del known[name]
        if len(self._names) <= QUEUES_MAX:
            self._chosen = self._names
            return
        held = sorted(
            (name for name in self._chosen if name in there),
            key=lambda name: (name not in self._asked, -self._busy.get(name, 0.0)),
        )
        held = held[: QUEUES_MAX - TURNED]
        chosen = dict.fromkeys([*self._asked, *held])
        for _ in range(len(self._names)):
            if len(chosen) >= QUEUES_MAX:
                break
            chosen[self._names[self._next % len(self._names)]] = None
            self._next += 1
        self._chosen = list(chosen)[:QUEUES_MAX]
        for known in (self._work, self._busy):
            for name in known.keys() - set(self._chosen):
                del known[name]

    def chosen(self, now_s: float) -> list[str]:
        """Return the queues that are kept now."""
        for name, at_s in list(self._asked.items()):
            if now_s - at_s > ASKED_S:
                del self._asked[name]
        return list(self._chosen)

    def is_other(self, name: str) -> bool:
        """Return whether it is a user's queue that is there and is not kept."""
        return not name.startswith("_") and name in self._names and name not in self._chosen

    def others(self, most: int) -> list[str]:
        """Return the next of users' queues that are not kept, in turn."""
        if len(self._names) <= len(self._chosen):
            return []
        kept = set(self._chosen)
        first = self._next_other % len(self._names)
        turn = (self._names[first:] + self._names[:first])[: most + len(kept)]
        self._next_other = first + len(turn)
        return [name for name in turn if name not in kept and not name.startswith("_")]

    async def count(self, rights: Rights) -> int:
        """Return how many queues a user may see, the system's left out."""
        seen = 0
        async for name in in_turns(self._names):
            seen += not name.startswith("_") and rights.see(name)
        return seen

    def ask(self, name: str, now_s: float) -> None:
        """Note that a user wants the history of this queue."""
        if name in self._asked or len(self._asked) < QUEUES_MAX // 2:
            self._asked[name] = now_s
        if name not in self._chosen and len(self._chosen) < QUEUES_MAX:
            self._chosen = [*self._chosen, name]

    def saw(self, name: str, work: float) -> None:
        """Note a queue's counters since it was made; the differences show how busy it is."""
        before = self._work.get(name, work)
        self._work[name] = work
        self._busy[name] = 0.9 * self._busy.get(name, 0.0) + max(0.0, work - before)
