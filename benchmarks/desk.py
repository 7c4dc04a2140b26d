"""
Drives the product's own scripts directly at a store by redis-py: the engine's cost without a front.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from tidewarden.node.product_scripts import product_scripts
from tidewarden.queue import TaskSpec
from tidewarden.queue.partitioning import prefix_of
from tidewarden.queue.shards.shard import PROMOTED_MAX

CLUSTER = "tidewarden"


class Desk:
    """
    One shard of a queue on an embedded store, script by script.

    ``now_ms`` is as in the scripts: 0 is the store's clock.

    The queue is one that no node knows, unless it is named on purpose.
    """

    def __init__(self, url: str, queue: str, holder: str = "bench.1") -> None:
        self.client = redis.Redis.from_url(
            url, socket_timeout=None, retry=None, single_connection_client=True
        )
        self.scripts = product_scripts()
        self.keys = (prefix_of(CLUSTER, queue, 0), f"{{{CLUSTER}}}:view")
        self.holder = holder
        with contextlib.suppress(redis.ResponseError):  # the node has loaded the same one
            self.client.execute_command("FUNCTION", "LOAD", self.scripts.library)

    def close(self) -> None:
        self.client.close()

    def run(self, name: str, now_ms: int, *args: Any) -> Any:
        """The items of a script's reply."""
        function = self.scripts[name].function
        return self.client.execute_command(
            "FCALL", function, len(self.keys), *self.keys, now_ms, self.holder, *args
        )[3]

    def put(self, tasks: Iterable[TaskSpec], now_ms: int = 0) -> None:
        """Put them all, as a caller who gives ids."""
        args: list[Any] = []
        for task in tasks:
            args += (task.id, task.options(own=False), task.payload)
        self.run("queue.put", now_ms, *args)

    def take(self, count: int, now_ms: int = 0, lease_ms: int = 0) -> list[Sequence[Any]]:
        """At most ``count`` tasks: id, lease, payload, attempt, deadline_ms, lease_end_ms."""
        return list(self.run("queue.take", now_ms, PROMOTED_MAX, count, lease_ms, 0, "")[0])

    def ack(self, rows: Sequence[Sequence[Any]], now_ms: int = 0) -> int:
        """How many of them were held."""
        return sum(
            self.run("queue.ack", now_ms, *(word for row in rows for word in (row[0], row[1], b"")))
        )

    def busy_us(self) -> int:
        """Microseconds that the engine has spent in scripts."""
        stats = self.client.info("commandstats")
        return sum(
            int(stats[name]["usec"])
            for name in ("cmdstat_fcall", "cmdstat_evalsha")
            if name in stats
        )
