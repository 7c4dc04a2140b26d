"""A cluster under traffic and faults, and the account of what its clients were told."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.cluster.harness import CLUSTER, Cluster, Node, background, serving, until_async
from support.faults.faulty import LIFE_S, FaultyCluster
from support.faults.history import (
    crowded,
    epochs,
    generations,
    lacking,
    lateness_s,
    lease_numbers,
    lost_puts,
    old_numbers,
    put_once,
    results,
    surely_held,
    ticks,
    unfinished,
)  # fmt: skip
from support.faults.storm import Fault, Storm, healed
from support.faults.workload import (
    BEATS,
    JOBS,
    LATEST,
    PUT_INTO,
    QUEUES,
    SCHEDULES,
    TICK_MS,
    Workload,
    lane_of,
)
from support.providers.scripted_provider import provider_in_thread

KINDS = (
    "put",
    "repeat",
    "take",
    "ack",
    "touch",
    "release",
    "fail",
    "wait",
    "read",
    "acquire",
    "fence",
)
"""What a history has to hold for its checks to say anything."""


ACCOUNTS = 12
CALM_S = 90.0


@contextlib.asynccontextmanager
async def siege(
    request: pytest.FixtureRequest,
    folder: Path,
    seed: int,
    *,
    short: bool = False,
    life_s: int = LIFE_S,
    **parts: bool,
) -> AsyncIterator[tuple[Storm, Workload]]:
    """
    A cluster under traffic, and a storm that has not begun.

    ``short``: a lighter one, for a round of few faults. ``life_s``: of access tokens. ``parts``: of
    the cluster.
    """
    with (
        provider_in_thread(ACCOUNTS, life_s) as provider,
        serving(request, FaultyCluster(folder, provider, slow_disks=not short, **parts)) as cluster,
    ):
        for part, reason in cluster.absent.items():
            print(f"without {part}: {reason}")
        workload = Workload(
            cluster, provider, seed, durability="fsync" if parts.get("synced", True) else "one"
        )
        if short:
            workload.pause_s *= 3
        await asyncio.to_thread(workload.begin, cluster.leader())
        yield Storm(cluster, random.Random(seed), provider), workload


async def progress(storm: Storm, workload: Workload, tasks: int = 20) -> float:
    """
    Seconds until puts and deliveries have gone on; fails when they do not, within a minute of the
    last fault's end.
    """
    begun = time.monotonic()
    put, delivered = workload.put_ok, workload.delivered
    await until_async(
        lambda: workload.put_ok > put + tasks and workload.delivered > delivered + tasks,
        CALM_S,
        what=f"tasks flow on after {storm.injected}: {workload}",
    )
    return time.monotonic() - begun


async def struck(
    storm: Storm, workload: Workload, some: list[Fault], jobs: list[asyncio.Task[Any]], begun: float
) -> float:
    """
    These faults at a time, and the line that says so; seconds until tasks flowed on. Fails when a
    client ended.
    """
    await storm.strike(*some)
    recovered_s = await progress(storm, workload)
    print(
        f"{time.monotonic() - begun:6.0f} s  {' + '.join(one.name for one in some)};"
        f" {recovered_s:.1f} s; {len(workload.history.operations)} operations; {workload}",
        flush=True,
    )
    dead = [job for job in jobs if job.done()]
    assert not dead, f"a client ended: {dead}"
    return recovered_s


async def weather(
    storm: Storm,
    workload: Workload,
    drawn: Iterable[list[Fault]],
    seconds: float = math.inf,
    crowds: int = 1,
) -> None:
    """
    These faults, some at a time, until there are no more or the time is over; then the account.

    Before each the cluster is whole again, by itself. ``crowds``: how many clients of each kind
    stand where one does else.
    """
    begun, slowest_s = time.monotonic(), 0.0
    clients = [job for _ in range(crowds) for job in workload.jobs()]
    async with background(*clients) as jobs:
        await progress(storm, workload)
        for some in drawn:
            slowest_s = max(slowest_s, await struck(storm, workload, some, jobs, begun))
            if told := await asyncio.to_thread(storm.whole):
                print(f"{'':8}{told}", flush=True)
            if time.monotonic() - begun > seconds:
                break
        await end(storm, workload, begun, slowest_s)


async def all_goes_on(storm: Storm, workload: Workload) -> None:
    """
    With nobody's help: one leads and sweeps, every account is refreshed again, both schedules tick.
    """
    leader = await healed(storm.cluster)
    beats = [one.key for one in workload.history.of("grant") if one.place in (BEATS, LATEST)]
    await asyncio.to_thread(leader.say, "Q.PUT", "probe", "x", "ID", "p", "DELAY", 300)
    await until_async(
        lambda: storm.cluster.audit("probe") == {"ready": 1},
        CALM_S,
        0.2,
        what="a due task is swept to ready",
    )
    await refreshed_again(workload)
    seen = set(beats)

    def ticked() -> bool:
        fresh = {
            one.key for one in workload.history.of("grant") if one.place in (BEATS, LATEST)
        } - seen
        return {one.partition(":")[0] for one in fresh} == SCHEDULES.keys()

    await until_async(ticked, CALM_S, 0.2, what="both schedules tick")


async def refreshed_again(workload: Workload) -> None:
    """Every account is refreshed once more."""
    before = dict(workload.generation)
    await until_async(
        lambda: all(
            workload.generation[one] > before.get(one, 0) for one in workload.provider.seeds
        ),
        CALM_S,
        0.2,
        what=f"every account is refreshed again: {workload.generation}, {before}",
    )


async def puts_end(workload: Workload, node: Node) -> None:
    """Nothing is put any more, by producers or schedules."""
    workload.producing = False
    await until_async(
        lambda: not workload.producers, CALM_S, what="producers have done with their last puts"
    )
    for name in SCHEDULES:
        await asyncio.to_thread(node.say, "S.DELETE", name)


def ids_left(cluster: Cluster, queue: str, shards: int = 1) -> set[str]:
    """The ids of all tasks that lie in a queue."""
    found: set[str] = set()
    for shard in range(shards):
        prefix = f"{{{CLUSTER}:{queue}:{shard}}}"
        with cluster.valkey.client(prefix) as store:
            for key in store.scan_iter(f"{prefix}:tasks*", count=1000):
                found |= {one.decode() for one in store.hkeys(key)}
    return found


async def judge(storm: Storm, workload: Workload) -> list[str]:
    """
    Every contradiction there is, what doctor finds, and what the run would have had to hold to find
    anything.
    """
    cluster, history = storm.cluster, workload.history
    node = cluster.alive()[0]
    history.claims = cluster.claims()
    wrong = lacking(history, KINDS, (*QUEUES, "_locks"))
    if not {place for place, _ in surely_held(history, lane_of)} >= {JOBS, "_locks"}:
        wrong.append("no task of a lane, or no lock, was held for certain")
    left = {queue: ids_left(cluster, queue) for queue in QUEUES}
    puts = {
        queue: (await asyncio.to_thread(node.say, "Q.STATS", queue))["count_put"]
        for queue in QUEUES
    }
    for name, (queue, catchup) in SCHEDULES.items():
        ids = {one.key for one in history.of("grant") if one.place == queue} | left[queue]
        wrong += [f"schedule {name}: {text}" for text in ticks(ids, puts[queue], TICK_MS, catchup)]
    for queue in PUT_INTO:
        wrong += put_once(history, queue, left[queue], puts[queue])
    wrong += lost_puts(history, left) + unfinished(history, left) + results(history)
    wrong += lease_numbers(history) + old_numbers(history) + crowded(history, lane_of)
    wrong += epochs(history)
    wrong += generations(history, workload.provider.log)
    checked = await asyncio.to_thread(check_all, node)
    if not {one["queue"] for one in checked} >= set(QUEUES):
        wrong.append(f"doctor looked at {checked} alone")
    wrong += [f"doctor: {one}" for one in checked if one["problems"]]
    return wrong


def check_all(node: Node) -> list[dict[str, Any]]:
    """What ``tidewarden doctor`` shows: Q.CHECK of every queue."""
    with node.client(protocol=3) as client:
        return list(client.execute_command("Q.CHECK", "*"))


async def drained(workload: Workload, node: Node) -> int:
    """How many tasks are left when none should come any more; not 0: after a minute and a half."""

    def total() -> int:
        return sum(int(node.say("Q.STATS", queue)["total"]) for queue in QUEUES)

    end_at = time.monotonic() + CALM_S
    while (left := await asyncio.to_thread(total)) and time.monotonic() < end_at:
        await asyncio.sleep(0.2)
    return left


async def lateness(workload: Workload, node: Node) -> list[float]:
    """How late delayed tasks come when nothing else is to be done, seconds, sorted."""
    since = time.monotonic()
    for number in range(20):
        delay_ms = 100 + 40 * number
        put = workload.history.begin("put", "end", JOBS, f"end-{number}")
        await asyncio.to_thread(node.say, "Q.PUT", JOBS, "x", "ID", put.key, "DELAY", delay_ms)
        put.ok(delay_ms / 1000)
    keys = {f"end-{number}" for number in range(20)}
    await until_async(
        lambda: keys <= {one.key for one in workload.history.of("grant")},
        CALM_S,
        0.2,
        what="delayed tasks come, too",
    )
    return lateness_s(workload.history, since)


async def end(storm: Storm, workload: Workload, begun: float, slowest_s: float) -> None:
    """
    The calm after it: everything goes on, the queues drain; then the account is printed and judged.
    """
    await all_goes_on(storm, workload)
    cluster = storm.cluster
    node = cluster.alive()[0]
    await puts_end(workload, node)
    late: list[float] = []
    if not (left := await drained(workload, node)):
        late = await lateness(workload, node)
        left = await drained(workload, node)
    await until_async(
        lambda: workload.history.of("fence")[-1].lease in {epoch for epoch, _ in cluster.claims()},
        CALM_S, 0.5, what="some node says that it leads under the store's epoch",
    )  # fmt: skip
    wrong = await judge(storm, workload)
    if left:
        lying = {queue: dict(cluster.audit(queue)) for queue in QUEUES}
        wrong.append(f"{left} tasks are not drained within {CALM_S:g} s: {lying}")
    print(f"\nfaults injected: {storm.injected.total()} in {time.monotonic() - begun:.0f} s")
    for name, count in sorted(storm.injected.items()):
        print(f"  {count:4} {name}")
    print(f"operations checked: {len(workload.history.operations)} ({workload.history.summary()})")
    print(f"provider: {len(workload.provider.log)} requests")
    print(f"epochs: {len(workload.history.claims)} claimed; clients met {dict(workload.troubles)}")
    sure = Counter(
        place for (place, _), many in surely_held(workload.history, lane_of).items() for _ in many
    )
    print(f"held for certain, in lanes and locks: {dict(sure)}")
    print(f"slowest recovery: {slowest_s:.1f} s until 20 more tasks were put and delivered")
    if late:
        print(
            f"then delayed tasks came {late[len(late) // 2] * 1000:.0f} ms after their time"
            f" (median; max {late[-1] * 1000:.0f})"
        )
    print(f"violations: {len(wrong)}")
    for text in wrong[:40]:
        print(f"  {text}")
    assert not wrong
