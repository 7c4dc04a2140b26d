"""What changed among the stores is told by the primary's node, in order, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support import growth
from support.manual_clock import ManualClock

from tidewarden.cluster.replication.store_changes import StoreChange
from tidewarden.config.webhooks import EVENT_KINDS
from tidewarden.errors import StoreDown
from tidewarden.node.store_events import KEPT_MAX, StoreEvents


def change(number: int, kind: str = "store.added") -> StoreChange:
    return StoreChange(kind, f"n{number}", 7, number, f"n{number}'s store is in sync again")


class Site:
    """A node whose store may be the primary, and may be away."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.primary = True
        self.away = False
        self.told: list[tuple[str, str, Mapping[str, Any]]] = []
        self.events = StoreEvents(self.tell, lambda: self.primary, self.clock)

    async def tell(self, id_: str, kind: str, at_ms: int, details: Mapping[str, Any]) -> None:
        if self.away:
            raise StoreDown("it is away")
        self.told.append((id_, kind, details))

    async def advance(self, seconds: float) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await self.clock.advance(seconds)


@pytest.fixture
async def site() -> Any:
    made = Site()
    running = asyncio.create_task(made.events.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_primarys_node_tells_and_no_other(site: Site) -> None:
    site.primary = False
    site.events.note(change(1))
    site.primary = True
    site.events.note(change(2))
    await site.advance(0.1)
    assert site.told == [
        (
            "store.added-7-2-n2",
            "store.added",
            {"node": "n2", "view": 7, "message": "n2's store is in sync again"},
        )
    ]


async def test_what_the_store_did_not_take_is_told_later_if_it_is_still_the_primary(
    site: Site,
) -> None:
    site.away = True
    site.events.note(change(1))
    site.events.note(change(2))
    await site.advance(3.0)
    assert site.told == []
    site.away = False
    await site.advance(1.5)
    await site.advance(1.5)
    assert [id_ for id_, *_ in site.told] == ["store.added-7-1-n1", "store.added-7-2-n2"]
    site.away = True
    site.events.note(change(3))
    await site.advance(0.1)
    site.primary = site.away = False
    await site.advance(1.5)
    await site.advance(1.5)
    assert len(site.told) == 2


async def test_a_store_that_takes_none_costs_no_more_than_a_hundred(site: Site) -> None:
    site.away = True
    for number in range(1_000):
        site.events.note(change(number))
    await site.advance(1.5)
    assert growth.by_container(site.events)["StoreEvents._untold"] == KEPT_MAX


def test_each_kind_may_be_asked_for() -> None:
    from tidewarden.cluster.replication import store_changes

    kinds = {
        value for name, value in vars(store_changes).items() if str(value).startswith("store.")
    }
    assert len(kinds) == 5
    assert kinds == {kind for kind in EVENT_KINDS if kind.startswith("store.")}
