"""What failed is tried anew sooner: whose turn it is, and never before the provider lets it."""

from __future__ import annotations

from support.tokens.ledger_bench import QUEUE, Bench

HOUR_MS = 3_600_000


async def fails(bench: Bench, account: str, wait_s: float, not_before_ms: int = 0) -> None:
    """It is taken, and asked again after so long."""
    assert await bench.put(account, due_ms=0)
    await bench.fails(account, wait_s, not_before_ms)


async def test_all_but_those_that_were_told_to_wait_are_tried_soon(bench: Bench) -> None:
    accounts = [f"a{number}" for number in range(40)]
    for number, account in enumerate(accounts):
        named_ms = bench.now_ms + HOUR_MS if number % 4 == 0 else 0
        await fails(bench, account, 3600 + number, named_ms)
    assert await bench.ledger.rouse(QUEUE, 0, 10_000) == 30
    assert await bench.ledger.rouse(QUEUE, 0, 10_000) == 0


async def test_one_at_a_time_whose_wait_would_end_first(bench: Bench) -> None:
    """Those that may not be asked are passed over, however many they are."""
    accounts = [f"b{number}" for number in range(12)]
    for number, account in enumerate(accounts):
        named_ms = bench.now_ms + 2 * HOUR_MS if number < 9 else 0
        await fails(bench, account, 3600 + number, named_ms)
    for account in accounts[9:]:
        assert await bench.ledger.rouse(QUEUE, 0, 1, 1) == 1
        bench.now_ms += 2
        assert (await bench.take(account)).id == account
    assert await bench.ledger.rouse(QUEUE, 0, 1, 1) == 0
