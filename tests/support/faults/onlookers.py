"""
Clients of a fault run that put and take nothing: they read tokens, contend for a lock, wait for
ends, watch the fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

import redis.asyncio
from support.cluster.harness import CLUSTER, TROUBLE, Node

if TYPE_CHECKING:
    from support.faults.workload import Workload

LEASE_MS, WAIT_MS = 3000, 2000


async def read_tokens(load: Workload, node: Node) -> None:
    """Every account, one after the other: its generation."""
    accounts = itertools.cycle(load.provider.seeds)

    async def turn(client: redis.asyncio.Redis, node: Node) -> None:
        account = next(accounts)
        read = load.history.begin("read", node.name, "counted", account)
        row = await load.ask(read, client, "T.GET", f"counted/{account}")
        if row is not None and row[4] != "stale":
            read.value = row[3]
            load.generation[account] = max(load.generation[account], row[3])
        elif row is not None:
            read.refused("stale")
        await asyncio.sleep(0.1)

    await load.forever(node, turn)


async def lock(load: Workload, node: Node) -> None:
    """
    Two of these contend for one lock: its fences only grow, no old one releases it, and no two hold
    it at a time.

    Now and then one keeps it for longer than its lease, and lets go of it then.
    """
    holds = itertools.count()

    async def turn(client: redis.asyncio.Redis, node: Node) -> None:
        who = f"{node.name}:{id(client):x}"
        asked = load.history.begin("acquire", who, "_locks", "door")
        fence = await load.ask(asked, client, "L.ACQUIRE", "door", LEASE_MS, "WAIT", 1000)
        if fence:
            load.history.granted(asked, "door", fence)
            too_long = next(holds) % 15 == 2
            await asyncio.sleep(load.dice.random() * 0.4 + too_long * LEASE_MS / 1000)
            release = load.history.begin("release", who, "_locks", "door", fence)
            await load.ask(release, client, "L.RELEASE", "door", fence)
        await asyncio.sleep(0.2)

    await load.forever(node, turn)


async def wait_for_ends(load: Workload, node: Node) -> None:
    """Asks how the latest tasks ended."""

    async def turn(client: redis.asyncio.Redis, node: Node) -> None:
        if load.fresh:
            put = load.fresh.pop()
            asked = load.history.begin("wait", node.name, put.place, put.key)
            answer = await load.ask(asked, client, "Q.WAIT", put.place, put.key, WAIT_MS)
            if answer is not None:
                asked.value = tuple(answer)
        await asyncio.sleep(0.1)

    await load.forever(node, turn)


async def watch_the_fence(load: Workload) -> None:
    """The epoch in the store, asked of the store itself."""

    def look() -> int:
        key = f"{{{CLUSTER}}}:fence"
        with load.cluster.valkey.client(key) as store:
            store.connection_pool.connection_kwargs.update(socket_timeout=2)
            with store.pipeline() as both:
                role, epoch = both.execute_command("ROLE").hget(key, "epoch").execute()
            if role[0] not in (b"master", "master"):
                raise redis.ConnectionError("it came back as a replica, which may have nothing yet")
            return int(epoch or 0)

    while True:
        seen = load.history.begin("fence", "store", "", "epoch")
        with contextlib.suppress(*TROUBLE):
            seen.ok(lease=await asyncio.to_thread(look))
        await asyncio.sleep(0.25)
