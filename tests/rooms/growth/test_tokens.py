"""
What a node's tokens keep for each of thousands of providers stays bounded: see docs/testing.md,
"What stays".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.growth import by_container, entries
from support.manual_clock import ManualClock

from tidewarden.errors import StoreDown
from tidewarden.tokens.events.companions import Companions
from tidewarden.tokens.events.outbox import Outbox
from tidewarden.tokens.journal.journal import RAWS_MAX, Journal
from tidewarden.tokens.system_queues import CLUSTER_SHARDS
from tidewarden.tokens.verbs.figures import Figures

pytestmark = pytest.mark.thorough

PROVIDERS = 3000
ROUNDS = 20_000


async def test_figures_that_are_asked_for_by_ever_others_who_go() -> None:
    away = False

    async def one(provider: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        if away:
            raise StoreDown("away")
        return {"total": len(provider)}

    figures = Figures([f"p{n}" for n in range(50)], one, ManualClock())
    await figures.all()
    before = entries(figures)
    for n in range(ROUNDS // 20):
        away = n % 3 == 0
        asked = [asyncio.ensure_future(figures.latest(0 if n % 2 else 30)) for _ in range(5)]
        await asyncio.sleep(0)
        asked[0].cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    away = False
    assert len(await figures.all()) == 50
    assert entries(figures) <= before, by_container(figures)
    await figures.stop()


async def test_news_of_accounts_that_nobody_can_tell() -> None:
    class Away:
        async def tell(self, *_: Any) -> Any:
            raise StoreDown("away")

    queues = {f"p{n}": f"q{n}" for n in range(PROVIDERS)}
    ledger: Any = Away()
    events: Any = None

    async def having(_queues: Any, _name: str) -> list[tuple[str, int]]:
        return []

    outbox = Outbox(
        ledger, queues, lambda _, account: int(account) % CLUSTER_SHARDS, having, events,
        Companions({}, _never, _never, ManualClock()), ManualClock(),
    )  # fmt: skip
    before = entries(outbox)
    for n in range(10 * ROUNDS):
        outbox.look(f"p{n % PROVIDERS}", str(n))
        if n % 1000 == 0:
            with pytest.raises(StoreDown):
                await outbox.tell_all()
    # a place is a pair, and its entry
    assert entries(outbox) - before <= PROVIDERS * CLUSTER_SHARDS * 3, by_container(outbox)


async def test_unreadable_answers_of_accounts_that_are_deleted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.open()
    for n in range(2 * RAWS_MAX):
        await journal.add_raw("q", f"a{n}", 1, 1, n, b"body", (7, b"wrapped"))
        if n % 100 == 99:
            journal.forget(journal.raws())
            await journal.flush()
    journal.forget(journal.raws())
    await journal.flush()
    size = (tmp_path / "j").stat().st_size
    assert entries(journal) <= 2, by_container(journal)
    assert size < 100, "nothing of them is in the file"
    await journal.close()


async def _never(*_: Any) -> Any:
    raise AssertionError
