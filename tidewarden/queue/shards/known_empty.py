"""Remembers that a shard had nothing ready, so that takes skip it for up to 5 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# How long the shard is believed to be empty: should a message be lost, takes skip it no longer.
BARE_S = 5.0


class Wakeable(Protocol):
    """Says of a shard how often it was woken, and whether anything is due there."""

    @property
    def wakes(self) -> int: ...
    @property
    def holder(self) -> Callable[[], str]: ...
    @property
    def time(self) -> Callable[[], float]: ...
    def due_by(self, at: float) -> bool: ...


class KnownEmpty:
    """Remembers of one shard that a take left nothing there."""

    __slots__ = ("_holder", "_told", "_until", "_wakes")

    def __init__(self) -> None:
        self._wakes = -1
        self._told = False
        self._holder = ""
        self._until = 0.0

    def found(self, shard: Wakeable, wakes: int, *, told: bool) -> None:
        """
        Note that a take of any task has left nothing in ``shard``.

        ``wakes``: how often the shard had been woken when the take was sent. ``told``: the take's
        script has registered this node, so that the node which changes that tells it.
        """
        if told or not self.holds(shard):  # otherwise more is known already
            self._wakes, self._told, self._holder, self._until = (
                wakes,
                told,
                shard.holder(),
                shard.time() + BARE_S,
            )

    def dry(self, shard: Wakeable) -> bool:
        """Tell whether no task is known to be ready since then; another node may know better."""
        return self._wakes == shard.wakes

    def holds(self, shard: Wakeable) -> bool:
        """
        Tell whether another take would find nothing, either.

        Nothing has become ready since then, and nothing is due yet.
        """
        if not self._told or self._wakes != shard.wakes or self._holder != shard.holder():
            return False
        now = shard.time()
        return now < self._until and not shard.due_by(now)
