"""Shards of a durable queue whose store a test plays by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from support.queues.desk import queue_scripts
from support.store.lanes import HandLink, Lanes

from tidewarden.queue.shards.shard import Shard

NOTHING = [7, -1, 0, [1]]


async def turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


class Seat:
    """Shards of a durable queue, whose calls are answered by hand."""

    def __init__(self, shards: int = 1) -> None:
        self.lanes = Lanes()
        self.data = self.lanes.data
        link = cast(Any, SimpleNamespace(refused=lambda _: None, send=self.data.send, clustered=0))
        self.scripts = queue_scripts(library=True)
        self.link = link
        self.shards = [
            Shard(link, self.scripts, (f"{{tw:q:{n}}}",), lambda: "n0.1", lambda *_: None)
            for n in range(shards)
        ]
        for shard in self.shards:
            shard.gate.commit = shard.gate.system = self.lanes.commit

    @property
    def shard(self) -> Shard:
        return self.shards[0]

    @property
    def lane(self) -> HandLink:
        """The only one that owes answers."""
        (lane,) = self.lanes.under_way
        return lane
