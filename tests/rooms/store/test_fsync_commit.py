"""
Group commit to an embedded store's disk: the server syncs every write as long as there are groups,
and one serves many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis
from support.inspect import begin_of, has_rested, held_of, link_of
from support.store.servers import StoreServer

from tidewarden.clock import SystemClock
from tidewarden.errors import Error, NoQuorum
from tidewarden.store import StoreConnection
from tidewarden.store.connection import pack
from tidewarden.store.durability import fsync_commit
from tidewarden.store.durability.fsync_commit import FsyncCommit

Eventually = Callable[..., Awaitable[object]]


@pytest.fixture
def with_aof(valkey: StoreServer) -> Iterator[redis.Redis]:
    """The session's server with an append-only file that is synced once a second."""
    client = redis.Redis(unix_socket_path=valkey.path, decode_responses=True)
    client.config_set("appendonly", "yes")
    yield client
    client.config_set("appendonly", "no")
    client.config_set("appendfsync", "everysec")
    client.close()


@pytest.fixture
async def data(valkey: StoreServer) -> AsyncIterator[StoreConnection]:
    link = StoreConnection(valkey.url, "data", SystemClock())
    await link.start(wait_s=60)
    yield link
    await link.stop()


@pytest.fixture
async def disk(
    valkey: StoreServer, with_aof: redis.Redis, data: StoreConnection
) -> AsyncIterator[FsyncCommit]:
    link = StoreConnection(valkey.url, "commit", SystemClock())
    link.launch()
    made = FsyncCommit(data, link, "{tw}:commits", 2000, SystemClock())
    yield made
    await made.stop()
    await link.stop()


def send(disk: FsyncCommit, *words: str) -> asyncio.Future[object]:
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    disk.route.send(pack(words), answered)
    return answered


async def write(disk: FsyncCommit, key: str) -> None:
    assert await send(disk, "SET", key, "a value that is looked for on disk") == b"OK"


def on_disk(client: redis.Redis, text: bytes) -> bool:
    folder = (
        Path(client.config_get("dir")["dir"]) / client.config_get("appenddirname")["appenddirname"]
    )
    return any(text in path.read_bytes() for path in folder.iterdir())


async def test_what_was_vouched_for_was_written_while_every_write_is_synced(
    with_aof: redis.Redis, disk: FsyncCommit
) -> None:
    await write(disk, "k")
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}
    assert on_disk(with_aof, b"a value that is looked for on disk")


async def test_many_callers_share_few_groups_and_no_round_trip_more(
    disk: FsyncCommit, data: StoreConnection
) -> None:
    await asyncio.gather(*(write(disk, f"k{i}") for i in range(200)))
    assert 1 <= disk.groups < 40
    groups, calls = disk.groups, data.calls
    await asyncio.gather(*(write(disk, f"k{i}") for i in range(200)))
    assert (disk.groups, data.calls) == (groups + 1, calls + 203)


async def test_refusals_are_passed_on(disk: FsyncCommit) -> None:
    with pytest.raises(Error, match="wrong number"):
        await send(disk, "SET", "k")


async def test_where_the_store_has_rested_meanwhile_a_group_is_committed(
    disk: FsyncCommit, data: StoreConnection
) -> None:
    await write(disk, "k")
    groups = disk.groups
    rest = (("SET", "{tw}:commits", "another"), ("CONFIG", "SET", "appendfsync", "everysec"))
    await asyncio.gather(send(disk, "SET", "a", "1"), *(data.call(*one) for one in rest))
    assert disk.groups == groups + 2  # the bracket, and a group behind it
    await write(disk, "k")
    assert disk.groups == groups + 3


async def test_one_who_rests_at_that_very_moment_does_not(
    with_aof: redis.Redis, disk: FsyncCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(disk, "k")
    monkeypatch.setattr(fsync_commit, "REST_MS", 0)
    watching = link_of(disk).call("WATCH", "{tw}:commits")
    await watching
    await write(disk, "k2")
    words = (
        ("MULTI",),
        ("SET", "{tw}:commits", "x"),
        ("CONFIG", "SET", "appendfsync", "everysec"),
        ("EXEC",),
    )
    *_, done = await asyncio.gather(*(link_of(disk).call(*one) for one in words))
    assert done is None
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}


@pytest.mark.parametrize(
    "first", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["before", "never"]
)
async def test_a_full_store_syncs_and_rests(
    with_aof: redis.Redis,
    disk: FsyncCommit,
    monkeypatch: pytest.MonkeyPatch,
    first: bool,
    eventually: Eventually,
) -> None:
    """Also one that was full when the first group came, so that the groups' key was never made."""
    if not first:
        await write(disk, "k")
    with_aof.set("k", "1")
    with_aof.config_set("maxmemory", "1")
    try:
        monkeypatch.setattr(fsync_commit, "REST_MS", 100)
        assert await send(disk, "DEL", "k") == 1
        assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}
        await eventually(lambda: with_aof.config_get("appendfsync") == {"appendfsync": "everysec"})
        assert await send(disk, "DEL", "k") == 0
    finally:
        with_aof.config_set("maxmemory", "0")


async def test_the_store_rests_once_nobody_has_had_a_group_for_a_while(
    with_aof: redis.Redis,
    disk: FsyncCommit,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    monkeypatch.setattr(fsync_commit, "REST_MS", 100)
    await write(disk, "k")
    await eventually(lambda: with_aof.config_get("appendfsync") == {"appendfsync": "everysec"})
    await write(disk, "k2")
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}
    await eventually(lambda: with_aof.config_get("appendfsync") == {"appendfsync": "everysec"})


async def test_a_group_of_another_node_keeps_it_awake(
    with_aof: redis.Redis, disk: FsyncCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync_commit, "REST_MS", 60_000)
    await write(disk, "k")
    assert not await has_rested(disk)
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}


@pytest.mark.thorough
async def test_a_server_that_refuses_is_no_ok(
    disk: FsyncCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(disk, "k")
    wrong = fsync_commit.AWAKE.replace(b"always", b"nayway")
    monkeypatch.setattr(fsync_commit, "AWAKE", wrong)
    begin_of(disk)[1] = wrong
    held_of(disk).limit_ms = 200
    with pytest.raises(NoQuorum, match="disk"):
        await write(disk, "k2")
