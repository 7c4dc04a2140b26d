"""Notices that consents end, on a real store: each told once, and none lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.inspect import cache_of, clock_of
from support.tokens import harness
from support.tokens.harness import eventually
from support.tokens.ledger_bench import LEASE_MS, QUEUE, Bench

from tidewarden.config.load import Tokens
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.accounts.account_record import AccountDetails, RefreshTroubles, Step

DAY_MS = 86_400_000
DAYS = (1, 7, 30)


class Ends(Bench):
    """Accounts whose consents end, and the notices of that."""

    def prefix(self, account: str) -> str:
        return prefix_of("t", QUEUE, self.queues.catalog.shard_of(QUEUE, account))

    async def put_ending(
        self, account: str, in_days: float, base: tuple[int, int] = (0, 0), end: Any = "fixed"
    ) -> None:
        end_ms = self.now_ms + int(in_days * DAY_MS)
        known = AccountDetails(
            consent_expires_ms=end_ms, consent_end=end, consent_noted_ms=self.now_ms
        )
        row = replace(
            self.row(base[0] + 1, base[1] + 1, life_ms=400 * DAY_MS, due_ms=400 * DAY_MS),
            details=known,
        )
        assert await self.ledger.put(QUEUE, account, base, row, row.expires_at_ms)

    async def look(self, most: int = 200, days: tuple[int, ...] = DAYS) -> list[str]:
        """
        What is left in the outbox by a look, and told then: ``account days``.
        """
        more = True
        while more:
            _, more = await self.ledger.consents(QUEUE, 0, most, days)
        return sorted(await self.told(0))

    async def told(self, shard: int) -> list[str]:
        found, entries = [], await self.ledger.tell(QUEUE, shard, 1000, 10_000)
        while entries:
            for _, kind, _, account, data in (entry.decode().split("\n") for entry in entries):
                assert kind == "account.consent_expiring"
                found.append(f"{account} {data.split()[0]}")
            entries = await self.ledger.tell(QUEUE, shard, 1000, 10_000, entries)
        return found


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Ends]:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        yield Ends(side.queues)


async def over_days(bench: Ends, days: int, **settings: Any) -> dict[int, list[str]]:
    """What each of so many days brings."""
    found = {}
    for day in range(1, days + 1):
        bench.now_ms += DAY_MS
        if told := await bench.look(**settings):
            found[day] = told
    return found


async def test_each_notice_is_told_once_at_its_time(bench: Ends) -> None:
    await bench.put_ending("a", 60.5)
    await bench.put_ending("b", 8.5)
    await bench.put_ending("c", 0.5)
    await bench.put_ending("moves", 8.5, end="moves")
    await bench.put_ending("unknown", 8.5, end="unknown")
    assert await bench.look() == []
    assert await over_days(bench, 70) == {
        2: ["b 7"], 8: ["b 1"], 31: ["a 30"], 54: ["a 7"], 60: ["a 1"],
    }  # fmt: skip


async def test_of_notices_that_fell_due_while_nobody_looked_the_last_is_told(bench: Ends) -> None:
    await bench.put_ending("a", 40)
    assert await bench.look() == []
    bench.now_ms += 39 * DAY_MS + DAY_MS // 2
    assert await bench.look() == ["a 1"]
    assert await over_days(bench, 5) == {}


async def test_a_new_grant_is_told_of_anew_and_an_end_that_trembles_is_not(bench: Ends) -> None:
    await bench.put_ending("a", 30.5)
    bench.now_ms += DAY_MS
    assert await bench.look() == ["a 30"]
    for generation in (1, 2, 3):  # As answers that count from when they are given.
        bench.now_ms += 1000
        known = AccountDetails(
            consent_expires_ms=bench.now_ms + 29 * DAY_MS + DAY_MS * generation // 4,
            consent_end="fixed",
        )
        row = replace(bench.row(1, generation + 1, 400 * DAY_MS, 400 * DAY_MS), details=known)
        stored = await bench.ledger.stored(
            QUEUE, "a", (1, generation), row.pack_all(), row.due_ms, row.expires_at_ms
        )
        assert stored == "STORED"
        assert await bench.look() == []
    await bench.put_ending("a", 30.5, (1, 4))
    bench.now_ms += DAY_MS
    assert await bench.look() == ["a 30"]


async def test_an_end_that_was_put_off_is_told_of_again(bench: Ends) -> None:
    await bench.put_ending("a", 7.5)
    bench.now_ms += DAY_MS
    assert await bench.look() == ["a 7"]
    row = replace(
        bench.row(1, 2, 400 * DAY_MS, 400 * DAY_MS),
        details=AccountDetails(
            consent_expires_ms=bench.now_ms + 17 * DAY_MS // 2, consent_end="fixed"
        ),
    )
    assert (
        await bench.ledger.stored(QUEUE, "a", (1, 1), row.pack_all(), 2**41, row.expires_at_ms)
        == "STORED"
    )
    assert await over_days(bench, 10) == {2: ["a 7"], 8: ["a 1"]}


async def test_nobody_is_told_of_accounts_that_are_dead_or_gone(bench: Ends, valkey: Any) -> None:
    for name in ("dead", "gone", "old"):
        await bench.put_ending(name, 7.5)
    shard = bench.queues.catalog.shard_of(QUEUE, "dead")
    await bench.ledger.refresh(QUEUE, "dead", force_ms=1)
    found = (
        await bench.queues.scripts.run(
            "queue.take", QUEUE, shard, (200, 9, LEASE_MS, 0, ""), now_ms=bench.now_ms
        )
    )[0]
    lease = next(taken[1] for taken in found if taken[0] == b"dead")
    assert await bench.ledger.failed(
        QUEUE, "dead", lease, Step("dead", 0, RefreshTroubles(dead=True))
    )
    await bench.ledger.delete(QUEUE, "gone")
    # A node of an earlier version puts a new grant, and knows of no ends.
    row = bench.row(2, 2, 400 * DAY_MS, 400 * DAY_MS)
    valkey.client.hset(f"{bench.prefix('old')}:accounts", "old", row.pack())
    bench.now_ms += DAY_MS
    assert await bench.look() == []
    assert valkey.client.zcard(f"{bench.prefix('old')}:account_consents") == 0


@pytest.mark.parametrize("most", [1, 3, 200])
async def test_accounts_that_were_put_together_are_all_told_of(bench: Ends, most: int) -> None:
    """
    Many ends are at one moment; whatever the size of a page, none is passed over, and none told
    twice.
    """
    names = [f"a{n}" for n in range(300)]
    await asyncio.gather(*(bench.put_ending(name, 7.5) for name in names))
    bench.now_ms += DAY_MS
    assert await bench.look(most) == sorted(f"{name} 7" for name in names)


async def test_accounts_at_one_place_of_the_index_are_all_told_of(bench: Ends, valkey: Any) -> None:
    names = [f"a{n}" for n in range(20)]
    await asyncio.gather(*(bench.put_ending(name, 7.5) for name in names))
    key = f"{bench.prefix(names[0])}:account_consents"
    valkey.client.zadd(key, dict.fromkeys(names, float(bench.now_ms + 7.5 * DAY_MS)))
    bench.now_ms += DAY_MS
    assert len(names) > 10
    assert await bench.look(4) == sorted(f"{name} 7" for name in names)


async def test_what_the_outbox_has_no_room_for_is_left_for_later(bench: Ends, valkey: Any) -> None:
    names = [f"a{n}" for n in range(12)]
    await asyncio.gather(*(bench.put_ending(name, 7.5) for name in names))
    bench.now_ms += DAY_MS
    outbox = f"{bench.prefix(names[0])}:account_outbox"
    valkey.client.zadd(outbox, {f"x{n}": 1 for n in range(49_998)})
    assert await bench.ledger.consents(QUEUE, 0, 200, DAYS) == (2, False)
    assert await bench.ledger.consents(QUEUE, 0, 200, DAYS) == (0, False)
    valkey.client.zremrangebyscore(outbox, 0, 1)
    assert await bench.look() == sorted(f"{name} 7" for name in names)


async def test_how_many_end_soon_is_counted(bench: Ends) -> None:
    for name, days in (("a", 0.5), ("b", 6.0), ("c", 29.0), ("d", 31.0)):
        await bench.put_ending(name, days)
    stats = await bench.stats()
    assert [stats[f"consents_{days}d"] for days in DAYS] == [1, 2, 3]


async def test_they_are_events_and_figures_of_every_door(valkey: Any, tmp_path: Path) -> None:
    sections = {"tokens": Tokens(consent_notice_days=(30,))}
    chosen = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, tmp_path, chosen, go=False, sections=sections) as side:
        soon_ms = clock_of(cache_of(side.tokens)).unix_ms() + 30 * DAY_MS + 300
        await side.tokens.put(
            "p/a",
            {
                "refresh_token": "r",
                "access_token": "x",
                "expires_in": 3600,
                "consent_expires_ms": soon_ms,
            },
        )
        assert (await side.tokens.stats())["p"]["consents_30d"] == 0
        await eventually(lambda: clock_of(cache_of(side.tokens)).unix_ms() > soon_ms - 30 * DAY_MS)
        side.go()
        (event,) = await eventually(lambda: side.tokens.events.after("0-0"))
        assert (event[1].type, event[1].data["account"]) == ("account.consent_expiring", "p/a")
        assert (event[1].data["days"], event[1].data["consent_expires_ms"]) == (30, soon_ms)
        assert (await side.tokens.stats())["p"]["consents_30d"] == 1
