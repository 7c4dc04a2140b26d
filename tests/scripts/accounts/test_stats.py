"""
What T.STATS counts, beside what every account says of itself.

The script counts by the sizes of sets and by a count that each script keeps along; nobody looks
through the accounts for it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from support.tokens.ledger_bench import LEASE_MS, QUEUE, Bench

from tidewarden.tokens.accounts.account_record import RefreshTroubles, Step
from tidewarden.tokens.policy.account_state import state

ACCOUNTS = [f"a{number}" for number in range(40)]
STEPS = 250
LOOKED_AT = 4
"""Each so many-th of these is compared; a count that went wrong stays so."""
ENDS = {
    "dead": RefreshTroubles(dead=True, outcome="invalid_grant"),
    "lost": RefreshTroubles(dead=True, outcome="lost_rotation"),
    "stop": RefreshTroubles(stopped=True, outcome="unavailable"),
}


async def counted(bench: Bench) -> tuple[Counter[str], int]:
    """
    Count the accounts by looking at each, and those that fail, are due again and have a token that
    lives: for so many, late ones may count as expiring.
    """
    found: Counter[str] = Counter()
    doubtful = 0
    for account in ACCOUNTS:
        reading = await bench.ledger.get(QUEUE, account)
        if reading.row is not None:
            found["total"] += 1
            found[state(reading.row, reading.troubles, bench.now_ms)] += 1
            troubles, lives = reading.troubles, reading.row.expires_at_ms > bench.now_ms
            fails = troubles is not None and not troubles.given_up
            doubtful += fails and lives and await bench.locate(account) == "ready"
    return found, doubtful


async def change(bench: Bench, dice: Random) -> None:
    """Do what nodes and users do to one of the accounts."""
    account = dice.choice(ACCOUNTS)
    reading = await bench.ledger.get(QUEUE, account)
    row = reading.row
    what = dice.choice(("put", "refresh", "refresh", "fail", "fail", "end", "force", "delete"))
    life = {"life_ms": dice.randrange(5_000, 90_000)}
    life["due_ms"] = life["life_ms"] * 2 // 3
    if row is None or what == "put":
        base = (reading.floor, 0) if row is None else (row.grant, row.generation)
        assert await bench.put(account, base, **life)
    elif what == "delete" and dice.random() < 0.3:
        assert await bench.ledger.delete(QUEUE, account)
    elif reading.troubles is not None and reading.troubles.given_up:
        return
    elif what == "force" and reading.troubles is not None:  # else it counts as expiring at once
        await bench.ledger.refresh(QUEUE, account, force_ms=1)
    elif await bench.locate(account) == "ready":
        task = await bench.take(account)
        await bench.ledger.intend(QUEUE, account, task.lease, LEASE_MS)
        if what == "refresh":
            new = bench.row(row.grant, row.generation + 1, **life)
            base = (row.grant, row.generation)
            told = (new.pack(), new.due_ms, new.expires_at_ms)
            assert await bench.ledger.stored(QUEUE, account, base, *told) in ("STORED", "RECOVERED")
        else:
            wait_ms = dice.randrange(1, 60_000)
            troubles: Any = RefreshTroubles(tries=1, next_ms=bench.now_ms + wait_ms)
            step = Step("retry", wait_ms / 1000, troubles)
            if what == "end":
                kind: Any = dice.choice(list(ENDS))
                step = Step(kind, 0, ENDS[kind])
            assert await bench.ledger.failed(QUEUE, account, task.lease, step)


@pytest.mark.parametrize("seed", range(3))
async def test_the_counts_are_those_of_the_accounts(bench: Bench, seed: int) -> None:
    dice, met = Random(seed), set[str]()
    for step in range(STEPS):
        await change(bench, dice)
        bench.now_ms += dice.choice((0, 100, 3_000))
        if step % LOOKED_AT:
            continue
        # what is due is among the ready ones from now on
        looking = (200, 1, LEASE_MS, 0, "nobody")
        await bench.queues.scripts.run("queue.take", QUEUE, 0, looking, now_ms=bench.now_ms)
        found, doubtful = await counted(bench)
        shown = Counter(await bench.stats())
        assert found["late"] - doubtful <= shown["late"] <= found["late"]
        moved = found["late"] - shown["late"]
        assert shown == found - Counter(late=moved) + Counter(expiring=moved)
        met |= found.keys()
    states = {"fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation"}
    assert met == {"total", *states}
