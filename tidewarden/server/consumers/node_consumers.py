"""Answers questions about consumers for all processes of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .process_consumers import ProcessConsumers
from .questions import Ask, ConsumersTold, ListAsk, merged

Others = Callable[[Ask], Awaitable[Sequence[ConsumersTold]]]


class NodeConsumers:
    """
    Asks this process, the node's first, and the further ones.

    Args:
        own: this process's consumers.
        others: has the further processes answer; one that does not is named as silent.
    """

    def __init__(self, own: ProcessConsumers, others: Others | None = None) -> None:
        self.own = own
        self._others = others

    async def answer(self, ask: Ask) -> ConsumersTold:
        """Answer a question for all processes of the node."""
        if self._others is None:
            return await self.own.answer(ask)
        own, others = await asyncio.gather(self.own.answer(ask), self._others(ask))
        if isinstance(ask, ListAsk):
            return merged((own, *others), ask.count, ask.queue)
        return merged((own, *others))
