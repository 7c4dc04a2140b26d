"""Tasks that go through one queue while a test does something, and the account of them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import redis.asyncio
from support.cluster.harness import Cluster, Node, until_async
from support.faults.clients import Clients
from support.faults.history import Operation, lease_numbers, lost_puts, old_numbers, unfinished


class Traffic(Clients):
    """Producers and consumers of ``queue``. A grant's value is the attempt."""

    def __init__(self, queue: str, nodes: list[Node]) -> None:
        super().__init__(nodes)
        self.queue = queue
        self.put: dict[str, float] = {}
        """Ids that were put with OK, and when that was (monotonic seconds)."""
        self._numbers = itertools.count()

    async def produce(self, node: Node, pause_s: float = 0.005, delay_ms_max: int = 1500) -> None:
        """
        Put tasks with ids of ours, half of them delayed, until told to stop; each until it is OK.
        """
        words: list[Any] = []

        async def turn(client: redis.asyncio.Redis, node: Node) -> bool:
            if not words:
                task_id = f"{node.name}-{next(self._numbers)}"
                words.extend(("Q.PUT", self.queue, f"payload of {task_id}", "ID", task_id))
                if self.dice.random() < 0.5:
                    words.extend(("DELAY", self.dice.randrange(1, delay_ms_max)))
            put = self.history.begin("put", node.name, self.queue, words[4])
            await self.ask(put, client, *words)
            self.put[put.key] = put.answered
            words.clear()
            await asyncio.sleep(pause_s)
            return self.producing

        await self.forever(node, turn)

    async def consume(self, node: Node, count: int = 3, work_s: float = 0.01) -> None:
        """Take, work, acknowledge, until cancelled; an ack without an answer is not repeated."""

        async def turn(client: redis.asyncio.Redis, node: Node) -> None:
            for grant in await self.take(client, node, count):
                await asyncio.sleep(self.dice.random() * work_s)
                ack = self.history.begin("ack", grant.who, self.queue, grant.key, grant.lease)
                await self.ask(ack, client, "Q.ACK", self.queue, grant.key, grant.lease)

        await self.forever(node, turn)

    async def take(
        self, client: redis.asyncio.Redis, node: Node, count: int = 1, lease_ms: int = 0
    ) -> list[Operation]:
        """Take at most ``count`` tasks. ``lease_ms``: 0: as the queue has it."""
        asked = self.history.begin("take", f"{node.name}:{id(client):x}", self.queue)
        lease = ("LEASE", lease_ms) if lease_ms else ()
        words = ("Q.TAKE", "COUNT", count, "WAIT", 2000, *lease, "FROM", self.queue)
        found = []
        for _, task_id, number, _, attempt, *_ in await self.ask(asked, client, *words) or ():
            found.append(self.history.granted(asked, task_id, number))
            found[-1].value = attempt
        return found

    # The account.

    def deliveries(self) -> list[Operation]:
        """Every task that was handed to a consumer."""
        return self.history.of("grant")

    def delivered(self) -> set[str]:
        """The ids of the tasks that were."""
        return {grant.key for grant in self.deliveries()}

    async def drained(self, nodes: Cluster) -> None:
        """Stop putting; wait until nothing is left."""
        self.producing = False
        node = nodes.alive()[0]

        def empty() -> bool:
            return (
                self.put.keys() <= self.delivered()
                and node.say("Q.STATS", self.queue)["total"] == 0
            )

        await until_async(empty, 90, 0.2, what=f"the queue is drained: {self}")

    def settled(self, nodes: Cluster) -> None:
        """Every account that there is agrees: the clients', the counters', the keys'."""
        history, left = self.history, {self.queue: ()}
        wrong = lost_puts(history, left) + unfinished(history, left)
        wrong += lease_numbers(history) + old_numbers(history)
        assert not wrong, f"{len(wrong)}: {wrong[:5]}"
        leases = [grant.lease for grant in self.deliveries()]
        assert len(leases) == len(set(leases)), "one lease number for two deliveries"
        stats = nodes.alive()[0].say("Q.STATS", self.queue)
        print(self)
        print({name: value for name, value in stats.items() if name.startswith("count_")})
        assert stats["count_put"] == len(self.put), (
            "a retried put with the same id made no second task"
        )
        assert stats["count_acked"] == len(self.put)
        assert not nodes.audit(self.queue)

    def __str__(self) -> str:
        return (
            f"{len(self.put)} put OK, {len(self.delivered())} delivered;"
            f" {self.history.summary()}; troubles: {dict(self.troubles)}"
        )
