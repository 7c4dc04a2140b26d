"""Who probes while a client is held back: an account that was well, however many others fail."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.tokens.ledger_bench import QUEUE, Bench


async def probed(bench: Bench, *, level: int, drawn: int = 0) -> str:
    task = await bench.ledger.probe(QUEUE, 0, 40_000, level=level, saving=False, drawn=drawn)
    return task.id if task is not None else ""


async def test_one_that_was_well_is_found_behind_many_that_fail(bench: Bench) -> None:
    for number in range(120):
        await bench.put(account := f"bad{number}", due_ms=0, life_ms=5000)
        await bench.fails(account, 1)
    await bench.put("a", due_ms=0, life_ms=500)
    await bench.take("a")
    row = replace(bench.row(1, 2, due_ms=1500, life_ms=2000), refreshed=True)
    assert await bench.stored(row) == "STORED"
    bench.now_ms += 10_000
    # What a take or the leader's sweep does.
    await bench.queues.scripts.run(
        "queue.take", QUEUE, 0, (200, 1, 1, 1, "nobody"), now_ms=bench.now_ms
    )
    assert await probed(bench, level=0) == "a"
    assert await probed(bench, level=1) == "", "no other was well, or never tried"
    assert (await probed(bench, level=2)).startswith("bad")


@pytest.mark.thorough
async def test_one_that_was_well_is_found_below_many_that_are_late_and_fail(
    bench: Bench,
) -> None:
    """They were tried since it expired, and are more than are looked through."""
    await bench.put("a", due_ms=0, life_ms=1)
    await bench.take("a")
    row = replace(bench.row(1, 2, due_ms=10, life_ms=10), refreshed=True)
    assert await bench.stored(row) == "STORED"
    for number in range(850):
        await bench.put(account := f"bad{number}", due_ms=-1000, life_ms=-1000)
        await bench.fails(account, 1)
    bench.now_ms += 10_000
    for _ in range(5):
        await bench.queues.scripts.run(
            "queue.take", QUEUE, 0, (200, 1, 1, 1, "nobody"), now_ms=bench.now_ms
        )
    assert await probed(bench, level=0) == "a"


async def test_of_those_that_were_never_tried_one_is_chosen_by_chance(bench: Bench) -> None:
    for number in range(150):
        await bench.put(f"a{number}", due_ms=0, life_ms=1000 + number)
    bench.now_ms += 500
    assert await probed(bench, level=0) == "", "none was refreshed yet"
    chosen = [await probed(bench, level=1, drawn=drawn) for drawn in range(0, 150, 10)]
    assert len(set(chosen)) == len(chosen)
    # the first in the order of their ends, and the last
    numbers = [int(name[1:]) for name in chosen]
    assert min(numbers) < 20
    assert max(numbers) > 120
