"""Ends the leases that dead nodes and former boots held; the leader runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidewarden.clock import Clock, rest
from tidewarden.errors import Error, Internal, NotFound, Stale, StoreDown
from tidewarden.loop_watchdog import LoopWatchdog
from tidewarden.queue import Queues

from .registration import BEAT_S, NodeRecord, Registration, dead_nodes

log = logging.getLogger("tidewarden.cluster")

BATCH = 500


class Reaper:
    """
    Marks dead boots in every shard and then forgets the node.

    So their leases end and their takes are refused. It is idempotent: a new leader goes on where
    the last one died.
    """

    def __init__(
        self,
        node: str,
        nodes: Registration,
        queues: Queues,
        clock: Clock,
        heard_s: Callable[[str], float],
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._queues = queues
        self._clock = clock
        self._heard_s = heard_s
        self.duty = LoopWatchdog("reaper", clock)
        self.reaped = 0

    async def run(self, epoch: int) -> None:
        """Watch until cancelled. Raises: Stale: another leads."""
        former: dict[str, int] = {}
        while True:
            for work in (
                lambda: self._bury_dead(epoch),
                lambda: self._end_former(epoch, former),
                lambda: self._queues.session_expiry.end_due(self.duty.step),
                lambda: self._queues.expiry.look(self.duty.step),
            ):
                self.duty.step()
                try:
                    await work()
                except StoreDown as error:
                    log.warning("the store is away; dead nodes wait: %s", error)
                except Stale:
                    raise
                except Error as error:
                    log.error(
                        "what nobody uses any more could not be ended; tried again: %s", error
                    )
            self.duty.rest(self._clock.monotonic() + BEAT_S)
            await rest(self._clock, BEAT_S)

    async def _end_former(self, epoch: int, former: dict[str, int]) -> None:
        """
        End the leases that a node holds under former boots, because it came back under a new one.

        ``former``: the boots whose leases were ended.
        """
        for node in list(self._nodes.seen):
            if former.get(node.node, 0) < node.boot - 1:
                await self._reap(epoch, node.node, node.boot - 1, gone=False)
                former[node.node] = node.boot - 1

    async def _bury_dead(self, epoch: int) -> None:
        for dead in self._dead():
            if dead.node not in {one.node for one in self._dead()}:
                continue  # it has come back while others' leases were ended
            log.warning(
                "node %s (boot %d) is dead: silent for %d ms, and Raft hears nothing", *_facts(dead)
            )
            ended = await self._reap(epoch, dead.node, dead.boot, gone=True)
            await self._nodes.forget(dead)
            # A beat may have seen it meanwhile, silent for longer.
            self._nodes.seen = [
                one for one in self._nodes.seen if (one.node, one.boot) != (dead.node, dead.boot)
            ]
            log.warning(
                "node %s (boot %d) is buried; %d of its leases ended", dead.node, dead.boot, ended
            )

    def _dead(self) -> list[NodeRecord]:
        return dead_nodes(self._nodes.seen, self._node, self._heard_s)

    async def _reap(self, epoch: int, node: str, boot: int, *, gone: bool) -> int:
        ended = 0
        away: StoreDown | None = None
        for queue in await self._queues.catalog.names():
            try:
                shards = await self._queues.catalog.shard_count(queue)
            except Internal as error:  # its settings cannot be read, which must not stop the others
                log.error("the leases of %s in %s could not be ended: %s", node, queue, error)
                continue
            except NotFound:  # it was dropped since the names were read
                continue
            for shard in range(shards):
                if away is not None and not self._queues.catalog.reachable(queue, shard):
                    continue
                try:
                    ended += await self._reap_shard(queue, shard, epoch, node, boot, gone)
                except Stale:
                    raise
                except StoreDown as error:
                    away = error  # a part of it may be, and the other parts' leases need not wait
                except Error:
                    # A shard of a newer format, say: there the leases end by their time, and the
                    # others need not wait.
                    log.exception(
                        "the leases of %s in %s, shard %d, could not be ended", node, queue, shard
                    )
        self.reaped += ended
        if away is not None:
            raise away
        # Not before its boot is refused in every shard: a session whose grace has begun takes
        # nothing more through it.
        await self._queues.session_expiry.bury(epoch, node, boot, self.duty.step)
        return ended

    async def _reap_shard(
        self, queue: str, shard: int, epoch: int, node: str, boot: int, gone: bool
    ) -> int:
        ended, more = 0, 1
        while more:
            n, more = await self._queues.scripts.run(
                "queue.reap", queue, shard, [epoch, node, boot, BATCH, int(gone)]
            )
            self.duty.step()
            ended += n
        return ended


def _facts(dead: NodeRecord) -> tuple[str, int, int]:
    return dead.node, dead.boot, dead.age_ms
