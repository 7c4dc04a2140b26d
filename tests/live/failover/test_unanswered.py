"""At a node that lives, the loss of the primary is latency and no error, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis.asyncio as redis
from redis.exceptions import RedisError
from support.cluster.harness import ADMIN, START_S, Node, until
from support.cluster.several import SECRET, all_in_sync, serving_nodes

QUEUE = "work"
PRODUCERS, CONSUMERS = 3, 2
PACE_S = 0.005
"""Between two puts of a producer: several are always under way, and a processor is left."""
CALM_S, AFTER_S, DRAINED_S = 1.0, 2.0, 60.0
COMMIT_S = 2.0
"""``store.commit_ms``: a gap that is longer is told to callers as an error."""


@dataclass
class Traffic:
    """Producers without ids of their own, and consumers, at the nodes that live."""

    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    """Begins the payloads: those of another time may be left in the queue."""
    put: dict[str, str] = field(default_factory=dict)
    acked: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    produces: bool = True
    consumes: bool = True

    async def produce(self, node: Node, number: int) -> None:
        async with client(node) as one:
            for n in range(1_000_000):
                if not self.produces:
                    return
                payload = f"{self.mark} {node.name} {number} {n}"
                self.put[payload] = (await self.ask(one, "Q.PUT", QUEUE, payload) or b"").decode()
                await asyncio.sleep(PACE_S)

    async def consume(self, node: Node, *, waits: bool) -> None:
        words = ("Q.TAKE", *(("WAIT", 300) if waits else ()), "FROM", QUEUE)
        async with client(node) as one:
            while self.consumes:
                for _, task_id, lease, payload, *_ in await self.ask(one, *words) or ():
                    if await self.ask(one, "Q.ACK", QUEUE, task_id, lease):
                        self.acked[payload.decode()] += 1
                if not waits:
                    await asyncio.sleep(0.005)

    async def ask(self, one: redis.Redis, *words: Any) -> Any:
        began = time.monotonic()
        try:
            return await one.execute_command(*words)
        except RedisError as error:
            self.errors.append(f"{words[0]}: {error}")
            return None
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began)


def client(node: Node) -> redis.Redis:
    return redis.Redis(
        port=node.base_port, username=ADMIN, password=SECRET, socket_timeout=60, retry=None
    )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with serving_nodes(tmp_path_factory.mktemp("unanswered")) as found:
        yield found


def kill_store(primary: Node) -> None:
    os.kill(int(primary.status()["store_pid"]), signal.SIGKILL)


def kill_host(primary: Node) -> None:
    primary.kill()


def hand_over(primary: Node) -> None:
    primary.say("R.SWITCHOVER")


@pytest.mark.parametrize("fault", [kill_store, kill_host, hand_over])
async def test_nobody_at_a_living_node_sees_an_error(
    nodes: dict[str, Node], fault: Callable[[Node], None]
) -> None:
    for node in nodes.values():
        if not node.running:
            node.start()
            until(node.ready, START_S)
    primary = nodes[str((await asyncio.to_thread(all_in_sync, nodes))["primary"])]
    living = [node for node in nodes.values() if node is not primary]
    seen = Traffic()
    async with asyncio.TaskGroup() as group:
        for node in living:
            for number in range(PRODUCERS):
                group.create_task(seen.produce(node, number))
            for number in range(CONSUMERS):
                group.create_task(seen.consume(node, waits=number > 0))
        await asyncio.sleep(CALM_S)
        await asyncio.to_thread(fault, primary)
        await asyncio.sleep(AFTER_S)
        seen.produces = False
        answered = [payload for payload, task_id in seen.put.items() if task_id]
        ends = time.monotonic() + DRAINED_S
        while time.monotonic() < ends and not all(one in seen.acked for one in answered):
            await asyncio.sleep(0.05)
        seen.consumes = False
    print(f"{len(answered)} puts, the longest wait {seen.longest_s:.2f} s, {seen.errors[:5]}")
    if seen.longest_s < COMMIT_S:
        assert not seen.errors
        assert not [one for one in answered if one not in seen.acked]
    assert not [one for one, times in seen.acked.items() if times > 1]
