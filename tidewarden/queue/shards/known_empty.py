"""Remembers that a shard had nothing ready, so that takes skip it for up to 5 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# How long the shard is believed to be empty: should a message be lost, takes skip it no longer.
BARE_S = 5.0


class Wakeable(Protocol):
    """Declares a shard's number of wake-ups, and whether an event is due there."""

    @property
    def wakes(self) -> int: ...
    @property
    def holder(self) -> Callable[[], str]: ...
    @property
    def time(self) -> Callable[[], float]: ...
    def due_by(self, at: float) -> bool: ...


class KnownEmpty:
    """Remembers that a take left nothing ready in one shard."""

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
        """
        Return whether no task is known to have become ready since; another node may know better.
        """
        return self._wakes == shard.wakes

    def holds(self, shard: Wakeable) -> bool:
        """
        Return whether another take would find nothing, either.

        Then no task has become ready since, and none is due yet.
        """
        if not self._told or self._wakes != shard.wakes or self._holder != shard.holder():
            return False
        now = shard.time()
        return now < self._until and not shard.due_by(now)
