"""
Levelling: a heap of accounts comes apart within the horizon, an even fleet is left alone. By a
frozen clock, on a real store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import link_of
from support.manual_clock import ManualClock
from support.tokens import harness

from tidewarden.config.load import Provider
from tidewarden.errors import StoreDown
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.refresh.load_leveller import MOVED_MAX, PERIOD_S, Leveller

QUEUE = "_tokens:p:c0"
HORIZON_MS = 600_000
EVERY_MS = 10_000
LIFE_MS = 4 * HORIZON_MS


class Bench:
    """One shard of accounts under a clock that stands where the test puts it."""

    def __init__(self, queues: Any) -> None:
        self.queues = queues
        self.now_ms = 1_000_000
        self.names = [f"a{n}" for n in range(500)]

        async def script(name: str, queue: str, shard: int, args: Any) -> Any:
            return await queues.scripts.run(name, queue, shard, args, now_ms=self.now_ms)

        self.ledger = AccountStore(script, queues.catalog)

    async def put(self, due_ms: list[int]) -> None:
        for name, at in zip(self.names, due_ms, strict=False):
            mark = name.encode().ljust(8)
            end_ms = at + 300_000
            row = AccountRow(1, 1, self.now_ms, end_ms, at, mark, mark, refresh=b"sealed")
            assert await self.ledger.put(QUEUE, name, (0, 0), row, end_ms)

    async def play(self, rounds: int) -> list[int]:
        """
        How many accounts fall due in each round; they are refreshed, that is gone, at its end.
        """
        done = []
        for _ in range(rounds):
            await self.ledger.level(QUEUE, 0, HORIZON_MS, EVERY_MS, 1000, LIFE_MS)
            self.now_ms += EVERY_MS
            taken = await self.queues.scripts.run(
                "queue.take", QUEUE, 0, (1000, 500, 60_000, 0, ""), now_ms=self.now_ms
            )
            done.append(len(taken[0]))
            for task in taken[0]:
                await self.ledger.delete(QUEUE, task[0].decode())
        return done


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Bench]:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        yield Bench(side.queues)


async def test_a_heap_comes_apart_within_the_horizon(bench: Bench) -> None:
    count = 450
    # All within 50 ms.
    await bench.put([bench.now_ms + HORIZON_MS + 100_000 + n % 50 for n in range(count)])
    before = await bench.play(8)
    assert sum(before) == 0  # It lies beyond the horizon yet.
    done = await bench.play(63)
    assert sum(done) == count
    assert max(done) <= 4 * count / 60, done  # 7.5 on average; without it 450 at once.


async def test_an_even_fleet_is_left_alone(bench: Bench) -> None:
    # One in two seconds, for a quarter of an hour.
    await bench.put([bench.now_ms + 2000 * n for n in range(450)])
    done = await bench.play(40)
    assert max(done) <= 7
    assert sum(done) <= 40 * 5 * 1.1


async def test_a_fleet_that_is_level_is_not_refreshed_early_for_ever(bench: Bench) -> None:
    # Even, behind a gap that levelling left.
    await bench.put([bench.now_ms + 300_000 + 5000 * n for n in range(400)])
    assert sum(await bench.play(29)) == 0


async def test_accounts_in_trouble_wait_for_their_time_and_one_node_levels_at_a_time(
    bench: Bench,
) -> None:
    await bench.put([bench.now_ms + HORIZON_MS - 1000] * 100)
    trouble = RefreshTroubles(tries=1, outcome="unavailable").pack()
    await link_of(bench.queues).call(
        "HSET",
        f"{{t:{QUEUE}:0}}:account_troubles",
        *(part for name in sorted(bench.names[:100])[1:] for part in (name, trouble)),
    )
    moved, due = await bench.ledger.level(QUEUE, 0, HORIZON_MS, 50_000, 1000, LIFE_MS)
    assert (moved, due) == (1, 100)
    assert await bench.ledger.level(QUEUE, 0, HORIZON_MS, 50_000, 1000, LIFE_MS) == (0, -1)


async def test_it_looks_more_often_while_there_is_something_to_do() -> None:
    told = {"found": (0, 0), "asked": 0}

    class Store:
        async def level_all(
            self,
            _queue: str,
            horizon_ms: int,
            _every_ms: int,
            _most: int,
            life_ms: int,
        ) -> list[tuple[int, int]]:
            assert (horizon_ms, life_ms) == (900_000, 3_600_000)
            told["asked"] = int(str(told["asked"])) + 1
            return [told["found"]] * 2  # type: ignore[list-item]

    store: Any = Store()
    leveller = Leveller(
        Provider(name="p"), QUEUE, store, ManualClock(), lambda: 3600.0, lambda: True
    )
    for found, period_s in (
        ((0, 3), PERIOD_S[2]),
        ((0, 300), PERIOD_S[1]),
        ((5, 300), PERIOD_S[0]),
        ((MOVED_MAX // 4, 300), PERIOD_S[0]),
        ((MOVED_MAX, 300), PERIOD_S[0] / 2),
    ):
        told["found"] = found
        assert await leveller.round(1.0) == period_s
    assert leveller.levelled == 2 * (5 + MOVED_MAX // 4 + MOVED_MAX)
    # Where little falls due it looks ever more seldom, but several times within the horizon: a heap
    # is found before it falls due.
    told["found"] = (0, 3)
    periods = [30.0]
    for _ in range(6):
        periods.append(await leveller.round(periods[-1]))
    assert periods == [30, 60, 120, 225, 225, 225, 225]
    told["found"] = (0, 300)
    assert await leveller.round(periods[-1]) == PERIOD_S[1]
    for settings in ({"level_share": 0.0}, {"not_before_s": 30.0}, {"kills_access_token": True}):
        off = Leveller(
            Provider(name="p", **settings),
            QUEUE,
            store,
            ManualClock(),
            lambda: 3600.0,
            lambda: True,
        )  # type: ignore[arg-type]
        await off.run()  # Ends at once.


async def test_those_of_many_providers_do_not_look_together() -> None:
    clock, asked = ManualClock(), dict[str, float]()

    class Store:
        async def level_all(self, queue: str, *_: object) -> list[tuple[int, int]]:
            asked.setdefault(queue, clock.monotonic())
            return [(0, 0)]

    store: Any = Store()
    began = clock.monotonic()
    tasks = [
        asyncio.create_task(
            Leveller(
                Provider(name=f"p{n}"),
                f"_tokens:p{n}:c0",
                store,
                clock,
                lambda: 3600.0,
                lambda: True,
            ).run()
        )
        for n in range(100)
    ]
    await asyncio.sleep(0)
    for _ in range(26):
        await clock.advance(1)
        await asyncio.sleep(0)
    await clock.advance(5)
    assert len(asked) == 100
    seconds = [int(at - began) for at in asked.values()]
    assert min(seconds) >= PERIOD_S[1]
    assert max(seconds.count(second) for second in seconds) <= 20
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_goes_on_whatever_goes_wrong(caplog: pytest.LogCaptureFixture) -> None:
    clock, looks = ManualClock(), 0

    class AccountStore:
        async def level_all(self, *_: object) -> list[tuple[int, int]]:
            nonlocal looks
            looks += 1
            raise ValueError("an answer that no script gives") if looks == 1 else StoreDown("away")

    store: Any = AccountStore()
    task = asyncio.create_task(
        Leveller(Provider(name="p"), QUEUE, store, clock, lambda: 3600.0, lambda: True).run()
    )
    await asyncio.sleep(0)
    while looks < 3:
        await clock.advance(PERIOD_S[2])
        assert not task.done()
    assert caplog.text.count("for a reason of ours") == 1
    task.cancel()
