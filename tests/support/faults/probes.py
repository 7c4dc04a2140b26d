"""
What must go on whatever link was cut: each probe has somebody wait at a node, and does what ends
the wait.

A probe begins its fault when all is in place, and says what is about to pass, so that the fault
hits just that. Nothing else happens in a probe's queue: no later put, no lease's end and no alarm
wakes whom the probe itself should have woken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from support.cluster.harness import CLUSTER, Cluster, Node, until_async
from support.faults.history import Operation
from support.faults.workload import Workload

from tidewarden.queue.partitioning import prefix_of, shard_of

WAIT_MS = 60_000
LEASE_MS = 3_600_000
"""So long that no end of a lease, nor the alarm that was set for one, wakes anybody in a run."""
REPEAT_S = 0.1
DELAY_MS = 150
LOCK_SHARDS = 8
ANSWER_S = 60.0
"""What a request gets beyond its wait: more than a store that stands still for long takes."""
Begin = Callable[[str, str], None]


def queue_of(node: Node) -> str:
    return f"probe-{node.name}"


def room_of(node: Node) -> str:
    return f"room-{node.name}"


def settings_of(node: Node) -> str:
    return f"settings-{node.name}"


QUEUES_OF = (queue_of, room_of, settings_of)


def configure(cluster: Cluster) -> None:
    """The probes' queues, before the first fault; every node knows them all."""
    nodes = list(cluster.nodes.values())
    for node in nodes:
        for of in QUEUES_OF:
            nodes[0].say("Q.CONFIG", of(node), "SET", "lease_ms", LEASE_MS)
        nodes[0].say("Q.CONFIG", room_of(node), "SET", "capacity", 1)
    for node in nodes:
        for other in nodes:
            for of in QUEUES_OF:
                node.say("Q.CONFIG", of(other))


@dataclass
class Probe:
    """
    One at ``node``, ``there`` being another; ``begin(asked, heard)`` begins the fault, aimed at a
    request or its answer with the one in it, or at a message with the other.
    """

    load: Workload
    node: Node
    there: Node
    key: str
    begin: Begin

    @property
    def queue(self) -> str:
        return queue_of(self.node)

    @property
    def who(self) -> str:
        return f"probe:{self.node.name}"

    @contextlib.asynccontextmanager
    async def client(self, node: Node) -> AsyncIterator[redis.asyncio.Redis]:
        """A connection to that node and no other."""
        client = await self.load.connected(node, alone=True)
        try:
            yield client
        finally:
            await client.aclose()

    def asked(self, kind: str, place: str, lease: int = 0, key: str = "") -> Operation:
        return self.load.history.begin(kind, self.who, place, key or self.key, lease)

    async def until_ok(
        self, client: redis.asyncio.Redis, asked: Callable[[], Operation], *words: Any
    ) -> Any:
        """
        Ask until it is answered otherwise than by what any request may meet whose link is cut, each
        time written down.
        """
        while True:
            with contextlib.suppress(redis.ResponseError):
                return await self.load.ask(asked(), client, *words, answer_s=ANSWER_S)
            await asyncio.sleep(REPEAT_S)

    async def put(self, node: Node, *options: Any, place: str = "") -> None:
        place = place or self.queue
        async with self.client(node) as client:
            await self.until_ok(
                client,
                lambda: self.asked("put", place),
                "Q.PUT",
                place,
                self.key,
                "ID",
                self.key,
                *options,
            )

    async def take(self, client: redis.asyncio.Redis, place: str = "") -> int:
        """Wait for the task, on that connection; its lease number."""
        place = place or self.queue
        while True:
            asked = self.asked("take", place)
            try:
                rows = await self.load.ask(
                    asked, client, "Q.TAKE", "WAIT", WAIT_MS, "FROM", place, answer_s=ANSWER_S
                )
            except redis.ResponseError:
                await asyncio.sleep(REPEAT_S)
                continue
            for queue, task_id, lease, *_ in rows:
                self.load.granted(asked, task_id, lease, queue)
                assert task_id == self.key, f"{task_id} of a former probe lay in {queue}"
                return int(lease)

    async def ack(self, client: redis.asyncio.Redis, lease: int, place: str = "") -> None:
        place = place or self.queue
        await self.until_ok(
            client, lambda: self.asked("ack", place, lease), "Q.ACK", place, self.key, lease
        )

    async def parked(self, place: str = "") -> None:
        """A take waits at the node."""
        async with self.client(self.node) as client:

            async def waits() -> bool:
                return bool(
                    (await client.execute_command("Q.STATS", place or self.queue))[
                        "waiting_takes_here"
                    ]
                )

            while not await waits():
                await asyncio.sleep(0.01)

    async def noted(self, queue: str, what: str, shard: int = 0) -> None:
        """
        The store knows of somebody who waits: ``what`` is a hash of a shard, and a field that is
        there then.
        """
        name, _, entry = what.partition(" ")
        with self.load.cluster.valkey.client() as store:
            key = f"{prefix_of(CLUSTER, queue, shard)}:{name}"
            await until_async(
                lambda: store.hget(key, entry), what=f"{what} of {queue} is in the store"
            )


PROBES: dict[str, Callable[[Probe], Awaitable[None]]] = {}


def probe(function: Callable[[Probe], Awaitable[None]]) -> Callable[[Probe], Awaitable[None]]:
    PROBES[function.__name__.replace("_", " ")] = function
    return function


async def _waits_for(one: Probe, act: Callable[[], Awaitable[None]]) -> None:
    """
    A take waits at the node; then the fault begins and something is done. The task comes and is
    acknowledged.
    """
    async with one.client(one.node) as client:
        waiting = asyncio.ensure_future(one.take(client))
        try:
            await one.parked()
            one.begin(one.key, one.queue)
            await act()
            await one.ack(client, await waiting)
        finally:
            waiting.cancel()


@probe
async def put_here(one: Probe) -> None:
    await _waits_for(one, lambda: one.put(one.node))


@probe
async def put_there(one: Probe) -> None:
    await _waits_for(one, lambda: one.put(one.there))


@probe
async def delayed_here(one: Probe) -> None:
    await _waits_for(one, lambda: one.put(one.node, "DELAY", DELAY_MS))


@probe
async def delayed_there(one: Probe) -> None:
    await _waits_for(one, lambda: one.put(one.there, "DELAY", DELAY_MS))


async def _handed_back(one: Probe, verb: str, *options: Any) -> None:
    """Another consumer of the node has the task, and hands it back; who waits gets it."""
    await one.put(one.there)
    async with one.client(one.node) as holder:
        lease = await one.take(holder)

        async def act() -> None:
            if verb == "go":
                await holder.aclose()
                return
            await one.until_ok(
                holder,
                lambda: one.asked(verb, one.queue, lease),
                f"Q.{verb.upper()}",
                one.queue,
                one.key,
                lease,
                *options,
            )

        await _waits_for(one, act)


@probe
async def release(one: Probe) -> None:
    await _handed_back(one, "release")


@probe
async def fail(one: Probe) -> None:
    await _handed_back(one, "fail", "DELAY", DELAY_MS)


@probe
async def disconnect(one: Probe) -> None:
    await _handed_back(one, "go")


@probe
async def end(one: Probe) -> None:
    """Who waits for a task's end is told of it."""
    await one.put(one.there)
    async with one.client(one.node) as holder, one.client(one.node) as client:
        lease = await one.take(holder)
        asked = one.asked("wait", one.queue)
        waiting = asyncio.ensure_future(
            one.until_ok(client, lambda: asked, "Q.WAIT", one.queue, one.key, WAIT_MS)
        )
        try:
            await one.noted(one.queue, f"waits {one.key}")
            one.begin(one.key, one.key)
            await one.ack(holder, lease)
            asked.value = tuple(await waiting)
        finally:
            waiting.cancel()


@probe
async def room(one: Probe) -> None:
    """Who waits for room in a full queue puts as soon as there is some."""
    place, key = room_of(one.node), one.key
    async with one.client(one.node) as holder, one.client(one.node) as client:
        await one.put(one.there, place=place)
        lease = await one.take(holder, place)
        later = f"{key}-later"
        words = ("Q.PUT", place, later, "ID", later, "WAIT", WAIT_MS)
        waiting = asyncio.ensure_future(
            one.until_ok(client, lambda: one.asked("put", place, key=later), *words)
        )
        try:
            await one.noted(place, "shard roomless")
            one.begin(key, place)
            await one.ack(holder, lease, place)
            await waiting
        finally:
            waiting.cancel()
        one.key = later
        await one.ack(holder, await one.take(holder, place), place)


@probe
async def lock(one: Probe) -> None:
    """Who waits for a lock has it when its holder lets go."""
    name = one.key
    async with one.client(one.node) as holder, one.client(one.node) as client:

        async def acquire(client: redis.asyncio.Redis) -> int:
            while True:
                asked = one.asked("acquire", "_locks", key=name)
                with contextlib.suppress(redis.ResponseError):
                    fence = await one.load.ask(
                        asked,
                        client,
                        "L.ACQUIRE",
                        name,
                        LEASE_MS,
                        "WAIT",
                        WAIT_MS,
                        answer_s=ANSWER_S,
                    )
                    one.load.history.granted(asked, name, fence)
                    return int(fence)
                await asyncio.sleep(REPEAT_S)

        async def let_go(client: redis.asyncio.Redis, fence: int) -> None:
            await one.until_ok(
                client,
                lambda: one.asked("release", "_locks", fence, name),
                "L.RELEASE",
                name,
                fence,
            )

        fence = await acquire(holder)
        waiting = asyncio.ensure_future(acquire(client))
        try:
            await one.noted("_locks", f"waits {name}", shard_of(name, LOCK_SHARDS))
            one.begin(name, name)
            await let_go(holder, fence)
            await let_go(client, await waiting)
        finally:
            waiting.cancel()


@probe
async def settings(one: Probe) -> None:
    """What was set at another node is in force here."""
    place, value = settings_of(one.node), LEASE_MS + int(one.key.partition("-")[0][1:]) + 1
    async with one.client(one.there) as client, one.client(one.node) as here:
        one.begin(place, place)
        await one.until_ok(
            client,
            lambda: one.asked("configure", place),
            "Q.CONFIG",
            place,
            "SET",
            "lease_ms",
            value,
        )
        while True:
            with contextlib.suppress(redis.ResponseError):
                if (await here.execute_command("Q.CONFIG", place))["lease_ms"] == value:
                    return
            await asyncio.sleep(0.05)
