"""A leader of the past speaks: the store refuses its script, nothing changes, and it steps down."""

from __future__ import annotations

import re
import time

from support.cluster.harness import (
    CALM,
    CLUSTER,
    Cluster,
    Node,
    background,
    cluster_of_module,
    until,
    until_async,
)
from support.cluster.stale_sweep import (
    catch_a_sweep,
    fence,
    quiet,
    refused_by,
    sweep_script,
    unchanged,
)
from support.faults.traffic import Traffic

nodes = cluster_of_module(proxied=True, extra=CALM)


def said_so(node: Node, log_from: int) -> list[str]:
    """What a node's log says of the end of its leadership."""
    return [
        line
        for line in node.messages(log_from)
        if "stepping down" in line or "the term of epoch" in line
    ]


def test_a_held_script_of_a_stopped_leader_is_stale(nodes: Cluster) -> None:
    """
    Its sweep's call is held, it is stopped, another is elected and sweeps; the call is let go:
    STALE.
    """
    old = nodes.leader()
    epoch = int(old.status()["epoch"])
    trap = catch_a_sweep(nodes, old, "jobs")
    log_from = len(old.log())
    held_at = time.monotonic()
    old.freeze()
    new, greater = until(lambda: nodes.sweeper(epoch), what="another sweeps")
    assert new is not old
    until(lambda: fence(nodes, "jobs")[0] >= greater, what="the new leader has swept the shard")
    until(
        lambda: nodes.audit("jobs") == {"ready": 2},
        what="the task that the held call was for is moved",
    )
    buried = re.compile(rf"node {old.name} \(boot \d+\) is buried")
    until(
        lambda: any(buried.search(text) for node in nodes.others(old) for text in node.messages()),
        what="it is declared dead",
    )
    before = quiet(nodes, "jobs")

    trap.release()
    until(lambda: trap.replies, what="the store answers the held call")
    print(f"held for {time.monotonic() - held_at:.1f} s; the store's answer: {trap.replies!r}")
    refused_by(trap, old, epoch)
    unchanged(nodes, "jobs", greater, before)

    old.thaw()
    thawed_at = time.monotonic()
    until(
        lambda: not (seen := old.status())["sweeping"] and seen["leader"] == new.name,
        what="it steps down",
    )
    said = said_so(old, log_from)
    print(
        f"{old.name} follows {new.name} {time.monotonic() - thawed_at:.2f} s after SIGCONT, and"
        f" says: {said}"
    )
    assert said
    assert nodes.leader() is new
    assert fence(nodes, "jobs")[0] == greater
    assert int(new.status()["epoch"]) == greater, "the old one did not unseat the new"
    # It was declared dead, and says so to whoever comes before it has registered again.
    rows = until(
        lambda: old.say("Q.TAKE", "COUNT", 5, "FROM", "jobs"), what="it serves under another boot"
    )
    assert [row[1] for row in rows] == ["t0", "t1"]


def test_a_leader_that_raft_believes_in_is_refused_too(nodes: Cluster) -> None:
    """
    Only the store knows of a greater epoch: the leader steps down at STALE, asks Raft, and claims
    above it.
    """
    leader = nodes.heal()
    epoch = int(leader.status()["epoch"])
    trap = catch_a_sweep(nodes, leader, "claims")
    log_from = len(leader.log())
    stranger = f"{epoch + 3} n9.1"
    with nodes.valkey.client() as store:
        fenced = store.eval(
            sweep_script().source,
            2,
            f"{{{CLUSTER}:claims:0}}",
            f"{{{CLUSTER}}}:view",
            0,
            "n9.1",
            epoch + 3,
            1,
        )
        assert fenced
    assert fence(nodes, "claims") == (epoch + 3, "n9.1"), stranger
    trap.release()
    until(lambda: trap.replies.startswith(b"-STALE "), what="the store refuses")
    # On a starved machine Raft may have taken the leadership away before the answer was read.
    until(lambda: said_so(leader, log_from), what="it says so")
    found, greater = until(lambda: nodes.sweeper(epoch + 3), what="somebody claimed above it")
    print([line for line in leader.messages(log_from) if "epoch" in line])
    until(lambda: fence(nodes, "claims")[0] >= greater, what="the shard follows")
    until(lambda: nodes.audit("claims") == {"ready": 2}, what="the sweep goes on")
    assert found.status()["leader"] == found.name


async def test_links_to_the_store_are_cut(nodes: Cluster) -> None:
    """
    Every connection between nodes and store is reset, again and again, under load: all comes back,
    nothing is lost.
    """
    traffic = Traffic("cut", list(nodes.nodes.values()))
    # What a take had got when its answer was lost is with nobody: such leases end by their time.
    traffic.nodes[0].say("Q.CONFIG", traffic.queue, "SET", "lease_ms", 3000)
    jobs = [traffic.produce(node) for node in traffic.nodes] + [
        traffic.consume(node) for node in traffic.nodes
    ]
    async with background(*jobs):
        for _ in range(4):
            count = len(traffic.put)
            await until_async(lambda count=count: len(traffic.put) > count + 40, what="tasks flow")
            assert all(proxy.cut() for proxy in nodes.proxies.values())
        await traffic.drained(nodes)
    traffic.settled(nodes)
