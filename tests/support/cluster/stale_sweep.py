"""A leader's sweep is held on its way to the store, until another leads."""

from __future__ import annotations

import re

from support.cluster.harness import (
    CLUSTER,
    Cluster,
    Node,
    until,
)
from support.store.proxy import Trap

from tidewarden.node.product_scripts import product_scripts
from tidewarden.store.scripts.loader import Script


def sweep_script() -> Script:
    """The sweep's script as the nodes have it."""
    return product_scripts()["queue.sweep"]


def catch_a_sweep(nodes: Cluster, leader: Node, queue: str) -> Trap:
    """
    Hold the leader's next sweep of ``queue``, between it and the store: one that has a task to
    move.
    """
    leader.say("Q.PUT", queue, "first", "ID", "t0", "DELAY", 1)
    until(lambda: nodes.audit(queue) == {"ready": 1}, what="the queue was swept before")
    shard = f"{{{CLUSTER}:{queue}:0}}"  # a new leader sweeps all that there are
    call = f"{sweep_script().function}\r\n$1\r\n2\r\n${len(shard)}\r\n{shard}\r\n"
    trap = nodes.proxies[leader.name].trap(call.encode())
    leader.say("Q.PUT", queue, "held up", "ID", "t1", "DELAY", 300)
    trap.wait()
    assert not trap.replies
    return trap


def fence(nodes: Cluster, queue: str) -> tuple[int, str]:
    with nodes.valkey.client() as store:
        epoch, holder = store.hmget(f"{{{CLUSTER}:{queue}:0}}:shard", "epoch", "sweeper")
    return int(epoch or 0), (holder or b"").decode()


def quiet(nodes: Cluster, queue: str) -> dict[str, bytes]:
    """The shard's keys, once nobody changes them any more."""
    last: dict[str, bytes] = {}

    def same() -> dict[str, bytes]:
        nonlocal last
        before, last = last, nodes.dump(queue)
        return last if last == before else {}

    found: dict[str, bytes] = until(same, 60, 0.3, what="the shard is quiet")
    return found


def refused_by(trap: Trap, old: Node, epoch: int) -> None:
    """
    The held call of ``old``, of that epoch, was answered STALE, for somebody else's greater one.
    """
    found = re.match(rb"-STALE .* at epoch (\d+) held by (\w+)\.", trap.replies)
    assert found, trap.replies
    assert int(found[1]) > epoch
    assert found[2].decode() != old.name


def unchanged(nodes: Cluster, queue: str, epoch: int, before: dict[str, bytes]) -> None:
    """
    A refused script changes nothing; nothing can be said where, on a starved machine, one more
    leader has swept since.
    """
    now = nodes.dump(queue)
    if fence(nodes, queue)[0] == epoch:
        assert now == before, "a refused script changes nothing"
