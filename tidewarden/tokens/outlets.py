"""What goes out of a node's tokens to others: events, webhooks, companion tasks; built and run together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config import Config
from tidewarden.queue import Queues

from .companions import Companions
from .events import Call, Events
from .tidings import Tidings
from .webhooks import Webhooks


class Outlets:
    """Of one node: the coroutines of :meth:`jobs` run for ever, then :meth:`stop`. ``tidings`` is where it all begins."""

    def __init__(self, config: Config, queues: Queues, call: Call, clock: Clock) -> None:
        """``call`` sends one command to the store."""
        self.events = Events(call, config.cluster.name, queues.put, config.webhooks, clock, config.events.kept)
        self._webhooks = Webhooks(queues, config.webhooks, clock)
        drop = functools.partial(queues.delete, force=True)
        self._companions = Companions(config.companions, queues.put, drop, clock)
        self.tidings = Tidings(self.events, self._companions, config.events.failing_s)

    def jobs(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs for ever, or returns when there is nothing to do."""
        return self.events.run, self._webhooks.run, self._companions.run

    async def stop(self) -> None:
        """Write what is noted, within a second. After the jobs."""
        await self.events.stop()

    def metrics(self) -> dict[str, Any]:
        """``events`` told by (provider, kind), ``webhooks`` sent by (name, outcome), and what was lost."""
        return {
            "events": dict(self.events.told),
            "events_lost": self.events.lost + self._companions.lost,
            "webhooks": dict(self._webhooks.sent),
        }
