"""How many accounts fall due in the next hours."""

from __future__ import annotations

import pytest
from support.tokens.ledger_bench import QUEUE, Bench

HOUR_MS = 3_600_000


async def due(bench: Bench, step_ms: int = HOUR_MS, steps: int = 6) -> list[int]:
    return await bench.ledger.due(QUEUE, step_ms, steps)


async def test_each_account_counts_in_the_step_that_it_falls_due_in(bench: Bench) -> None:
    assert await due(bench) == [0] * 6
    at_ms = [1, 90_000, HOUR_MS, HOUR_MS + 1, 3 * HOUR_MS, 6 * HOUR_MS, 6 * HOUR_MS + 1]
    for number, due_ms in enumerate(at_ms):
        assert await bench.put(f"a{number}", life_ms=30 * HOUR_MS, due_ms=due_ms)
    assert await due(bench) == [3, 1, 1, 0, 0, 1]
    bench.now_ms += 2 * HOUR_MS
    # what is due already has to be done in the first step, swept or not
    assert (await due(bench))[1:] == [0, 0, 1, 1, 0]


@pytest.mark.thorough
async def test_thousands_are_counted_about(bench: Bench) -> None:
    total, steps = 3000, 12
    for number in range(total):
        due_ms = 1000 + number * 6 * HOUR_MS // total
        assert await bench.put(f"a{number}", life_ms=30 * HOUR_MS, due_ms=due_ms)
    found = await due(bench, HOUR_MS // 2, steps)
    assert abs(sum(found) - total) <= total // 20
    assert all(abs(one - total / steps) < total / steps / 3 for one in found), found
