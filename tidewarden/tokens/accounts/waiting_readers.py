"""Wakes a node's readers when an account's refresh has ended here, or a grant was put."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from .cache import Cache


class WaitingReaders:
    """Wakes the readers of an account, and drops an older token of it from the cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._events: dict[str, asyncio.Event] = {}

    def wake(self, account: str, generation: int) -> None:
        """Wake the readers of ``provider/name``, which has this generation now."""
        self._cache.outdate(account, generation)
        event = self._events.get(account)
        if event is not None:
            event.set()

    @contextlib.contextmanager
    def watching(self, account: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when a refresh of the account ends; one watcher an account."""
        event = self._events[account] = asyncio.Event()
        try:
            yield event
        finally:
            del self._events[account]
