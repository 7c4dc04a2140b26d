"""What is known of a shard that a take found empty: until something happens there, another need not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewarden.queue.shard import Shard

BARE_S = 5.0  # How long it is believed: should a message be lost, takes pass the shard by for no longer.


class Bare:
    """Of one shard. The script that found nothing for a take that waits has registered this node, which is told when that changes."""

    __slots__ = ("_holder", "_until", "_wakes")

    def __init__(self) -> None:
        self._wakes = -1
        self._holder = ""
        self._until = 0.0

    def found(self, shard: Shard, wakes: int) -> None:
        """A take that waits for any task, sent when ``shard`` had been woken so often, has found nothing."""
        self._wakes, self._holder, self._until = wakes, shard.holder(), shard.time() + BARE_S

    def holds(self, shard: Shard) -> bool:
        """Whether another would find nothing, either: nothing has become ready since then, and nothing is due yet."""
        if self._wakes != shard.wakes or self._holder != shard.holder():
            return False
        now = shard.time()
        return now < self._until and not shard.due_by(now)
