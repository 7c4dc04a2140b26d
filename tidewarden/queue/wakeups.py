"""Wakes waiting requests of this node by messages of the store."""

from __future__ import annotations

from .catalog import Catalog
from .partitioning import split_prefix
from .waits.capacity_wait import CapacityWait
from .waits.results import Results


class Wakeups:
    """
    Wakes waiting takes, puts and result waits by the messages of this holder's wake channel.

    A message is ``queue shard what``: ``ready``, ``room``, ``end:ID``, or in how many ms something
    happens in the shard.
    """

    def __init__(self, catalog: Catalog, results: Results, capacity_wait: CapacityWait) -> None:
        self._catalog = catalog
        self._results = results
        self._capacity_wait = capacity_wait
        self._settings_channel = catalog.names_key.encode()

    def heard(self, channel: bytes, message: bytes) -> None:
        """
        Act on a message of the store's: a wake-up for this holder, or a queue's changed settings.
        """
        text = message.decode("utf-8", "replace")
        if channel == self._settings_channel:
            self._catalog.forget(text)
            return
        queue, index, what = text.rsplit(" ", 2)
        if what.startswith("end:"):
            self._results.nudge((queue, what[4:]))
            return
        if what == "room":
            self._capacity_wait.wake(queue, int(index))
            return
        shards = self._catalog.shards.get(queue)
        if shards is not None and int(index) < len(shards):
            if what == "ready":
                shards[int(index)].wake()
            else:
                shards[int(index)].on_earlier_event(max(0, int(what)))
        if what != "ready":
            self._catalog.on_next(queue, int(index), max(0, int(what)))

    def look_again(self, prefix: str) -> None:
        """Look at one shard again: messages of it may have been missed."""
        _, queue, index = split_prefix(prefix)
        shards = self._catalog.shards.get(queue, [])
        if index >= len(shards):
            return
        shards[index].wake()
        self._results.nudge_queue(queue)
        self._capacity_wait.wake(queue, index)
        self._catalog.on_next(queue, index, 0)

    def wake_all(self) -> None:
        """
        Try every waiting take again, because messages may have been missed.

        Every other wait asks again.
        """
        for shard in self._catalog.shards_known():
            shard.wake()
        self._results.nudge_all()
        self._catalog.topics.clear()
        self._capacity_wait.wake_all()
