"""
Producers and consumers for the fault tests, and the account they give: what was put, delivered,
acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
from support.cluster.harness import TROUBLE, Cluster, Node, until_async


@dataclass
class Delivery:
    """One task handed to one consumer. ``at``: monotonic seconds."""

    task_id: str
    lease: int
    attempt: int
    node: str
    at: float


@dataclass
class Traffic:
    """What went through one queue."""

    queue: str
    nodes: list[Node]
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    put: dict[str, float] = field(default_factory=dict)
    """Ids that were put with OK, and when that was."""
    deliveries: list[Delivery] = field(default_factory=list)
    acked: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The leases under which an ack of an id was answered OK."""
    refused: int = 0
    """Acks that were answered NOTHELD."""
    unknown: int = 0
    """Acks of which nobody knows what became."""
    troubles: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """What clients met with, by its first word."""
    producing: bool = True
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def trouble(self, error: BaseException) -> None:
        words = str(error).split()
        word = words[0] if words and words[0].isupper() else type(error).__name__
        self.troubles[word] += 1

    async def connect(self, node: Node) -> redis.asyncio.Redis:
        """A connection to ``node``, or to the next one that takes it."""
        first = self.nodes.index(node)
        while True:
            for offset in range(len(self.nodes)):
                client = self.nodes[(first + offset) % len(self.nodes)].aclient()
                try:
                    await asyncio.wait_for(client.initialize(), 10)
                except TROUBLE as error:
                    self.trouble(error)
                    await client.aclose()
                else:
                    return client
            await asyncio.sleep(0.1)

    async def produce(self, node: Node, pause_s: float = 0.005, delay_ms_max: int = 1500) -> None:
        """
        Put tasks with ids of ours, half of them delayed, until told to stop; each until it is OK.
        """
        client = await self.connect(node)
        while self.producing:
            task_id = f"{node.name}-{next(self._numbers)}"
            words: list[Any] = [
                "Q.PUT",
                self.queue,
                b"payload of " + task_id.encode(),
                "ID",
                task_id,
            ]
            if self.dice.random() < 0.5:
                words += ["DELAY", self.dice.randrange(1, delay_ms_max)]
            while task_id not in self.put:
                try:
                    await asyncio.wait_for(client.execute_command(*words), 8)
                    self.put[task_id] = time.monotonic()
                except TROUBLE as error:
                    self.trouble(error)
                    await client.aclose()
                    node = self.nodes[(self.nodes.index(node) + 1) % len(self.nodes)]
                    await asyncio.sleep(0.05)
                    client = await self.connect(node)
            await asyncio.sleep(pause_s)
        await client.aclose()

    async def consume(self, node: Node, count: int = 3, work_s: float = 0.01) -> None:
        """Take, work, acknowledge, until cancelled."""
        client = await self.connect(node)
        try:
            while True:
                try:
                    tasks = await self.take(client, node, count)
                    for delivery in tasks:
                        await asyncio.sleep(self.dice.random() * work_s)
                        await self.ack(client, delivery)
                except TROUBLE as error:
                    self.trouble(error)
                    await client.aclose()
                    await asyncio.sleep(0.05)
                    client = await self.connect(node)
        finally:
            await client.aclose()

    async def take(
        self,
        client: redis.asyncio.Redis,
        node: Node,
        count: int = 1,
        wait_ms: int = 2000,
        lease_ms: int = 0,
    ) -> list[Delivery]:
        """
        Take at most ``count`` tasks and write them down. ``lease_ms``: 0: as the queue has it.
        """
        lease = ("LEASE", lease_ms) if lease_ms else ()
        rows = await client.execute_command(
            "Q.TAKE", "COUNT", count, "WAIT", wait_ms, *lease, "FROM", self.queue
        )
        found = [Delivery(row[1], row[2], row[4], node.name, time.monotonic()) for row in rows]
        self.deliveries += found
        return found

    async def ack(self, client: redis.asyncio.Redis, delivery: Delivery) -> None:
        """Acknowledge; an ack without an answer is not repeated, so that each OK is one."""
        try:
            await client.execute_command("Q.ACK", self.queue, delivery.task_id, delivery.lease)
        except redis.ResponseError as error:
            if not str(error).startswith("NOTHELD"):
                self.unknown += 1  # STOREDOWN: done or not, and not said again
                raise
            self.refused += 1
        except BaseException:
            self.unknown += 1
            raise
        else:
            self.acked[delivery.task_id].append(delivery.lease)

    # The account.

    def delivered(self) -> set[str]:
        return {delivery.task_id for delivery in self.deliveries}

    def check(self) -> None:
        """
        What was put was delivered; nothing was acknowledged twice, nor delivered under one lease
        number twice.
        """
        lost = self.put.keys() - self.delivered()
        assert not lost, f"{len(lost)} tasks put with OK never came: {sorted(lost)[:5]}"
        twice = {task_id: leases for task_id, leases in self.acked.items() if len(leases) > 1}
        assert not twice, f"acknowledged twice: {twice}"
        leases = [delivery.lease for delivery in self.deliveries]
        assert len(leases) == len(set(leases)), "one lease number for two deliveries"

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
        self.check()
        stats = nodes.alive()[0].say("Q.STATS", self.queue)
        print(self)
        print({name: value for name, value in stats.items() if name.startswith("count_")})
        assert stats["count_put"] == len(self.put), (
            "a retried put with the same id made no second task"
        )
        assert stats["count_acked"] == len(self.put)
        assert len(self.acked) + self.unknown >= len(self.put)
        assert not nodes.audit(self.queue)

    def __str__(self) -> str:
        again = len(self.deliveries) - len(self.delivered())
        return (
            f"{len(self.put)} put OK, {len(self.delivered())} delivered ({again} more than once),"
            f" {len(self.acked)} acked OK, {self.refused} acks refused, {self.unknown} unanswered;"
            f" troubles: {dict(self.troubles)}"
        )
