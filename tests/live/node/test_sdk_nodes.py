"""The SDK's choice of nodes: it begins anywhere, learns the others, and leaves one that drains."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from support.cluster.harness import (
    ADMIN,
    START_S,
    Cluster,
    Node,
    cluster_of_module,
    until,
    until_async,
)

from tidewarden.client import AsyncClient

pytestmark = pytest.mark.timeout(400)


nodes = cluster_of_module()


def url(nodes: Cluster, node: Node) -> str:
    return f"redis://{ADMIN}:{quote(nodes.secret, safe='')}@127.0.0.1:{node.base_port}"


async def test_many_clients_spread_over_the_nodes(nodes: Cluster) -> None:
    urls = [url(nodes, node) for node in nodes.nodes.values()]
    clients = [AsyncClient(urls) for _ in range(40)]
    try:
        await asyncio.gather(*(client.queues() for client in clients))
        used = {client.nodes.current().port for client in clients}
        assert used == set(nodes.members.values())  # 40 that miss one: once in ten million runs
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_a_client_that_was_told_of_one_node_outlives_it(nodes: Cluster) -> None:
    victim = nodes.others(nodes.leader())[0]
    async with AsyncClient(url(nodes, victim)) as client:
        queue = client.queue("learned")
        await queue.put("x", id="a")
        ports = {address.port for address in client.nodes.addresses}
        assert ports == set(nodes.members.values())
        async with await queue.take(lease_ms=30_000) as task:  # type: ignore[union-attr]
            await asyncio.to_thread(victim.kill)
            await until_async(
                lambda: client.line.up and client.nodes.current().port != victim.base_port,
                what="it goes on elsewhere",
            )
            assert not task.lost
        assert (await queue.wait("a", timeout_ms=0)).word == "done"
    victim.start()
    await asyncio.to_thread(until, victim.ready, START_S, what="it serves again")


async def test_a_node_that_drains_is_left_by_all_and_nobody_notices(nodes: Cluster) -> None:
    leaving = nodes.others(nodes.leader())[0]
    urls = [url(nodes, node) for node in nodes.nodes.values()]
    clients = [AsyncClient(urls) for _ in range(20)]
    stop = asyncio.Event()

    async def work(client: AsyncClient, name: str) -> int:
        done = 0
        queue = client.queue("drained")
        while not stop.is_set():
            await queue.put(b"x", id=f"{name}-{done}")
            task = await queue.take(wait_ms=5_000)
            assert task is not None
            await task.ack()
            done += 1
        return done

    try:
        working = [asyncio.ensure_future(work(one, str(n))) for n, one in enumerate(clients)]
        await until_async(
            lambda: any(one.nodes.current().port == leaving.base_port for one in clients),
            what="some use the node",
        )
        await asyncio.to_thread(leaving.terminate)
        await until_async(
            lambda: all(one.nodes.current().port != leaving.base_port for one in clients),
            what="all have left it",
        )
        stop.set()
        assert all(done > 0 for done in await asyncio.gather(*working))
        assert len({one.nodes.current().port for one in clients}) == 2
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    leaving.start()
    await asyncio.to_thread(until, leaving.ready, START_S, what="it serves again")
