"""How links of any thread are led to the primary."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tidewarden.cluster.replication import primary_finder
from tidewarden.cluster.replication.primary_finder import ReplicatedPrimary
from tidewarden.errors import StoreDown


async def test_a_link_waits_until_a_primary_is_open() -> None:
    finder = ReplicatedPrimary("the stores")
    finding = asyncio.create_task(finder.find())
    await asyncio.sleep(0)
    assert not finding.done()
    finder.tell("redis://a", "")
    assert await finding == await finder.find() == "redis://a"


async def test_a_link_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_finder, "FIND_S", 0.01)
    finder = ReplicatedPrimary("the stores")
    finder.tell("", "nobody leads")
    with pytest.raises(StoreDown, match="no primary that is open: nobody leads"):
        await finder.find()
    assert not finder._waiting


async def test_at_a_slow_pace_it_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_finder, "FIND_S", 0.01)
    finder = ReplicatedPrimary("the stores", pace=6000.0)
    finding = asyncio.create_task(finder.find())
    await asyncio.sleep(0.1)
    finder.tell("redis://a", "")
    assert await finding == "redis://a"


async def test_another_primary_is_told_and_none_is_not() -> None:
    finder, told = ReplicatedPrimary("the stores"), list[str]()
    finder.follow(told.append)
    for url in ("redis://a", "redis://a", "", "redis://a", "redis://b"):
        finder.tell(url, "why")
    await asyncio.sleep(0)
    assert told == ["redis://a", "redis://a", "redis://b"]
    await finder.forget(told.append)
    finder.tell("redis://c", "")
    await asyncio.sleep(0)
    assert len(told) == 3


async def test_links_live_in_other_threads_too() -> None:
    finder, found = ReplicatedPrimary("the stores"), list[str]()
    thread = threading.Thread(target=lambda: found.append(asyncio.run(finder.find())))
    thread.start()
    async with asyncio.timeout(10):
        while not finder._waiting:
            await asyncio.sleep(0.001)
    finder.tell("redis://a", "")
    await asyncio.to_thread(thread.join)
    assert found == ["redis://a"]


async def test_a_loop_that_has_ended_is_in_nobodys_way() -> None:
    finder, told = ReplicatedPrimary("the stores"), list[str]()

    async def follow() -> None:
        finder.follow(told.append)

    await asyncio.to_thread(lambda: asyncio.run(follow()))
    finder.tell("redis://a", "")
    assert told == []
