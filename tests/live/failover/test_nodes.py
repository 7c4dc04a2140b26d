"""
Three node processes on one store, and what becomes of the work when consumers, nodes and the leader
go.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import redis
from support.cluster.harness import Cluster, Node, background, cluster_of_module, until, until_async
from support.faults.history import Operation
from support.faults.traffic import Traffic

from tidewarden.client.replies import mapped

EVERY_MS = 200
LONG_MS = 600_000  # a lease that surely does not end by its time
RST = struct.pack("ii", 1, 0)


nodes = cluster_of_module()


def socket_of(client: redis.Redis) -> socket.socket:
    sock: socket.socket = client.connection._sock
    return sock


@pytest.mark.parametrize("how", ["reset", "half-closed"])
async def test_a_consumers_socket_is_cut(healed: Cluster, how: str) -> None:
    """
    What it held is with the next waiting consumer, on another node, at once, and the attempt does
    not count.
    """
    queue = f"cut-{how}"
    here, there, third = healed.nodes.values()
    for number in range(5):
        third.say("Q.PUT", queue, number, "ID", f"t{number}")
    holder = here.client()
    held = holder.execute_command("Q.TAKE", "COUNT", 5, "LEASE", LONG_MS, "FROM", queue)
    assert sorted(row[1] for row in held) == [f"t{number}" for number in range(5)]
    assert {row[4] for row in held} == {1}

    waiter = there.aclient()
    waiting = asyncio.ensure_future(
        waiter.execute_command("Q.TAKE", "COUNT", 5, "WAIT", 60_000, "FROM", queue)
    )
    await until_async(
        lambda: there.metric("tidewarden_resp_waiting") == 1, what="the other consumer waits"
    )
    sock = socket_of(holder)
    begun = time.monotonic()
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        sock.close()
    else:
        sock.shutdown(socket.SHUT_WR)
    again = await asyncio.wait_for(waiting, 60)
    took_ms = (time.monotonic() - begun) * 1000
    print(f"{how}: {len(again)} tasks with the next consumer after {took_ms:.1f} ms")
    assert sorted(row[1] for row in again) == [f"t{number}" for number in range(5)]
    assert {row[4] for row in again} == {1}, "a disconnect is no attempt"
    assert min(row[2] for row in again) > max(row[2] for row in held), "lease numbers grow"
    peeked = mapped(third.say("Q.PEEK", queue, "t0"))
    assert (peeked["losses"], peeked["node"]) == (1, there.name)
    old = next(row for row in held if row[1] == "t0")
    with pytest.raises(redis.ResponseError, match="NOTHELD"):
        third.say("Q.ACK", queue, "t0", old[2])
    pairs: list[Any] = [word for row in again for word in (row[1], row[2])]
    assert await waiter.execute_command("Q.ACK", queue, *pairs) == [1] * 5
    await waiter.aclose()
    with contextlib.suppress(OSError, redis.RedisError):
        holder.close()
    assert not healed.audit(queue)


async def hold(traffic: Traffic, node: Node, count: int) -> tuple[Any, list[Operation]]:
    """A consumer that takes tasks and keeps them: the client, and what it holds."""
    client = await traffic.connected(node)
    held: list[Operation] = []
    while len(held) < count:
        held += await traffic.take(client, node, count - len(held), lease_ms=LONG_MS)
    return client, held


def again(traffic: Traffic, held: list[Operation]) -> dict[str, Operation]:
    """Where the tasks that somebody held were delivered next, by id."""
    leases = {grant.lease for grant in held}
    ids = {grant.key for grant in held}
    return {d.key: d for d in traffic.deliveries() if d.key in ids and d.lease not in leases}


async def test_the_leader_is_stopped_and_goes_on(healed: Cluster) -> None:
    """
    SIGSTOP, then SIGCONT once it was declared dead: one leader soon after, nothing lost, and the
    node is back under a new boot.
    """
    old = healed.leader()
    before = old.status()
    traffic = Traffic("paused", list(healed.nodes.values()))
    others = healed.others(old)
    parked = await traffic.connected(old)
    async with background(
        *(traffic.produce(node) for node in others), *(traffic.consume(node) for node in others)
    ):
        holder, held = await hold(traffic, old, 5)
        waiting = asyncio.ensure_future(
            parked.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "elsewhere")
        )
        await until_async(
            lambda: old.metric("tidewarden_resp_waiting") >= 1, what="a take waits on the leader"
        )
        old.freeze()
        stopped = time.monotonic()
        new, epoch = await asyncio.to_thread(
            until, lambda: healed.sweeper(int(before["epoch"])), what="a new sweep"
        )
        print(
            f"sweeping under epoch {epoch} on {new.name} after {time.monotonic() - stopped:.2f} s"
        )
        await until_async(
            lambda: again(traffic, held).keys() == {d.key for d in held},
            what="the held come back",
        )
        back = again(traffic, held)
        worst_s = max(d.answered for d in back.values()) - stopped
        print(f"what it held was taken again after {worst_s:.2f} s")
        assert {d.value for d in back.values()} == {1}, "a node's death is no attempt"
        others[0].say("Q.PUT", "elsewhere", "x", "ID", "late")

        old.thaw()
        woken = time.monotonic()
        await asyncio.to_thread(
            until, lambda: old.status()["holder"] != before["holder"], what="it has a new boot"
        )
        await asyncio.to_thread(
            until, lambda: one_leads(healed.statuses()), what="one leads, and all know it"
        )
        print(f"one leader, whom all know, {time.monotonic() - woken:.2f} s after it woke")
        assert any("registered as" in line for line in old.messages())

        with pytest.raises(redis.ResponseError, match="NOTHELD"):
            await holder.execute_command("Q.ACK", traffic.queue, held[0].key, held[0].lease)
        rows = await asyncio.wait_for(waiting, 60)
        assert [row[1] for row in rows] == ["late"], (
            "the take that waited through it all got a task"
        )
        await parked.execute_command("Q.ACK", "elsewhere", rows[0][1], rows[0][2])
        await traffic.drained(healed)
        await asyncio.gather(holder.aclose(), parked.aclose())
    traffic.settled(healed)


def one_leads(seen: dict[str, dict[str, Any]]) -> bool:
    """Whether three nodes answered, one of them leads and sweeps, and all name it."""
    roles = [(status["role"], bool(status["sweeping"])) for status in seen.values()]
    leaders = {status["leader"] for status in seen.values()}
    return (len(roles), roles.count(("leader", True)), len(leaders)) == (3, 1, 1) and sum(
        one for _, one in roles
    ) == 1


def check_ticks(node: Node) -> None:
    """
    A schedule's ticks went on through the change of leaders: each is there once, none is missing.
    """
    assert node.say("S.DELETE", "beat") == 1
    tasks, _ = node.say("Q.PEEK", "beats", "STATE", "ready", "COUNT", 1000)
    ticks = sorted(int(row["id"].split(":")[1]) for row in map(mapped, tasks))
    print(f"{len(ticks)} ticks of {EVERY_MS} ms, gaps {Counter(b - a for a, b in pairwise(ticks))}")
    assert len(ticks) > 5
    assert {b - a for a, b in pairwise(ticks)} == {EVERY_MS}


async def test_the_leader_is_killed(healed: Cluster) -> None:
    """
    SIGKILL while tasks flow: a new epoch sweeps; what was put with OK is delivered; nothing is
    acknowledged twice.
    """
    old = healed.leader()
    epoch = int(old.status()["epoch"])
    everywhere = list(healed.nodes.values())
    traffic = Traffic("flow", everywhere)
    old.say("S.PUT", "beat", "EVERY", EVERY_MS, "CATCHUP", "all", "beats", "x")
    jobs = [traffic.produce(node) for node in everywhere] + [
        traffic.consume(node) for node in everywhere * 2
    ]
    async with background(*jobs):
        holder, held = await hold(traffic, old, 10)
        await until_async(lambda: len(traffic.put) > 150, what="tasks flow")
        old.kill()
        killed = time.monotonic()
        new, now = await asyncio.to_thread(
            until, lambda: healed.sweeper(epoch), 60, 0.01, what="a new sweep"
        )
        print(
            f"epoch {epoch} on {old.name} killed; epoch {now} sweeps on {new.name} after"
            f" {time.monotonic() - killed:.2f} s"
        )
        assert new is not old
        await until_async(
            lambda: again(traffic, held).keys() == {d.key for d in held},
            what="the held come back",
        )
        back = again(traffic, held)
        worst_s = max(d.answered for d in back.values()) - killed
        print(
            f"what was held through it was taken again after {worst_s:.2f} s; its leases had ten"
            " minutes"
        )
        assert {d.value for d in back.values()} == {1}, "a node's death is no attempt"
        count = len(traffic.put)
        await until_async(lambda: len(traffic.put) > count + 100, what="tasks flow on")
        await traffic.drained(healed)
        await holder.aclose()
    traffic.settled(healed)
    check_ticks(healed.alive()[0])
    assert any("is dead" in line for node in healed.alive() for line in node.messages())

    old.start()
    until(old.ready, what="it is back")
    assert healed.leader() is not None
    until(lambda: int(old.status()["epoch"]) >= now, what="it has learned of the new epoch")


async def test_the_leader_is_asked_to_stop(healed: Cluster) -> None:
    """
    SIGTERM while tasks flow: another sweeps before it drains, it ends with 0, and nobody gets
    anything twice.
    """
    old = healed.leader()
    epoch = int(old.status()["epoch"])
    traffic = Traffic("planned", list(healed.nodes.values()))
    everywhere = traffic.nodes
    async with background(
        *(traffic.produce(n) for n in everywhere), *(traffic.consume(n) for n in everywhere)
    ):
        await until_async(lambda: len(traffic.put) > 100, what="tasks flow")
        asked = time.monotonic()
        ended = asyncio.ensure_future(asyncio.to_thread(old.terminate))
        new, now = await asyncio.to_thread(
            until, lambda: healed.sweeper(epoch), 60, 0.01, what="a new sweep"
        )
        print(
            f"epoch {now} sweeps on {new.name} {time.monotonic() - asked:.2f} s after SIGTERM to"
            f" {old.name}"
        )
        assert await ended == 0
        print(f"it ended after {time.monotonic() - asked:.2f} s")
        count = len(traffic.put)
        await until_async(lambda: len(traffic.put) > count + 50, what="tasks flow on")
        await traffic.drained(healed)
    traffic.settled(healed)


async def test_the_last_node_serves_without_a_quorum(healed: Cluster) -> None:
    """
    Two of three are killed: nobody leads and nothing is swept, but puts, takes and due times go on;
    then they are back.
    """
    leader = healed.leader()
    epoch = int(leader.status()["epoch"])
    last, *gone = healed.others(leader)
    for node in (leader, *gone):
        node.kill()
    until(lambda: last.status()["role"] == "orphan", what="it is an orphan")
    status = last.status()
    assert (status["leader"], status["quorum"], status["sweeping"]) == ("", False, False)
    assert [
        last.http(path).status_code for path in ("/leader", "/health/live", "/health/ready")
    ] == [503, 200, 200]
    assert (
        "no leader is heard of: everything is served, but nothing is swept"
        in last.http("/health/ready").json()["warning"]
    )
    client = last.aclient()
    waiting = asyncio.ensure_future(
        client.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "alone")
    )
    begun = time.monotonic()
    last.say("Q.PUT", "alone", "x", "ID", "a0", "DELAY", 700)
    ((_, task_id, lease, *_),) = await asyncio.wait_for(waiting, 60)
    print(f"a task due in 0.7 s came after {time.monotonic() - begun:.3f} s without any leader")
    assert time.monotonic() - begun >= 0.69
    assert await client.execute_command("Q.ACK", "alone", task_id, lease) == "OK"
    await client.aclose()
    found = healed.heal()
    assert int(found.status()["epoch"]) > epoch
    assert found.http("/leader").status_code == 200
