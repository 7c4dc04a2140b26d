"""
The store is killed and comes back with its log: the nodes wait, and nothing that was acknowledged
is lost.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import redis
from support.cluster.harness import (
    CLUSTER,
    START_S,
    STILL,
    SYNCED,
    Cluster,
    Node,
    background,
    cluster_of_module,
    until,
    until_async,
)
from support.faults.traffic import Traffic

PROVIDER = """
[providers.p]
token_url = "http://127.0.0.1:1/token"
client_id = "c"
client_secret = "s"
"""
AWAY_S = 6.5  # longer than a node lets a request wait for the store (5 s)


nodes = cluster_of_module(extra=STILL + PROVIDER, store=SYNCED)


def view_of(lease: int) -> int:
    return lease >> 36


async def answer_while_away(client: Any, *words: Any) -> str:
    """What a request meets while the store is away; the client leaves then."""
    begun = time.monotonic()
    try:
        await client.execute_command(*words)
    except redis.ResponseError as error:
        return f"{error} (after {time.monotonic() - begun:.1f} s)"
    finally:
        await client.aclose()
    return f"OK (after {time.monotonic() - begun:.1f} s)"


async def test_the_store_is_killed_and_comes_back(nodes: Cluster) -> None:
    everywhere = list(nodes.nodes.values())
    leader, view = nodes.leader(), nodes.valkey.view
    jobs_queue, kept, left_queue, refused_queue = (
        f"{name}-{view}" for name in ("jobs", "kept", "left", "refused")
    )
    account = f"p/a{view}"
    traffic = Traffic(jobs_queue, everywhere)
    # A take that was under way when the store went leaves leases that nobody knows of: they end by
    # their time.
    leader.say("Q.CONFIG", jobs_queue, "SET", "lease_ms", 9000)
    for node in everywhere:
        node.say(
            "Q.PUT", refused_queue, "there before", "ID", f"before-{node.name}", "DELAY", 3_600_000
        )
    keeper, waiters = everywhere[0].aclient(), [node.aclient() for node in everywhere]
    everywhere[0].say("Q.PUT", kept, "x", "ID", "k0")
    (held,) = await keeper.execute_command("Q.TAKE", "LEASE", 600_000, "FROM", kept)
    leaver = everywhere[1].aclient()
    everywhere[0].say("Q.PUT", left_queue, "x", "ID", "l0")
    (left,) = await leaver.execute_command("Q.TAKE", "LEASE", 600_000, "FROM", left_queue)
    leader.say(
        "T.PUT", account, '{"refresh_token": "r", "access_token": "secret-a", "expires_in": 3600}'
    )
    assert leader.say("T.GET", account)[4] == "fresh"
    waiting = [
        asyncio.ensure_future(
            client.execute_command("Q.TAKE", "WAIT", 180_000, "FROM", f"waited-{view}-{node.name}")
        )
        for client, node in zip(waiters, everywhere, strict=True)
    ]
    for node in everywhere:
        await until_async(
            lambda node=node: node.metric("tidewarden_resp_waiting") >= 1, what="a take waits"
        )
    jobs = [traffic.produce(node) for node in everywhere] + [
        traffic.consume(node) for node in everywhere
    ]
    async with background(*jobs):
        await until_async(lambda: len(traffic.put) > 200, what="tasks flow")
        # Due while the store is away: the nodes' timers try to take them, and meet nobody.
        for number, node in enumerate(everywhere[:2]):
            node.say(
                "Q.PUT", f"waited-{view}-{node.name}", "at last", "ID", f"w{number}", "DELAY", 500
            )
        nodes.valkey.kill()
        killed = time.monotonic()
        # What was never sent must not exist; and who could not acknowledge, and goes, leaves a task
        # for the next.
        refused = [
            asyncio.ensure_future(
                answer_while_away(node.aclient(), "Q.PUT", refused_queue, "x", "ID", node.name)
            )
            for node in everywhere
        ]
        refused.append(
            asyncio.ensure_future(answer_while_away(leaver, "Q.ACK", left_queue, "l0", left[2]))
        )
        await until_async(
            lambda: not any(is_ready(node) for node in everywhere),
            what="no node calls itself ready",
        )
        assert [node.http("/health/live").status_code for node in everywhere] == [200] * 3
        # Who read a token here before gets it here still.
        begun = time.monotonic()
        assert leader.say("T.GET", account)[:2] == ["secret-a", "Bearer"]
        assert leader.say("T.GET", account)[4] == "stale"
        assert leader.http(f"/v1/tokens/{account}").json()["state"] == "stale"
        print(f"three reads of a token without the store: {time.monotonic() - begun:.3f} s")
        elsewhere = next(node for node in everywhere if node is not leader)
        refused.append(
            asyncio.ensure_future(answer_while_away(elsewhere.aclient(), "T.GET", account))
        )
        said = await asyncio.gather(*refused)
        print(f"three puts, an ack and a token never read here, while the store is away: {said}")
        assert all(text.startswith("STOREDOWN") for text in said)
        await asyncio.sleep(max(0.0, killed + AWAY_S - time.monotonic()))
        count = len(traffic.put)

        nodes.valkey.start()
        back = time.monotonic()
        await until_async(
            lambda: all(is_ready(node) for node in everywhere),
            START_S,
            what="every node serves again",
        )
        await until_async(lambda: len(traffic.put) > count, what="puts are answered again")
        print(
            f"away for {back - killed:.1f} s; puts OK again {time.monotonic() - back:.2f} s after"
            f" it, view {nodes.valkey.view}"
        )
        assert nodes.valkey.view == view + 1
        until(
            lambda: leader.say("T.GET", account)[4] == "fresh",
            what="never from memory while the store answers",
        )
        everywhere[0].say("Q.PUT", f"waited-{view}-{everywhere[2].name}", "at last", "ID", "w2")
        rows = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert [row[1] for (row,) in rows] == ["w0", "w1", "w2"], "takes that waited through it all"
        assert all(view_of(row[2]) == view + 1 for (row,) in rows), (
            "lease numbers begin with the new view"
        )
        (again,) = await keeper.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", left_queue)
        assert (again[1], again[4]) == ("l0", 1), "a disconnect, long before the lease's end"
        assert await keeper.execute_command("Q.ACK", kept, "k0", held[2]) == "OK", (
            "a lease outlives the store's death"
        )
        count = len(traffic.put)
        await until_async(lambda: len(traffic.put) > count + 100, what="tasks flow on")
        await traffic.drained(nodes)
    traffic.settled(nodes)
    views = [view_of(grant.lease) for grant in traffic.deliveries()]
    assert set(views) == {view, view + 1}
    assert not any("secret-a" in node.log() for node in everywhere)
    assert nodes.audit(refused_queue) == {"delayed": 3}, "what was refused unsent does not exist"
    for client in (keeper, *waiters):
        await client.aclose()


def is_ready(node: Node) -> bool:
    return node.http("/health/ready").status_code == 200


async def test_schedules_and_sweep_go_on_after_it(nodes: Cluster) -> None:
    """
    A second death, short, with nothing under way: what was due meanwhile is swept when the store is
    back.
    """
    leader, view = nodes.leader(), nodes.valkey.view
    leader.say("Q.PUT", f"later-{view}", "x", "ID", "d0", "DELAY", 500)
    nodes.valkey.kill()
    await asyncio.sleep(1)
    nodes.valkey.start()
    until(
        lambda: nodes.audit(f"later-{view}") == {"ready": 1}, what="the due task is swept to ready"
    )
    with nodes.valkey.client() as store:
        assert store.get(f"{{{CLUSTER}}}:view") == b"%d" % (view + 1)
    for node in nodes.nodes.values():
        until(lambda node=node: node.status()["view"] == view + 1, what="R.STATUS shows the view")
