"""Group commit to an embedded store's disk: the server syncs every write as long as there are groups, and one serves many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis
from store_servers import StoreServer

from tidewarden.clock import SystemClock
from tidewarden.errors import NoQuorum
from tidewarden.store import Link, firm
from tidewarden.store.firm import Firm

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
async def data(valkey: StoreServer) -> AsyncIterator[Link]:
    link = Link(valkey.url, "data", SystemClock())
    await link.start()
    yield link
    await link.stop()


@pytest.fixture
async def disk(valkey: StoreServer, with_aof: redis.Redis, data: Link) -> AsyncIterator[Firm]:
    link = Link(valkey.url, "commit", SystemClock())
    link.launch()
    made = Firm(data, link, "{tw}:commits", 2000, SystemClock())
    yield made
    await made.stop()
    await link.stop()


async def write(disk: Firm, data: Link, key: str) -> None:
    committed = disk.begun()
    await data.call("SET", key, "a value that is looked for on disk")
    await committed()


async def test_what_was_vouched_for_was_written_while_every_write_is_synced(
    with_aof: redis.Redis, disk: Firm, data: Link
) -> None:
    await write(disk, data, "k")
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}
    folder = Path(with_aof.config_get("dir")["dir"]) / with_aof.config_get("appenddirname")["appenddirname"]
    assert any(b"a value that is looked for on disk" in path.read_bytes() for path in folder.iterdir())


async def test_many_callers_share_few_groups(disk: Firm, data: Link) -> None:
    await asyncio.gather(*(write(disk, data, f"k{i}") for i in range(200)))
    assert 1 <= disk.groups < 40


async def test_the_store_rests_once_nobody_has_had_a_group_for_a_while(
    with_aof: redis.Redis, disk: Firm, data: Link, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(firm, "REST_MS", 100)
    await write(disk, data, "k")
    await eventually(lambda: with_aof.config_get("appendfsync") == {"appendfsync": "everysec"})
    await write(disk, data, "k2")
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}
    await eventually(lambda: with_aof.config_get("appendfsync") == {"appendfsync": "everysec"})


async def test_a_group_of_another_node_keeps_it_awake(
    with_aof: redis.Redis, disk: Firm, data: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firm, "REST_MS", 60_000)
    await write(disk, data, "k")
    assert not await disk._rested()
    assert with_aof.config_get("appendfsync") == {"appendfsync": "always"}


async def test_a_server_that_refuses_is_no_ok(with_aof: redis.Redis, disk: Firm, data: Link) -> None:
    await write(disk, data, "k")
    disk._begin[1] = disk._begin[1].replace(b"always", b"nayway")
    disk._limit_ms = 200
    with pytest.raises(NoQuorum, match="disk"):
        await write(disk, data, "k2")
