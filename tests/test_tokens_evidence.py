"""Refusals of all nodes are summed up in the store: a jump is seen by all, and what goes on for long is usual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tokens_harness as harness

from tidewarden.clock import ManualClock
from tidewarden.errors import StoreDown
from tidewarden.tokens.evidence import TELL_S, Evidence
from tidewarden.tokens.findings import Trend
from tidewarden.tokens.ledger import Ledger

QUEUE = "_tokens:p:c0"


class Bench:
    """A ledger whose clock stands where the test puts it, ``s`` seconds from some time."""

    def __init__(self, queues: Any) -> None:
        self.queues = queues
        self.s = 0.0

        async def script(name: str, queue: str, shard: int, args: Any) -> Any:
            return await queues.script(name, queue, shard, args, now_ms=1_700_000_000_000 + int(self.s * 1000))

        self.ledger = Ledger(script, queues.shard_of)

    async def told(self, well: int, refused: int, *, after_s: float = 1.0) -> Trend:
        self.s += after_s
        return await self.ledger.trend(QUEUE, well, refused)


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Bench]:
    chosen = harness.provider("http://127.0.0.1:9/token")
    async with harness.node(valkey, tmp_path, chosen, go=False) as side:
        yield Bench(side.queues)


async def test_a_handful_says_nothing_and_twenty_refusals_do(bench: Bench) -> None:
    for _ in range(19):
        assert not (await bench.told(0, 1)).on
    found = await bench.told(0, 1)
    assert (found.on, found.share, found.news) == (True, 1.0, True)
    assert not (await bench.told(0, 1)).news, "said once"
    shard = "{t:_tokens:p:c0:0}"
    assert [entry.split(b"\n")[1:] for entry in await bench.ledger.tell(QUEUE, 0, 10, 1000)] == [
        [b"provider.quarantine_begun", b"1700000020000", b"", b"1000"]
    ], shard


async def test_a_jump_is_seen_soon_also_by_a_busy_client_and_is_over(bench: Bench) -> None:
    for _ in range(20):  # ten minutes of two nodes that tell every half minute
        assert not (await bench.told(40_000, 800, after_s=30)).on
    told = 0
    while not (await bench.told(0, 50)).on:
        told += 50
    assert told <= 600
    for _ in range(20):
        found = await bench.told(50, 0)
    assert (found.on, found.share) == (False, 0.0)


async def test_what_goes_on_for_long_is_usual(bench: Bench) -> None:
    on = [(await bench.told(20, 20)).on for _ in range(100)]  # half of them, for good: imported dead, say
    assert on[5]
    assert not on[-1]


async def test_what_was_ten_minutes_ago_says_nothing(bench: Bench) -> None:
    assert (await bench.told(0, 400)).on
    found = await bench.told(1, 0, after_s=601)
    assert (found.on, found.share, found.news) == (False, 0.0, True)


async def test_its_record_stays_small(bench: Bench) -> None:
    for _ in range(200):
        await bench.told(3, 1, after_s=3)
    raw = await bench.queues._link.call("HGET", "{t:_tokens:p:c0:0}:account_trend", "recent")
    assert len(raw) < 2000
    assert raw.count(b";") <= 61


async def test_nodes_see_together_what_none_would_see_alone(bench: Bench) -> None:
    clock = ManualClock()
    one, two, idle = (Evidence(QUEUE, bench.ledger, clock) for _ in range(3))
    for _ in range(12):
        one.note(refused=True)
        two.note(refused=True)
    news = await asyncio.gather(*(each.weigh() for each in (one, one, two, two)))
    assert sorted(news) == [False, False, False, True], "one of them says it"
    assert two.latest.on
    assert not one.due
    # Who refreshes well tells it now and then, and hears it then.
    idle.note(refused=False)
    assert not idle.due
    await clock.advance(TELL_S)
    assert idle.due
    await idle.weigh()
    assert idle.latest.on
    assert not idle.due


async def test_what_could_not_be_told_is_told_with_the_next() -> None:
    answers: list[Any] = [StoreDown("gone"), Trend(on=True)]
    calls: list[tuple[int, int]] = []

    class Once:
        async def trend(self, queue: str, well: int, refused: int) -> Trend:
            calls.append((well, refused))
            if isinstance(found := answers.pop(0), Exception):
                raise found
            return found

    evidence = Evidence(QUEUE, Once(), ManualClock())  # type: ignore[arg-type]
    evidence.note(refused=True)
    assert not await evidence.weigh()
    evidence.note(refused=False)
    await evidence.weigh()
    assert calls == [(0, 1), (1, 1)]
    assert evidence.latest.on
