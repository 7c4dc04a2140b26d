"""
Keeps puts to names that this node does not know yet, in the order in which they came.

A name is a queue's or a topic's, and the store says which. A put that comes meanwhile joins the
line, although the name may have become known: else it would go before the puts in line.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

from tidewarden.errors import StoreDown
from tidewarden.store.reply_sink import fail_reply

from .catalog import Catalog

Begin = Callable[[tuple[str, ...] | None], None]
"""Receives the queues of a topic, or None: the name is a queue's, which is open now."""


class NameLookups:
    """Keeps a waiting line for each name that is being looked up."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        # by name
        self.lines: dict[str, deque[tuple[Begin, asyncio.Future[Any], contextvars.Context]]] = {}

    def join(self, name: str, begin: Begin, future: asyncio.Future[Any]) -> None:
        """
        Call ``begin`` when the name is known, behind those in line, unless ``future`` is done.

        The future gets what ``begin`` or the lookup raises (:meth:`Catalog.links_of`). A store that
        is down is so for all in line. What is refused to one user is looked up for the next: any
        user who may make a queue makes it.
        """
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = deque()
            self._catalog.background.start(self._work(name))
        line.append((begin, future, contextvars.copy_context()))

    async def links_of(self, name: str) -> tuple[str, ...] | None:
        """Do as :meth:`Catalog.links_of`, behind the callers in line."""
        if name not in self.lines and name in self._catalog.shards:
            return None
        known: asyncio.Future[tuple[str, ...] | None] = self._loop.create_future()
        self.join(name, known.set_result, known)
        return await known

    async def _work(self, name: str) -> None:
        """
        Look the name up until the line is empty.

        No turn lies between the last lookup and the line's end.
        """
        line = self.lines[name]
        try:
            while line:
                begin, future, context = line.popleft()
                if future.done():  # whoever put it has gone
                    continue
                try:
                    links = self._catalog.topics.get(name)
                    if links is None and name not in self._catalog.shards:
                        found = self._catalog.links_of(name)
                        links = await self._loop.create_task(found, context=context)
                    if not future.done():
                        context.run(begin, links)
                except Exception as error:
                    fail_reply(future, error)
                    if isinstance(error, StoreDown):
                        while line:
                            fail_reply(line.popleft()[1], error)
        finally:
            del self.lines[name]
            for _, future, _ in line:  # the node ends
                future.cancel()
