"""Clients of every kind that write down what they were told: producers, consumers bare and in sessions, readers of tokens, locks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Any
from urllib.parse import quote

import redis
import redis.asyncio
from live.counting_provider import CountingProvider
from live.harness import ADMIN, CLUSTER, TROUBLE, Cluster, Node
from live.history import History, Operation

from tidewarden.client import AsyncClient
from tidewarden.errors import Error, NotHeld, Unreachable

ANSWER_S = 8.0
BACKLOG_MAX = 200  # producers wait for consumers, so that a long run can be drained at its end
LEASE_MS, BACKOFF_MS = 3000, 100
TICK_MS = 500
JOBS, BEATS, LATEST = "siege-jobs", "siege-beats", "siege-latest"
SCHEDULES = {"beat": (BEATS, "all"), "latest": (LATEST, "one")}
"""Name -> its queue, and what becomes of ticks that were missed."""
HONEST_REFUSALS = (
    "NOTHELD",
    "STOREDOWN",
    "STALE",
    "NOQUORUM",
    "NOLEADER",
    "FULL",
    "TIMEOUT",
    "NOTFOUND",
    "DRAINING",
    "PAUSED",
)


class Workload:
    """
    What goes on while faults happen. ``troubles``: what clients met with, by first word.

    ``durability``, ``shards``: of the queue of jobs.
    """

    def __init__(
        self, cluster: Cluster, provider: CountingProvider, seed: int, durability: str = "one", shards: int = 1
    ) -> None:
        self.cluster = cluster
        self.provider = provider
        self.durability, self.shards = durability, shards
        self.history = History()
        self.dice = random.Random(seed)
        self.troubles: Counter[str] = Counter()
        self.producing = True
        self.pause_s = 0.03  # of a producer after each put
        self.put_ok = 0
        self.delivered = 0
        self._seen: set[str] = set()
        self.generation: defaultdict[str, int] = defaultdict(int)
        self._numbers = itertools.count()

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Everything to be run in the background."""
        everywhere = list(self.cluster.nodes.values())
        found = [self.produce(node) for node in everywhere]
        found += [self.consume(node) for node in everywhere]
        found += [self.consume_in_a_session(node) for node in everywhere[:2]]
        found += [self.read_tokens(node) for node in everywhere[-2:]]
        found += [self.lock(node) for node in everywhere[:2]]
        return [*found, self.watch_the_fence()]

    def begin(self, node: Node) -> None:
        """Queues, schedules and accounts, before the first fault."""
        for queue in (JOBS, BEATS, LATEST):
            # Of a take whose answer was lost, nobody knows: such leases end by their time.
            node.say("Q.CONFIG", queue, "SET", "lease_ms", LEASE_MS)
        node.say("Q.CONFIG", JOBS, "SET", "durability", self.durability)
        if self.shards > 1:
            node.say("Q.CONFIG", JOBS, "SET", "shards", self.shards)
        for name, (queue, catchup) in SCHEDULES.items():
            node.say("S.PUT", name, "EVERY", TICK_MS, "CATCHUP", catchup, queue, "tick")
        for account, token in self.provider.seeds.items():
            assert node.say("T.PUT", f"counted/{account}", f'{{"refresh_token": "{token}"}}') == 1

    # One request, written down.

    async def ask(self, operation: Operation, client: redis.asyncio.Redis, *words: Any) -> Any:
        """
        Its answer, which is OK; None when it was refused as NOTHELD or not found.

        Raises: what ``TROUBLE`` names: it is unknown what became of it, or the node says that it cannot.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await client.execute_command(*words)
        except redis.ResponseError as error:
            word = str(error).partition(" ")[0]
            if word not in HONEST_REFUSALS:
                raise AssertionError(f"{words[0]}: {error}") from error
            if word in ("NOTHELD", "NOTFOUND"):
                operation.refused(word)
                return None
            raise  # STOREDOWN and its like: done or not
        operation.ok()
        return answer

    async def connected(self, node: Node) -> redis.asyncio.Redis:
        """A connection to ``node``, or to the next one that takes it."""
        order = list(self.cluster.nodes.values())
        first = order.index(node)
        while True:
            for candidate in order[first:] + order[:first]:
                client = candidate.aclient()
                try:
                    async with asyncio.timeout(3):
                        await client.initialize()
                except TROUBLE as error:
                    self.note(error)
                    await client.aclose()
                else:
                    return client
            await asyncio.sleep(0.1)

    def granted(self, asked: Operation, task_id: str, lease: int, queue: str) -> None:
        """A consumer got this task."""
        self.history.granted(asked, task_id, lease, queue)
        self.delivered += 1
        if queue == JOBS:
            self._seen.add(task_id)

    def note(self, error: BaseException) -> None:
        words = str(error).split()
        self.troubles[words[0] if words and words[0].isupper() else type(error).__name__] += 1

    async def forever(self, node: Node, turn: Any) -> None:
        """``turn(client, node)`` again and again, on a connection that is made anew after each trouble, to any node."""
        order = list(self.cluster.nodes.values())
        client = await self.connected(node)
        try:
            while True:
                try:
                    if await turn(client, node) is False:
                        return
                except TROUBLE as error:
                    self.note(error)
                    await client.aclose()
                    await asyncio.sleep(0.05)
                    client = await self.connected(self.dice.choice(order))
        finally:
            await client.aclose()

    # Producers.

    async def produce(self, node: Node) -> None:
        """Put tasks with ids of ours, half of them delayed; what failed is sometimes asked for again, sometimes left."""
        again: list[tuple[str, list[Any]]] = []

        async def turn(client: redis.asyncio.Redis, node: Node) -> bool:
            if not again:
                task_id = f"{node.name}-{next(self._numbers)}"
                options: list[Any] = ["DELAY", self.dice.randrange(1, 1500)] if self.dice.random() < 0.5 else []
                again.append((task_id, options))
            task_id, options = again[0]
            put = self.history.begin("put", node.name, JOBS, task_id)
            try:
                await self.ask(put, client, "Q.PUT", JOBS, task_id, "ID", task_id, "BACKOFF", BACKOFF_MS, *options)
            except TROUBLE:
                if self.dice.random() < 0.3:
                    again.clear()
                raise
            again.clear()
            self.put_ok += 1
            await asyncio.sleep(self.pause_s)
            while self.producing and self.put_ok - len(self._seen) > BACKLOG_MAX:
                await asyncio.sleep(self.pause_s)
            return self.producing

        await self.forever(node, turn)

    # Consumers.

    async def consume(self, node: Node) -> None:
        """A bare connection: takes, and then does with each task what consumers do, good ones and bad ones."""

        async def turn(client: redis.asyncio.Redis, node: Node) -> None:
            who = f"{node.name}:{id(client):x}"
            asked = self.history.begin("take", who, JOBS)
            async with asyncio.timeout(ANSWER_S):
                rows = await client.execute_command("Q.TAKE", "COUNT", 5, "WAIT", 2000, "FROM", BEATS, LATEST, JOBS)
            asked.ok()
            again = {row[1] for row in rows if row[1] in self._seen}
            for row in rows:
                self.granted(asked, row[1], row[2], row[0])
            for queue, task_id, lease, *_ in rows:
                if task_id in again and self.dice.random() < 0.5:
                    await asyncio.sleep(self.dice.random())  # so that its former holder speaks while it is held
                await self.handle(client, who, queue, task_id, lease)

        await self.forever(node, turn)

    async def handle(self, client: redis.asyncio.Redis, who: str, queue: str, task_id: str, lease: int) -> None:
        how = self.dice.random() if queue == JOBS else 1.0
        await asyncio.sleep(self.dice.random() * 0.01)

        async def use(verb: str, *options: Any) -> None:
            asked = self.history.begin(verb, who, queue, task_id, lease)
            await self.ask(asked, client, f"Q.{verb.upper()}", queue, task_id, lease, *options)

        if how < 0.02:  # gone for longer than its lease, and back as if nothing had happened
            await asyncio.sleep(LEASE_MS / 1000 + BACKOFF_MS / 1000 + self.dice.random())
        elif how < 0.06:
            return await use("release")
        elif how < 0.10:
            return await use("fail", "DELAY", 200)
        elif how < 0.16:
            await use("touch", "LEASE", LEASE_MS)
        elif how < 0.17:
            raise ConnectionError("a consumer that goes, with what it holds")
        return await use("ack")

    async def consume_in_a_session(self, node: Node) -> None:
        """The SDK: one session with grace, over whichever nodes answer."""
        order = sorted(self.cluster.nodes.values(), key=lambda one: one is not node)
        secret = quote(self.cluster.secret, safe="")
        urls = [f"redis://{ADMIN}:{secret}@{one.host}:{one.base_port}" for one in order]
        who = f"sdk:{node.name}"
        async with AsyncClient(urls, retry_s=20.0, answer_s=4.0) as client:
            while True:
                asked = self.history.begin("take", who, JOBS)
                try:
                    tasks = await client.take(JOBS, count=2, wait_ms=2000, lease_ms=LEASE_MS)
                except (Error, TimeoutError) as error:
                    self.note(error)
                    await asyncio.sleep(0.1)
                    continue
                asked.ok()
                for task in tasks:
                    self.granted(asked, task.id, task.lease, JOBS)
                for task in tasks:
                    ack = self.history.begin("ack", who, JOBS, task.id, task.lease)
                    try:
                        await asyncio.sleep(self.dice.random() * 0.3)
                        ack.invoked = time.monotonic()
                        await task.ack()
                    except NotHeld:
                        ack.refused("NOTHELD")
                    except Unreachable as error:
                        self.note(error)
                    except Error as error:
                        if error.code not in HONEST_REFUSALS:
                            raise AssertionError(f"ack: {error}") from error
                        self.note(error)
                    else:
                        ack.ok()

    # Readers, locks, the fence.

    async def read_tokens(self, node: Node) -> None:
        """Every account, one after the other: its generation."""
        accounts = itertools.cycle(self.provider.seeds)

        async def turn(client: redis.asyncio.Redis, node: Node) -> None:
            account = next(accounts)
            read = self.history.begin("read", node.name, "counted", account)
            row = await self.ask(read, client, "T.GET", f"counted/{account}")
            if row is not None and row[4] != "stale":
                read.value = row[3]
                self.generation[account] = max(self.generation[account], row[3])
            elif row is not None:
                read.refused("stale")
            await asyncio.sleep(0.1)

        await self.forever(node, turn)

    async def lock(self, node: Node) -> None:
        """Two of these contend for one lock: its fences only grow, and no old one releases it."""

        async def turn(client: redis.asyncio.Redis, node: Node) -> None:
            who = f"{node.name}:{id(client):x}"
            asked = self.history.begin("acquire", who, "_locks", "door")
            fence = await self.ask(asked, client, "L.ACQUIRE", "door", LEASE_MS, "WAIT", 1000)
            if fence:
                self.history.granted(asked, "door", fence)
                await asyncio.sleep(self.dice.random() * 0.4)
                release = self.history.begin("release", who, "_locks", "door", fence)
                await self.ask(release, client, "L.RELEASE", "door", fence)
            await asyncio.sleep(0.2)

        await self.forever(node, turn)

    async def watch_the_fence(self) -> None:
        """The epoch in the store, asked of the store itself."""

        def look() -> int:
            key = f"{{{CLUSTER}}}:fence"
            with self.cluster.valkey.client(key) as store:
                store.connection_pool.connection_kwargs.update(socket_timeout=2)
                return int(store.hget(key, "epoch") or 0)

        while True:
            seen = self.history.begin("fence", "store", "", "epoch")
            with contextlib.suppress(*TROUBLE):
                seen.ok(lease=await asyncio.to_thread(look))
            await asyncio.sleep(0.25)

    def __str__(self) -> str:
        return f"{self.put_ok} put OK, {self.delivered} delivered; troubles {dict(self.troubles)}"
