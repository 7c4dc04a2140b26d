"""The SDK on three real nodes, while they are killed, paused and stopped under it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from urllib.parse import quote

import pytest
from support.cluster.harness import (
    ADMIN,
    CALM,
    START_S,
    Cluster,
    Node,
    cluster_of_module,
    until,
    until_async,
)

from tidewarden.client import AsyncClient, AsyncTask, Client, Task, Worker
from tidewarden.errors import Error

pytestmark = pytest.mark.timeout(400)


nodes = cluster_of_module(extra=CALM)


def urls(cluster: Cluster, first: Node | None = None) -> list[str]:
    """Every node's address, this one first."""
    order = sorted(cluster.nodes.values(), key=lambda node: node is not first)
    return [
        f"redis://{ADMIN}:{quote(cluster.secret, safe='')}@127.0.0.1:{node.base_port}"
        for node in order
    ]


async def restart(node: Node) -> None:
    """Start it (from this thread, with which the process would die), and wait until it serves."""
    node.start()
    await asyncio.to_thread(until, node.ready, START_S, what=f"{node.name} serves")


async def test_a_node_is_killed_under_a_task(healed: Cluster) -> None:
    """The lease goes on at another node, and the task is acknowledged there as it was taken."""
    victim = healed.others(healed.leader())[0]
    async with AsyncClient(urls(healed, victim), spread=False) as client:
        queue = client.queue("killed")
        await queue.put("x", id="a")
        async with await queue.take(lease_ms=9_000) as task:  # type: ignore[union-attr]
            session, lease = client.nodes.session, task.lease
            await asyncio.to_thread(victim.kill)
            # past the lease's first length, and the moment in which the node is found dead
            for _ in range(20):
                await asyncio.sleep(0.5)
                found = await queue.peek("a")
                assert (found.state, found.lease) == ("leased", lease)
            assert client.nodes.session == session
            assert not task.lost
        assert (await queue.wait("a", timeout_ms=0)).word == "done"
        assert healed.audit("killed") == {}


async def test_a_node_is_frozen_under_a_task(healed: Cluster) -> None:
    """Its connections are open and silent: the SDK leaves it all the same."""
    victim = healed.others(healed.leader())[0]
    async with AsyncClient(urls(healed, victim), spread=False) as client:
        queue = client.queue("frozen")
        await queue.put("x", id="a")
        async with await queue.take(lease_ms=120_000) as task:  # type: ignore[union-attr]
            victim.freeze()
            await until_async(
                lambda: client.line.up and client.nodes.current().port != victim.base_port,
                what="it goes on elsewhere",
            )
            assert (await queue.peek("a")).state == "leased"
        assert task.settled
        victim.thaw()


async def test_puts_over_a_node_that_is_killed_again_and_again_are_each_done_once(
    healed: Cluster,
) -> None:
    victim = healed.others(healed.leader())[0]
    async with AsyncClient(urls(healed, victim), spread=False) as client:
        queue = client.queue("once")
        stop = asyncio.Event()
        acknowledged: list[str] = []

        async def producer() -> None:
            while not stop.is_set():
                acknowledged.append(await queue.put(b"x"))
                acknowledged.extend(await queue.put_many([b"y"] * 20))

        producing = [asyncio.ensure_future(producer()) for _ in range(4)]
        for node in (victim, *healed.others(healed.leader(), victim)):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(node.kill)
            await restart(node)
        await asyncio.sleep(0.3)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*producing), 120)
        healed.heal()
        seen: list[str] = []
        while tasks := await queue.take_many(500):
            assert all(await queue.ack_many(tasks))
            seen += [task.id for task in tasks]
        assert Counter(acknowledged) == Counter(seen)


async def test_a_worker_goes_on_while_nodes_are_stopped_one_after_another(healed: Cluster) -> None:
    """
    Handlers of both kinds; every task runs to its end once: no lease is lost to a node's stop.
    """
    worker = Worker(urls(healed), concurrency=6)
    runs: Counter[str] = Counter()

    @worker.task("calm")
    async def calm(task: AsyncTask) -> str:
        runs[task.id] += 1
        await asyncio.sleep(0.3)
        return task.id

    @worker.task("blocking")
    def blocking(task: Task) -> str:
        runs[task.id] += 1
        time.sleep(0.3)
        return task.id

    serving = asyncio.ensure_future(worker.serve())
    async with AsyncClient(urls(healed, healed.leader()), spread=False) as client:
        ids = {
            name: await client.queue(name).put_many([b"x"] * 30) for name in ("calm", "blocking")
        }
        for node in healed.others(healed.leader()):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(node.terminate)
            await restart(node)
        for name, those in ids.items():
            for task_id in those:
                ending = await client.queue(name).wait(task_id, timeout_ms=60_000)
                assert (ending.word, ending.result) == ("done", task_id.encode())
    worker.stop()
    assert await asyncio.wait_for(serving, 90) == 0
    assert set(runs.values()) == {1}


def test_threads_on_the_blocking_client_while_the_node_is_killed(healed: Cluster) -> None:
    victim = healed.others(healed.leader())[0]
    problems: list[Error] = []
    with Client(urls(healed, victim), spread=False) as client:
        queue = client.queue("threads")
        ids = queue.put_many([b"x"] * 60)
        seen: list[str] = []

        def consume() -> None:
            try:
                while (task := queue.take(wait_ms=1_000)) is not None:
                    with task:
                        time.sleep(0.05)
                    seen.append(task.id)
            except Error as error:
                problems.append(error)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        victim.kill()
        for thread in threads:
            thread.join(120)
        assert not problems
        assert set(seen) <= set(ids)
        lost = set(ids) - set(
            seen
        )  # taken by the killed node, whose answer never came: theirs again when the lease is over
        assert len(lost) <= 4
        assert queue.stats()["leased"] == len(lost)
