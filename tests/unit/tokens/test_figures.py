"""
The figures of many providers: read after they are asked for, shared by all who ask at a time, and
never older than they say.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.errors import StoreDown
from tidewarden.tokens.verbs.figures import AGE_S, AT_ONCE, Figures


class Store:
    """Answers when it is let, with how often that provider was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.at_once = self.most = 0
        self.error: Exception | None = None

    async def one(self, provider: str) -> dict[str, Any]:
        self.asked.append(provider)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.open.wait()
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        return {"total": self.asked.count(provider)}


async def test_all_are_read_some_at_a_time_in_their_order() -> None:
    store = Store()
    names = [f"p{number:03}" for number in range(100)]
    figures = Figures(names[::-1], store.one, ManualClock())
    assert list(await figures.all()) == names
    assert store.most == AT_ONCE
    await figures.stop()


async def test_whoever_asks_gets_what_was_read_after_that_and_many_share_it() -> None:
    store = Store()
    figures = Figures(["p"], store.one, ManualClock())
    store.open.clear()
    first = asyncio.create_task(figures.all())
    await asyncio.sleep(0.01)
    assert store.asked == ["p"]
    later = [asyncio.create_task(figures.all()) for _ in range(20)]
    await asyncio.sleep(0.01)
    assert store.asked == ["p"], "what is under way was begun before they asked"
    store.open.set()
    assert await first == {"p": {"total": 1}}
    assert await asyncio.gather(*later) == [{"p": {"total": 2}}] * 20
    assert await figures.all() == {"p": {"total": 3}}
    await figures.stop()


async def test_who_cannot_wait_is_told_how_old_the_last_ones_are() -> None:
    store, clock = Store(), ManualClock()
    figures = Figures(["p"], store.one, clock)
    assert await figures.latest(30) == ({"p": {"total": 1}}, 0)
    store.open.clear()
    await clock.advance(7)
    assert await figures.latest(0.01) == ({"p": {"total": 1}}, 7)
    await clock.advance(AGE_S - 7)
    assert await figures.latest(0.01) is None
    store.open.set()  # It went on being read meanwhile, and is as old as when that began.
    assert await figures.all() == {"p": {"total": 3}}
    await figures.stop()


async def test_a_store_that_is_away_has_no_figures_and_later_it_has() -> None:
    store = Store()
    figures = Figures(["p"], store.one, ManualClock())
    assert await figures.latest(30) is not None
    store.error = StoreDown("away")
    assert await figures.latest(30) is None
    with pytest.raises(StoreDown):
        await figures.all()
    store.error = None
    assert await figures.all() == {"p": {"total": 4}}
    await figures.stop()


async def test_who_goes_takes_nothing_from_the_others() -> None:
    store = Store()
    figures = Figures(["p"], store.one, ManualClock())
    store.open.clear()
    goes, stays = asyncio.create_task(figures.all()), asyncio.create_task(figures.all())
    await asyncio.sleep(0.01)
    goes.cancel()
    store.open.set()
    assert await stays == {"p": {"total": 1}}
    store.open.clear()
    left = asyncio.create_task(figures.all())
    await asyncio.sleep(0.01)
    await figures.stop()
    assert left.cancelled() or left.done() or (await asyncio.wait([left]))[0]
