"""
A worker whose event loop stands still: for some seconds it costs nobody a lease, for long the
worker is dead like any other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from support.cluster.harness import CALM, CLUSTER, Cluster, Node, serving, until, until_async
from support.cluster.nursery import Child

pytestmark = pytest.mark.timeout(300)

LONG_S = 45.0
LEASE_MS = 600_000


def install() -> None:
    """SIGUSR1: 4.5 s of one turn of the loop, in Python; SIGUSR2: one that waits for very long."""

    def busy(_signal: int, _frame: FrameType | None) -> None:
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            pass

    def hang(_signal: int, _frame: FrameType | None) -> None:
        time.sleep(LONG_S)

    signal.signal(signal.SIGUSR1, busy)
    signal.signal(signal.SIGUSR2, hang)


class StallingNode(Node):
    """A node whose loop can be made to stand still."""

    def start(self) -> None:
        self._process = Child(self.config, self.output, self._namespace, before=install)


class WithWorker(Cluster):
    """A member, which leads, and a worker of two processes."""

    def make_node(self, name: str, base: int, text: str) -> Node:
        return StallingNode(name, self.folder / name, base, text, self.secret)

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        lone = {"cluster__members": f'{{n0 = "127.0.0.1:{self.members["n0"]}"}}'}
        worker = {"node__role": '"worker"', "node__processes": "2"} if name == "n1" else {}
        return super().config_text(name, store_port, **changes, **lone, **worker)


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Cluster]:
    with serving(request, WithWorker(tmp_path, nodes=2, extra=CALM)) as cluster:
        yield cluster


async def held_at(made: Cluster, holder: str, queue: str) -> tuple[Any, list[Any]]:
    """A client of the process that is registered so, which holds a task there."""
    for _ in range(200):
        client = made.nodes["n1"].aclient()
        (row,) = await client.execute_command(
            "Q.TAKE", "WAIT", 20_000, "LEASE", LEASE_MS, "FROM", queue
        )
        with made.valkey.client() as store:
            (leased,) = store.keys(f"{{{CLUSTER}:{queue}:0}}:leased:*")
        if leased.decode().partition(":leased:")[2].rpartition(".")[0] == holder:
            return client, row
        await client.execute_command("Q.RELEASE", *row[:3])
        await client.aclose()
    raise AssertionError(f"no connection came to {holder}")


async def test_a_loop_that_stands_still_for_some_seconds_costs_no_lease(made: Cluster) -> None:
    first, worker = made.nodes["n0"], made.nodes["n1"]
    for queue in ("own", "other"):
        await asyncio.to_thread(first.say, "Q.PUT", queue, "x", "ID", "a")
    own, row = await held_at(made, "n1", "own")
    other, second = await held_at(made, "n1/1", "other")
    status = (await asyncio.to_thread(worker.http, "/v1/status")).json()
    (front,) = [process["pid"] for process in status["processes"]]
    async with first.aclient() as rival:
        taking = asyncio.ensure_future(
            rival.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "own", "other")
        )
        for pid, kind, again in (
            (worker.pid, signal.SIGUSR1, 0),
            (front, signal.SIGSTOP, signal.SIGCONT),
        ):
            os.kill(pid, kind)
            await asyncio.sleep(4.6)  # it is what is tried
            if again:
                os.kill(pid, again)
        assert await own.execute_command("Q.ACK", *row[:3]) == "OK"
        assert await other.execute_command("Q.ACK", *second[:3]) == "OK"
        assert not taking.done(), "nobody else had it meanwhile"
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    await own.aclose()
    await other.aclose()
    assert not [line for line in worker.messages() if "registering again" in line]


async def test_a_loop_that_stands_still_for_long_is_a_dead_node(made: Cluster) -> None:
    first, worker = made.nodes["n0"], made.nodes["n1"]
    await asyncio.to_thread(first.say, "Q.PUT", "q", "x", "ID", "a")
    client, _ = await held_at(made, "n1", "q")
    async with first.aclient() as rival:
        os.kill(worker.pid, signal.SIGUSR2)
        begun = time.monotonic()
        rows = await rival.execute_command("Q.TAKE", "WAIT", 120_000, "FROM", "q")
    assert rows[0][1] == "a"
    assert time.monotonic() - begun < LONG_S, "it was not there again by itself"
    worker.kill()
    await client.aclose()
    worker.start()
    await until_async(lambda: worker.running, what="it runs")
    await asyncio.to_thread(until, worker.ready, what="it serves again")
