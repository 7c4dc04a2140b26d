"""Group commit: what a caller saw answered is on disk when sync returns, and one WAITAOF serves many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from tidewarden.clock import SystemClock
from tidewarden.errors import NoQuorum
from tidewarden.store import Link
from tidewarden.store.firm import Firm


@pytest.fixture
def with_aof(valkey) -> Iterator[redis.Redis]:  # type: ignore[no-untyped-def]
    """The session's server with an append-only file that is synced once a second."""
    client = redis.Redis(unix_socket_path=valkey.path)
    client.config_set("appendonly", "yes")
    yield client
    client.config_set("appendonly", "no")
    client.close()


@pytest.fixture
async def link(valkey) -> AsyncIterator[Link]:  # type: ignore[no-untyped-def]
    link = Link(valkey.url, "test", SystemClock())
    await link.start()
    yield link
    await link.stop()


async def test_what_was_answered_is_on_disk(with_aof: redis.Redis, link: Link) -> None:
    await link.call("SET", "k", "a value that is looked for on disk")
    await Firm(link, possible=True).sync()
    folder = Path(with_aof.config_get("dir")["dir"]) / with_aof.config_get("appenddirname")["appenddirname"]
    assert any(b"a value that is looked for on disk" in path.read_bytes() for path in folder.iterdir())


async def test_many_callers_share_few_groups(with_aof: redis.Redis, link: Link) -> None:
    firm = Firm(link, possible=True)

    async def write(i: int) -> None:
        await link.call("SET", f"k{i}", i)
        await firm.sync()

    await asyncio.gather(*(write(i) for i in range(100)))
    assert 1 <= firm.groups < 20


async def test_without_the_command_it_returns_at_once(link: Link) -> None:
    calls = link.calls
    await Firm(link, possible=False).sync()
    assert link.calls == calls


async def test_a_server_that_does_not_sync_is_no_ok(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_synced(*_: object) -> list[int]:
        return [0, 0]

    monkeypatch.setattr(link, "call", not_synced)
    with pytest.raises(NoQuorum, match="disk"):
        await Firm(link, possible=True).sync()
