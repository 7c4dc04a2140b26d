"""
Three nodes, consumers that come and go, ears that go deaf, pauses: every task is done once, and
none lies while somebody waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from support.inspect import shards_of, transport_of

from tidewarden.queue import TaskSpec

RUN_S = 8.0
LATE_MAX_S = 5.0  # what a lost wake-up would exceed; a slow machine does not


class World:
    """What the consumers did, and since when each task could have been taken."""

    def __init__(self, nodes: list[Any], seed: int) -> None:
        self.nodes = nodes
        self.dice = random.Random(seed)
        self.ready_at: dict[str, float] = {}
        self.late_s: list[float] = []
        self.done: set[str] = set()
        self.until = time.monotonic() + RUN_S

    async def produce(self, node: Any, number: int) -> None:
        n = 0
        while time.monotonic() < self.until:
            delay_ms, name = self.dice.choice([0, 0, 5, 40]), f"p{number}-{n}"
            self.ready_at[name] = time.monotonic() + delay_ms / 1000
            await node.queues.put(
                "q", TaskSpec(id=name, delay_ms=delay_ms, priority=self.dice.choice([50, 50, 10]))
            )
            n += 1
            if self.dice.random() < 0.6:
                await asyncio.sleep(self.dice.random() / 100)

    async def consume(self, node: Any) -> None:
        while True:
            session = node.queues.open_session()
            while not session.held:
                take = node.queues.take(
                    session, ["q"], wait_ms=60_000, count=self.dice.choice([1, 1, 3])
                )
                if self.dice.random() < 0.15:  # gone while its take is under way
                    for _ in range(self.dice.randint(0, 6)):
                        await asyncio.sleep(0)
                    if take.cancel():
                        break
                for task in await take:
                    self.late_s.append(time.monotonic() - self.ready_at[task.id])
                    await self.handle(node.queues, session, task)
            for _, task_id in session.held:
                self.ready_at[task_id] = time.monotonic()
            await node.queues.close_session(session)

    async def handle(self, queues: Any, session: Any, task: Any) -> None:
        how, now = self.dice.random(), time.monotonic()
        if how < 0.6:
            if await queues.ack(session, "q", [(task.id, task.lease)]) == [1]:
                assert task.id not in self.done
                self.done.add(task.id)
        elif how < 0.7:
            delay_ms = self.dice.choice([0, 30])
            self.ready_at[task.id] = now + delay_ms / 1000
            await queues.release(session, "q", task.id, task.lease, delay_ms)
        elif how < 0.8:
            self.ready_at[task.id] = now
            await queues.fail(session, "q", task.id, task.lease)
        elif how < 0.9:  # its lease runs out
            self.ready_at[task.id] = now + 0.03
            await queues.touch(session, "q", task.id, task.lease, 30)
            session.drop("q", task.id, task.lease)

    async def disturb(self) -> None:
        while time.monotonic() < self.until:
            await asyncio.sleep(self.dice.random() / 4)
            node, what = self.dice.choice(self.nodes), self.dice.random()
            if what < 0.4 and node.ears.up:
                transport_of(node.ears).abort()
            elif what < 0.6:
                await node.queues.admin.pause("q", 30)
            elif what < 0.7:
                await node.queues.admin.pause("q")
                await asyncio.sleep(0.02)
                await self.dice.choice(self.nodes).queues.admin.resume("q")


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("seed", range(3))
async def test_every_task_is_done_once_and_none_is_forgotten(
    node: Any, eventually: Any, seed: int, shards: int
) -> None:
    nodes = [await node(f"n{n}") for n in range(3)]
    await nodes[0].queues.admin.configure("q", {"shards": shards, "losses_max": 0, "dedup_ms": 0})
    await eventually(lambda: all(len(shards_of(n.queues, "q")) == shards for n in nodes))
    world = World(nodes, seed)
    consumers = [asyncio.create_task(world.consume(n)) for n in nodes for _ in range(4)]
    await asyncio.gather(
        world.disturb(), *(world.produce(n, number) for number, n in enumerate(nodes))
    )
    await eventually(
        lambda: world.done == world.ready_at.keys() or any(task.done() for task in consumers)
    )
    for task in consumers:
        task.cancel()
    ends = await asyncio.gather(*consumers, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    assert (await nodes[0].queues.admin.stats("q"))["total"] == 0
    assert max(world.late_s) < LATE_MAX_S
