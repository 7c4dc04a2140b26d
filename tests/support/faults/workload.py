"""
Producers and consumers, bare and in sessions, that write down what they were told; others are in
``onlookers``.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator
from typing import Any
from urllib.parse import quote

import redis.asyncio
from support.cluster.harness import ADMIN, TROUBLE, Cluster, Node
from support.faults import onlookers
from support.faults.clients import HONEST_REFUSALS, Clients
from support.faults.history import REMEMBERED_S, USES, Operation
from support.providers.scripted_provider import ScriptedProvider

from tidewarden.client import AsyncClient
from tidewarden.errors import Error, NotHeld, Unreachable

BACKLOG_MAX = 200  # producers wait for consumers, so that a long run can be drained at its end
LEASE_MS, BACKOFF_MS = 3000, 100
TICK_MS = 500
JOBS, BEATS, LATEST = "siege-jobs", "siege-beats", "siege-latest"
SCHEDULES = {"beat": (BEATS, "all"), "latest": (LATEST, "one")}
"""Name -> its queue, and what becomes of ticks that were missed."""
NEWS, SUBSCRIBED = "siege-news", ("siege-mail", "siege-bills")
"""A topic, and its queues."""
PUT_INTO = (JOBS, *SUBSCRIBED)
QUEUES = (*PUT_INTO, BEATS, LATEST)
LANES = 6
"""
Of the queue of jobs, one task at a time in each; a few of its tasks are in one. The id says in
which.
"""
_LANE = re.compile(r"-(lane\d+)(?:~\d+)?$")
OPTIONS = {"touch": ("LEASE", LEASE_MS), "release": (), "fail": ("DELAY", 200)}
WAYS, WAY_WEIGHTS = ("ack", "touch", "release", "fail", "leave", "go"), (83, 6, 4, 4, 2, 1)


def lane_of(place: str, key: str) -> str | None:
    """Of which only one task at a time may be held: a lane of the jobs, or a lock."""
    if place == "_locks":
        return key
    found = _LANE.search(key) if place == JOBS else None
    return found[1] if found else None


class Workload(Clients):
    """What goes on while faults happen. ``durability``, ``shards``: of the queue of jobs."""

    def __init__(
        self,
        cluster: Cluster,
        provider: ScriptedProvider,
        seed: int,
        durability: str = "one",
        shards: int = 1,
    ) -> None:
        super().__init__(list(cluster.nodes.values()), seed)
        self.cluster = cluster
        self.provider = provider
        self.durability, self.shards = durability, shards
        self.producers = 0
        """How many have not ended yet."""
        self.pause_s = 0.03  # of a producer after each put
        self.put_ok = 0
        self.delivered = 0
        self.fresh: deque[Operation] = deque(maxlen=20)
        """The latest puts of jobs that were answered OK."""
        self._seen: set[str] = set()
        self.generation: defaultdict[str, int] = defaultdict(int)
        self._numbers = itertools.count()
        self._ways = self._each_way()

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Everything to be run in the background."""
        everywhere = self.nodes
        found = [self.produce(node) for node in everywhere]
        found += [self.consume(node) for node in everywhere]
        found += [self.consume_in_a_session(node) for node in everywhere[:2]]
        found += [onlookers.read_tokens(self, node) for node in everywhere[-2:]]
        found += [onlookers.lock(self, node) for node in everywhere[:2]]
        found += [onlookers.wait_for_ends(self, node) for node in everywhere[1:2]]
        return [*found, onlookers.watch_the_fence(self)]

    def begin(self, node: Node) -> None:
        """Queues, schedules and accounts, before the first fault."""
        for queue in SUBSCRIBED:
            node.say("Q.LINK", NEWS, queue)
        for queue in QUEUES:
            # Of a take whose answer was lost, nobody knows: such leases end by their time.
            node.say("Q.CONFIG", queue, "SET", "lease_ms", LEASE_MS)
        for queue in PUT_INTO:
            node.say("Q.CONFIG", queue, "SET", "durability", self.durability)
        if self.shards > 1:
            node.say("Q.CONFIG", JOBS, "SET", "shards", self.shards)
        for name, (queue, catchup) in SCHEDULES.items():
            node.say("S.PUT", name, "EVERY", TICK_MS, "CATCHUP", catchup, queue, "tick")
        for account, token in self.provider.seeds.items():
            assert node.say("T.PUT", f"counted/{account}", f'{{"refresh_token": "{token}"}}') == 1

    def granted(self, asked: Operation, task_id: str, lease: int, queue: str) -> None:
        """A consumer got this task."""
        self.history.granted(asked, task_id, lease, queue)
        self.delivered += 1
        if queue == JOBS:
            self._seen.add(task_id)

    # Producers.

    async def produce(self, node: Node) -> None:
        """
        Put tasks with ids of ours; what failed is sometimes asked for again, sometimes left, and
        some are put twice.
        """
        again: list[tuple[str, list[Any], float]] = []
        twice: deque[tuple[float, list[Any], str]] = deque()

        async def turn(client: redis.asyncio.Redis, node: Node) -> bool:
            while twice and twice[0][0] < time.monotonic():
                at, words, told = twice.popleft()
                if at < time.monotonic() - REMEMBERED_S:
                    continue
                answer = await self.ask(
                    self.history.begin("repeat", node.name, words[1], told), client, *words
                )
                assert answer == told, f"{words} was answered {told}, and then {answer}"
            if not again:
                again.append(self._job(node))
            place, words, delay_s = again[0]
            puts = [
                self.history.begin("put", node.name, one, words[4])
                for one in (SUBSCRIBED if place == NEWS else (place,))
            ]
            try:
                told = await self.ask(puts[0], client, *words)
            except TROUBLE:
                if self.dice.random() < 0.3:
                    again.clear()
                raise
            again.clear()
            for put in puts:
                put.ok(delay_s if lane_of(place, told) is None else None)
                put.key = told  # with its shard, where it is in a lane
            if place == JOBS:
                self.put_ok += 1
                self.fresh.append(puts[0])
            if self.put_ok < 3 or self.dice.random() < 0.05:
                twice.append((time.monotonic() + self.dice.uniform(0, 2), words, told))
            await asyncio.sleep(self.pause_s)
            while self.producing and self.put_ok - len(self._seen) > BACKLOG_MAX:
                await asyncio.sleep(self.pause_s)
            return self.producing

        self.producers += 1
        await self.forever(node, turn)
        self.producers -= 1

    def _job(self, node: Node) -> tuple[str, list[Any], float]:
        """
        Where to put a task, the words, and its delay, s: of ten one goes to the topic, of twenty
        one into a lane; half of all wait.
        """
        number, place, options, delay_ms = next(self._numbers), JOBS, ["BACKOFF", BACKOFF_MS], 0
        task_id = f"{node.name}-{number}"
        if number % 10 == 3:
            place = NEWS
        elif number % 20 == 5:
            lane = f"lane{self.dice.randrange(LANES)}"
            task_id += f"-{lane}"
            options += ["LANE", lane]
        if self.dice.random() < 0.5:
            delay_ms = self.dice.randrange(1, 1500)
            options += ["DELAY", delay_ms]
        return place, ["Q.PUT", place, task_id, "ID", task_id, *options], delay_ms / 1000

    # Consumers.

    async def consume(self, node: Node) -> None:
        """
        A bare connection: takes, and then does with each task what consumers do, good ones and bad
        ones.
        """

        async def turn(client: redis.asyncio.Redis, node: Node) -> None:
            who = f"{node.name}:{id(client):x}"
            asked = self.history.begin("take", who, JOBS)
            rows = (
                await self.ask(
                    asked, client, "Q.TAKE", "COUNT", 5, "WAIT", 2000, "FROM", *QUEUES[1:], JOBS
                )
                or ()
            )
            again = {row[1] for row in rows if row[1] in self._seen}
            for row in rows:
                self.granted(asked, row[1], row[2], row[0])
            for queue, task_id, lease, *_ in rows:
                if task_id in again and self.dice.random() < 0.5:
                    # so that its former holder speaks while it is held
                    await asyncio.sleep(self.dice.random())
                await self.handle(client, who, queue, task_id, lease)

        await self.forever(node, turn)

    def _each_way(self) -> Iterator[str]:
        """Every way once, so that no run lacks one, then any, by weight."""
        yield from self.dice.sample(WAYS, len(WAYS))
        while True:
            yield from self.dice.choices(WAYS, WAY_WEIGHTS)

    async def handle(
        self, client: redis.asyncio.Redis, who: str, queue: str, task_id: str, lease: int
    ) -> None:
        """
        What a consumer does with a task: mostly its ack.

        Of a hundred jobs two are left for longer than their lease, and then spoken of as if nothing
        had happened; one is taken along by a consumer that goes.
        """
        what = next(self._ways) if queue == JOBS else "ack"
        await asyncio.sleep(self.dice.random() * 0.01)
        if what == "leave":
            await asyncio.sleep(LEASE_MS / 1000 + BACKOFF_MS / 1000 + self.dice.random())
            what = self.dice.choice(USES)
        if what == "go":
            raise ConnectionError("a consumer that goes, with what it holds")

        async def use(verb: str, *options: Any) -> None:
            asked = self.history.begin(verb, who, queue, task_id, lease)
            await self.ask(asked, client, f"Q.{verb.upper()}", queue, task_id, lease, *options)

        if what in OPTIONS:
            await use(what, *OPTIONS[what])
        if what in ("ack", "touch"):
            await use("ack", *(("RESULT", lease) if self.dice.random() < 0.5 else ()))

    async def consume_in_a_session(self, node: Node) -> None:
        """The SDK: one session with grace, over whichever nodes answer."""
        order = sorted(self.nodes, key=lambda one: one is not node)
        secret = quote(self.cluster.secret, safe="")
        urls = [f"redis://{ADMIN}:{secret}@{one.host}:{one.base_port}" for one in order]
        who = f"sdk:{node.name}"
        async with AsyncClient(urls, retry_s=20.0, answer_s=4.0) as client:
            while True:
                asked = self.history.begin("take", who, JOBS)
                try:
                    tasks = await client.take(JOBS, count=2, wait_ms=2000, lease_ms=LEASE_MS)
                except (Error, TimeoutError) as error:
                    self.note(honest_error("take", error))
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
                        await task.ack(str(task.lease))
                    except NotHeld:
                        ack.refused("NOTHELD")
                    except Error as error:
                        self.note(honest_error("ack", error))
                    else:
                        ack.ok()

    def __str__(self) -> str:
        return f"{self.put_ok} put OK, {self.delivered} delivered; troubles {dict(self.troubles)}"


def honest_error(verb: str, error: Error | TimeoutError) -> BaseException:
    """The error. Raises: AssertionError: no fault explains such an answer to the SDK."""
    if (
        isinstance(error, Error)
        and not isinstance(error, Unreachable)
        and error.code not in HONEST_REFUSALS
    ):
        raise AssertionError(f"{verb}: {error.code} {error}") from error
    return error
