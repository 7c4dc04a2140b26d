"""The account of a run on an engine that fails over by itself."""

from __future__ import annotations

import asyncio

from support.cluster.engines import EngineCluster
from support.cluster.harness import CLUSTER, until
from support.faults.history import (
    History,
    crowded,
    epochs,
    generations,
    lacking,
    lease_numbers,
    lost_puts,
    old_numbers,
    put_once,
    results,
    unfinished,
)  # fmt: skip
from support.faults.siege import KINDS, check_all, ids_left, puts_end, refreshed_again
from support.faults.workload import JOBS, PUT_INTO, QUEUES, Workload, lane_of

CALM_S = 60.0


async def end(cluster: EngineCluster, workload: Workload, *, strict: bool) -> None:
    """
    Everything goes on and drains; what was lost is counted, ``strict``: has to be nothing; what no
    loss excuses is asserted.
    """
    node = await asyncio.to_thread(cluster.leader, CALM_S)
    await refreshed_again(workload)
    await puts_end(workload, node)

    def drained() -> bool:
        return not sum(int(node.say("Q.STATS", queue)["total"]) for queue in QUEUES)

    await asyncio.to_thread(until, drained, CALM_S, 0.2, what="the queues are drained")
    history = workload.history
    left = {
        queue: ids_left(cluster, queue, workload.shards if queue == JOBS else 1)
        for queue in PUT_INTO
    }
    puts = node.say("Q.STATS", JOBS)["count_put"]
    counted = {
        "puts lost": lost_puts(history, left) + unfinished(history, left),
        "uses of an old number, acks lost": (
            old_numbers(history) + put_once(history, JOBS, left[JOBS], puts)
        ),
        "tasks of whose end a waiter was told otherwise": results(history),
        "tasks held beside others of their lane": crowded(history, lane_of),
        "pairs of tokens lost": generations(history, workload.provider.log),
    }
    fell, history.claims = epochs(history), cluster.claims()
    print(f"operations checked: {len(history.operations)} ({history.summary()})")
    for what, found in counted.items():
        print(f"  {what}: {len(found)} {found[:3]}")
    print(f"  the cluster's fence, which no replica is waited for, fell: {len(fell)} {fell[:3]}")
    numbers = lease_numbers(history)
    print(f"  lease numbers that went back: {len(numbers)} {numbers[:3]}")
    problems = [one for one in await asyncio.to_thread(check_all, node) if one["problems"]]
    assert not problems
    assert not lacking(history, KINDS, (*QUEUES, "_locks"))
    assert history.claims
    assert not epochs(History(claims=history.claims)), "no epoch was led under twice"
    if strict:
        assert not any(counted.values()), counted
    assert not numbers, "one machine's clock: they only grow"
    key = f"{{{CLUSTER}}}:fence"
    with cluster.valkey.client(key) as store:
        assert int(store.hget(key, "epoch")) == int(node.status()["epoch"])
