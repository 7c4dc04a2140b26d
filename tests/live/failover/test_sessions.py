"""
Sessions on three nodes: a consumer whose node is killed goes on at another one, or its work does.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx
import pytest
import redis
from support.cluster.harness import ADMIN, Cluster, Node, cluster_of_module, until, until_async

from tidewarden.client.replies import mapped

TASKS = 5
LONG_MS = 600_000  # a lease that surely does not end by its time


nodes = cluster_of_module()


def hold(node: Node, queue: str, grace_ms: int) -> tuple[Any, str, list[list[Any]]]:
    """A consumer in a session of its own that holds tasks."""
    for number in range(TASKS):
        node.say("Q.PUT", queue, number, "ID", f"t{number}")
    client = node.client()
    uuid = str(client.execute_command("SESSION", "GRACE", grace_ms))
    rows = client.execute_command("Q.TAKE", "COUNT", TASKS, "LEASE", LONG_MS, "FROM", queue)
    assert len(rows) == TASKS
    return client, uuid, rows


def burials(cluster: Cluster, victim: Node) -> int:
    """How often that node was declared dead so far, by the other nodes' logs."""
    said = re.compile(rf"node {victim.name} \(boot \d+\) is buried")
    return sum(
        said.match(line) is not None for node in cluster.others(victim) for line in node.messages()
    )


def leased(node: Node, queue: str) -> int:
    return int(mapped(node.say("Q.STATS", queue))["leased"])


@pytest.mark.parametrize("which", ["follower", "leader"])
def test_a_killed_nodes_consumer_goes_on_at_another_within_its_grace(
    healed: Cluster, which: str
) -> None:
    leader = healed.leader()
    victim = leader if which == "leader" else healed.others(leader)[0]
    there = healed.others(victim)[0]
    queue = f"kept-{which}"
    _, uuid, rows = hold(victim, queue, 60_000)
    before = burials(healed, victim)
    victim.kill()
    client = there.client()
    assert client.execute_command("SESSION", uuid) == uuid
    # Long enough for the cluster to have buried the node: that must not end what the session holds.
    until(lambda: burials(healed, victim) > before)
    assert leased(there, queue) == TASKS
    pairs = [word for row in rows for word in (row[1], row[2])]
    assert client.execute_command("Q.ACK", queue, *pairs) == [1] * TASKS
    there.say("Q.PUT", queue, "x", "ID", "next")
    assert client.execute_command("Q.TAKE", "LEASE", LONG_MS, "FROM", queue)[0][1] == "next"
    client.execute_command("SESSION", "GRACE", 0)
    client.close()
    until(lambda: leased(there, queue) == 0)
    healed.audit(queue)


async def test_what_a_killed_nodes_consumer_held_is_anothers_after_the_mark_and_the_grace(
    healed: Cluster,
) -> None:
    grace_s = 4.0
    leader = healed.leader()
    victim, there = healed.others(leader)
    queue = "lost"
    _, uuid, held = hold(victim, queue, round(grace_s * 1000))
    waiter = there.aclient()
    waiting = asyncio.ensure_future(
        waiter.execute_command("Q.TAKE", "COUNT", TASKS, "WAIT", 60_000, "FROM", queue)
    )
    await until_async(
        lambda: there.metric("tidewarden_resp_waiting") == 1, what="the other consumer waits"
    )
    before = burials(healed, victim)
    killed = time.monotonic()
    victim.kill()
    await until_async(lambda: burials(healed, victim) > before)
    buried = time.monotonic()
    rows = await asyncio.wait_for(waiting, 60)
    back = time.monotonic()
    print(
        f"buried after {buried - killed:.2f} s, taken again {back - buried:.2f} s later with a"
        f" grace of {grace_s:g} s"
    )
    assert back - killed >= grace_s, "the grace begins with the mark, which comes after the death"
    rest = (
        await waiter.execute_command("Q.TAKE", "COUNT", TASKS, "FROM", queue)
        if len(rows) < TASKS
        else []
    )
    assert {row[4] for row in (*rows, *rest)} == {1}, "a session's end is no attempt"
    with pytest.raises(redis.ResponseError, match="NOTFOUND"):
        there.say("SESSION", uuid)
    with pytest.raises(redis.ResponseError, match="NOTHELD"):
        there.say("Q.ACK", queue, held[0][1], held[0][2])
    pairs = [word for row in (*rows, *rest) for word in (row[1], row[2])]
    assert await waiter.execute_command("Q.ACK", queue, *pairs) == [1] * TASKS
    await waiter.aclose()
    assert not healed.audit(queue)


def test_a_frozen_nodes_consumers_have_their_sessions_when_it_wakes(healed: Cluster) -> None:
    """
    SIGSTOP until it is buried, then SIGCONT: under its new boot it joins again what its connections
    had.
    """
    leader = healed.leader()
    victim, there = healed.others(leader)
    queue = "frozen"
    client, _, rows = hold(victim, queue, 60_000)
    before = burials(healed, victim)
    victim.freeze()
    until(lambda: burials(healed, victim) > before)
    victim.thaw()
    until(
        lambda: (
            victim.status()["holder"] != ""
            and victim.metric("tidewarden_node_sessions_attached") == 1
        )
    )
    there.say("Q.PUT", queue, "x", "ID", "next")

    def took() -> Any:
        try:
            return client.execute_command("Q.TAKE", "ID", "next", "FROM", queue)
        except redis.ResponseError as error:
            if not str(error).startswith("STALE"):  # it has not registered yet
                raise
            return None

    assert until(took)[0][1] == "next"
    assert leased(there, queue) == TASKS + 1
    pairs = [word for row in rows for word in (row[1], row[2])]
    assert client.execute_command("Q.ACK", queue, *pairs) == [1] * TASKS
    client.close()


def test_leases_of_http_outlive_their_node_and_those_of_a_session_its_grace_alone(
    healed: Cluster,
) -> None:
    victim, there = healed.others(healed.leader())
    queue = "http"

    def ask(node: Node, path: str, body: Any, session: str = "") -> Any:
        url = f"http://{node.host}:{node.base_port + 1}/v1{path}"
        head = {"Authorization": f"Bearer {ADMIN}:{healed.secret}"}
        head |= {"Tidewarden-Session": session} if session else {}
        found = httpx.post(url, json=body, headers=head, timeout=60)
        assert found.status_code == 200, found.text
        return found.json()

    ask(there, f"/queues/{queue}/tasks", [{"id": f"t{n}"} for n in range(4)])
    uuid = ask(victim, "/sessions", {"grace_ms": 15_000})["session"]
    fields = {"count": 2, "lease_ms": LONG_MS}
    free = ask(victim, f"/queues/{queue}/take", fields)["tasks"]
    bound = ask(victim, f"/queues/{queue}/take", fields, uuid)["tasks"]
    before = burials(healed, victim)
    victim.kill()
    until(lambda: burials(healed, victim) > before)
    back: list[Any] = []
    while len(back) < len(bound):
        found = ask(there, f"/queues/{queue}/take", {"count": 4, "wait_ms": 60_000})["tasks"]
        assert found, "the session has ended"
        back += found
    assert {one["id"] for one in back} == {one["id"] for one in bound}
    assert {one["attempt"] for one in back} == {1}, "a session's end is no attempt"
    held = [{"id": one["id"], "lease": one["lease"]} for one in (*free, *back)]
    answers = ask(there, f"/queues/{queue}/ack", {"tasks": held})["tasks"]
    assert [one["acked"] for one in answers] == [True] * 4, "nothing ended with the node"
    assert not healed.audit(queue)
