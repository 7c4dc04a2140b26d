"""
All nodes restarted, one after the other, under load: nothing is lost, and no client that retries
sees a refusal.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from support.cluster.harness import (
    ADMIN,
    CALM,
    START_S,
    Cluster,
    Node,
    background,
    cluster,
    until,
    until_async,
)
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread

from tidewarden.client import AsyncClient, AsyncTask, Worker

pytestmark = pytest.mark.timeout(400)
QUEUE = "rolling"


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    """
    Who refuses each refresh token that was used: an answer that is not waited for costs the
    account.
    """
    with provider_in_thread(1, 3600, grace_s=0.0) as made:
        yield made


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provider: ScriptedProvider,
) -> Iterator[Cluster]:
    extra = CALM + provider.toml(provider.port, margin_s=60, timeout_s=30)
    with cluster(request, tmp_path_factory.mktemp("rolling"), extra=extra) as made:
        yield made


def urls(made: Cluster) -> list[str]:
    secret = quote(made.secret, safe="")
    return [f"redis://{ADMIN}:{secret}@127.0.0.1:{node.base_port}" for node in made.nodes.values()]


class Load:
    """
    Producers by the SDK and by bare redis-py; consumers likewise. No error leaves it but what a
    retry cannot cure.
    """

    def __init__(self, made: Cluster) -> None:
        self.made = made
        self.numbers = itertools.count()
        self.put: set[str] = set()
        self.done: list[str] = []
        self.drained = 0
        self.producing = True
        self.longest_put_s = 0.0

    async def sdk_producer(self) -> None:
        async with AsyncClient(urls(self.made)) as client:
            queue = client.queue(QUEUE)
            while self.producing:
                began = time.monotonic()
                task_id = await queue.put(b"x", id=f"sdk-{next(self.numbers)}", within_ms=60_000)
                self.longest_put_s = max(self.longest_put_s, time.monotonic() - began)
                self.put.add(task_id)
                await asyncio.sleep(0.01)

    def bare(self, node: Node) -> redis.asyncio.Redis:
        """
        A stock client of one node, which connects and asks again by itself for as long as a restart
        takes.
        """
        return redis.asyncio.Redis(
            port=node.base_port, username=ADMIN, password=self.made.secret, single_connection_client=True, decode_responses=True,
            socket_timeout=None, retry=Retry(ConstantBackoff(0.1), 600, (RedisConnectionError, RedisTimeoutError, OSError)),
        )  # fmt: skip

    async def bare_producer(self, node: Node) -> None:
        async with self.bare(node) as client:
            while self.producing:
                task_id = f"bare-{next(self.numbers)}"
                assert await client.execute_command("Q.PUT", QUEUE, "x", "ID", task_id) == task_id
                self.put.add(task_id)
                await asyncio.sleep(0.01)

    async def sdk_worker(self) -> None:
        worker = Worker(urls(self.made), concurrency=4)

        @worker.task(QUEUE)
        async def handle(task: AsyncTask) -> None:
            await asyncio.sleep(0.005)
            self.done.append(task.id)

        await worker.serve()

    async def bare_consumer(self, node: Node) -> None:
        """Told DRAINING it asks again, which is all that the protocol wants of it."""
        async with self.bare(node) as client:
            while True:
                try:
                    for _, task_id, lease, *_ in await client.execute_command(
                        "Q.TAKE", "WAIT", 500, "FROM", QUEUE
                    ):
                        await client.execute_command("Q.ACK", QUEUE, task_id, lease)
                        self.done.append(task_id)
                except ResponseError as error:
                    if not str(error).startswith("DRAINING"):
                        raise
                    self.drained += 1
                    await asyncio.sleep(0.1)


async def test_a_rolling_restart_loses_nothing_and_refuses_nothing(nodes: Cluster) -> None:
    load, members = Load(nodes), list(nodes.nodes.values())
    first = nodes.leader()
    epoch = int(first.status()["epoch"])
    jobs = [load.sdk_producer(), load.bare_producer(members[0]), load.bare_producer(members[2])]
    jobs += [load.sdk_worker(), load.bare_consumer(members[1]), load.bare_consumer(members[2])]
    async with background(*jobs) as running:
        await until_async(lambda: len(load.done) > 20, what="tasks go through")
        for node in (first, *nodes.others(first)):  # the leader first: it has the most to hand over
            assert await asyncio.to_thread(node.terminate) == 0
            others = nodes.others(node)
            await asyncio.to_thread(
                until,
                lambda others=others: any(other.status()["sweeping"] for other in others),
                what="another sweeps",
            )
            node.start()
            await asyncio.to_thread(until, node.ready, START_S, what=f"{node.name} serves")
        load.producing = False
        # what is under way is put, and a producer that failed says so
        await asyncio.gather(*running[:3])
        await until_async(
            lambda: load.put <= set(load.done), 60, what="every task that was put is done"
        )
        for job in running:
            if job.done():
                job.result()  # a producer that failed says so here
    assert nodes.audit(QUEUE) == {}
    assert load.longest_put_s < 30
    assert int(nodes.leader().status()["epoch"]) > epoch
    assert Counter(load.done).most_common(1)[0][1] == 1, "a task was delivered twice"


async def test_what_a_node_does_when_it_is_told_to_end(nodes: Cluster) -> None:
    """
    Another leads before anything is drained; a waiting take hears DRAINING; what is held may still
    be acknowledged.
    """
    nodes.heal()
    leader = nodes.leader()
    queue = "ending"
    async with leader.aclient() as holder, leader.aclient() as waiter:
        await holder.execute_command("Q.PUT", queue, "x", "ID", "a")
        ((_, _, lease, *_),) = await holder.execute_command("Q.TAKE", "FROM", queue)
        waiting = asyncio.ensure_future(
            waiter.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", queue)
        )
        await until_async(
            lambda: leader.metric("tidewarden_node_waiting_takes") > 0, what="the take waits"
        )
        ended = asyncio.ensure_future(asyncio.to_thread(leader.terminate))
        with pytest.raises(ResponseError, match="DRAINING"):
            await waiting
        assert any(
            other.status()["sweeping"] or other.status()["role"] == "leader"
            for other in nodes.others(leader)
        )
        assert await holder.execute_command("Q.ACK", queue, "a", lease) == "OK"
        assert await ended == 0
    leader.start()
    await asyncio.to_thread(until, leader.ready, START_S, what="it serves again")
    assert nodes.audit(queue) == {}


async def test_a_refresh_that_is_under_way_when_its_node_ends_is_finished(
    nodes: Cluster, provider: ScriptedProvider
) -> None:
    """
    The node leads besides: it hands over and sends waiting takes away at once; the answer is stored
    before it ends.
    """
    nodes.heal()
    ((user, token),) = provider.seeds.items()
    account = f"counted/{user}"
    provider.hold = True
    await asyncio.to_thread(
        nodes.leader().say, "T.PUT", account, json.dumps({"refresh_token": token})
    )
    await until_async(lambda: provider.held == 1, what="it is asked")
    (busy,) = await asyncio.to_thread(
        until, lambda: [node for node in nodes.alive() if refreshes(node)]
    )
    await asyncio.to_thread(until, lambda: led_by(nodes, busy), what=f"{busy.name} leads")
    async with busy.aclient() as waiter:
        waiting = asyncio.ensure_future(
            waiter.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "nothing")
        )
        await until_async(
            lambda: busy.metric("tidewarden_node_waiting_takes") > 0, what="the take waits"
        )
        ended = asyncio.ensure_future(asyncio.to_thread(busy.terminate))
        with pytest.raises(ResponseError, match="DRAINING"):
            await waiting
        provider.hold = False
    other = nodes.others(busy)[0]
    assert other.status()["leader"] in {node.name for node in nodes.others(busy)}
    assert await ended == 0
    assert other.say("T.GET", account)[3:] == [2, "fresh"]
    assert [(one.generation, one.answer) for one in provider.log] == [(0, "new")]


def refreshes(node: Node) -> bool:
    return 'tidewarden_tokens_in_flight{provider="counted"} 1' in node.http("/metrics").text


def led_by(nodes: Cluster, node: Node) -> bool:
    """Whether it leads and sweeps; else it is asked to."""
    if node.status()["sweeping"]:
        return True
    nodes.leader().say("R.TRANSFER", node.name)
    return False
