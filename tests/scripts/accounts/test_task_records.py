"""
A token's task has a record of its own only where it differs from what its account's row says of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness
from support.tokens.ledger_bench import LEASE_MS, QUEUE, Bench

from tidewarden.errors import BadArg, NotFound
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles, Step

ACCOUNTS = [f"a{n}" for n in range(40)]


class Keys(Bench):
    """A bench that may look at its store's keys."""

    def __init__(self, side: Any, audit: Callable[[], int]) -> None:
        super().__init__(side.queues)
        self.call = side.link.call
        self.audit = audit

    def prefix(self, account: str) -> str:
        return prefix_of(
            self.queues.catalog.cluster, QUEUE, self.queues.catalog.shard_of(QUEUE, account)
        )


@pytest.fixture
async def bench(valkey: Any, audit: Callable[[Any], int], tmp_path: Path) -> AsyncIterator[Keys]:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False, clustered=True
    ) as side:
        yield Keys(side, lambda: audit(valkey))


async def records(bench: Keys) -> set[str]:
    """The accounts whose tasks have records of their own."""
    found: set[str] = set()
    for key in await bench.call("KEYS", f"{{*:{QUEUE}:*}}:tasks*"):
        found |= {name.decode() for name in await bench.call("HKEYS", key)}
    return found


async def refreshed(bench: Keys, account: str, base: tuple[int, int] = (1, 1)) -> AccountRow:
    task = await bench.take(account)
    await bench.ledger.intend(QUEUE, account, task.lease, LEASE_MS)
    new = bench.row(base[0], base[1] + 1)
    assert (
        await bench.ledger.stored(QUEUE, account, base, new.pack(), new.due_ms, new.expires_at_ms)
        == "STORED"
    )
    return new


async def nowhere(bench: Keys, account: str) -> bool:
    """There is no task of that account."""
    with pytest.raises(NotFound):
        await bench.queues.admin.peek(QUEUE, account)
    return True


async def test_healthy_accounts_have_none_through_put_and_refresh(bench: Keys) -> None:
    for account in ACCOUNTS:
        await bench.put(account)
    assert await records(bench) == set()
    bench.audit()
    shown = await bench.queues.admin.peek(QUEUE, "a1")
    assert (shown["due_ms"], shown["deadline_ms"], shown["priority"]) == (1_007_000, 1_010_000, 50)
    bench.now_ms += 7_000
    task = await bench.take("a0")
    assert task.deadline_ms == 1_010_000
    new = await refreshed(bench, "a1")
    bench.audit()
    assert (await bench.queues.admin.peek(QUEUE, "a1"))["due_ms"] == new.due_ms
    assert await records(bench) == set()


async def test_one_that_is_wanted_sooner_has_one_until_it_is_refreshed(bench: Keys) -> None:
    await bench.put("a")
    assert await bench.ledger.refresh(QUEUE, "a") == "QUEUED"
    assert await records(bench) == {"a"}
    bench.audit()
    await refreshed(bench, "a")
    assert await records(bench) == set()
    bench.audit()


async def test_a_dead_account_has_no_task_and_a_new_grant_gives_it_one(bench: Keys) -> None:
    await bench.put("a")
    bench.now_ms += 7_000
    task = await bench.take("a")
    step = Step("dead", 0, RefreshTroubles(tries=1))
    assert await bench.ledger.failed(QUEUE, "a", task.lease, step)
    assert await nowhere(bench, "a")
    bench.audit()
    assert (await bench.queues.consistency.check(QUEUE))["tasks"] == 0
    assert await bench.put("a", (1, 1))
    bench.audit()
    assert await bench.locate("a") == "delayed"
    assert await bench.ledger.delete(QUEUE, "a")
    bench.audit()
    assert await nowhere(bench, "a")


@pytest.mark.thorough
async def test_the_doctor_counts_them_and_finds_one_that_lies_nowhere(bench: Keys) -> None:
    for account in ACCOUNTS:
        await bench.put(account)
    report = await bench.queues.consistency.check(QUEUE)
    assert (report["tasks"], report["problems"]) == (40, 0)
    assert await bench.call("ZREM", f"{bench.prefix('a7')}:delayed", "a7") == 1
    report = await bench.queues.consistency.check(QUEUE, repair=True)
    assert report["found"]["task without an index entry"] == 1
    assert (await bench.queues.consistency.check(QUEUE))["problems"] == 0
    bench.audit()


async def test_the_doctor_sees_that_a_shards_record_forgot_its_accounts(bench: Keys) -> None:
    for account in ACCOUNTS:
        await bench.put(account)
    await bench.ledger.refresh(QUEUE, "a3")
    bench.now_ms += 7_000
    task = await bench.take("a5")
    forgetful = bench.prefix("a5")
    await bench.call("HDEL", f"{forgetful}:shard", "accounts")
    report = await bench.queues.consistency.check(QUEUE, repair=True)
    assert (report["found"], report["repaired"]) == ({"accounts not in the record": 1}, 1)
    assert (await bench.queues.consistency.check(QUEUE))["problems"] == 0
    bench.audit()
    assert (await bench.queues.admin.peek(QUEUE, "a5"))["lease"] == task.lease


async def test_the_doctor_takes_the_task_of_a_dead_account(bench: Keys) -> None:
    await bench.put("a")
    await bench.ledger.refresh(QUEUE, "a")  # so that it has a record of its own
    await bench.call("ZADD", f"{bench.prefix('a')}:account_dead", bench.now_ms, "a")
    await bench.call(
        "HSET", f"{bench.prefix('a')}:account_troubles", "a", RefreshTroubles(dead=True).pack()
    )
    report = await bench.queues.consistency.check(QUEUE, repair=True)
    assert report["found"] == {"task of a dead account": 1}
    assert (await bench.queues.consistency.check(QUEUE))["problems"] == 0
    assert await nowhere(bench, "a")
    bench.audit()


async def test_the_doctor_drops_what_lies_beside_no_account_and_tries_a_dead_one_again_of_which_nobody_knows_why(
    bench: Keys,
) -> None:
    await bench.put("a")
    beside = bench.prefix("a")
    await bench.call("ZADD", f"{beside}:account_dead", 1, "a", 1, "none")
    for kind in ("intents", "spares", "troubles", "first"):
        await bench.call("HSET", f"{beside}:account_{kind}", "none", "x")
    await bench.call("ZADD", f"{beside}:account_failing", 1, "none")
    for kind in ("told", "lost", "stopped"):
        await bench.call("SADD", f"{beside}:account_{kind}", "none")
    assert (await bench.queues.consistency.check(QUEUE))["found"][
        "dead account without a reason"
    ] == 1
    report = await bench.queues.consistency.check(QUEUE, repair=True)
    assert report["found"] == {"entry without an account": 9, "dead account without a reason": 1}
    assert (await bench.queues.consistency.check(QUEUE))["problems"] == 0
    bench.audit()
    assert await bench.stats() == {"total": 1, "fresh": 1}
    assert await bench.locate("a") == "delayed"


async def test_a_queue_with_accounts_is_not_empty(bench: Keys) -> None:
    await bench.put("a")
    with pytest.raises(BadArg, match="empty"):
        await bench.queues.admin.configure(QUEUE, {"shards": 4})


async def test_records_of_the_former_version_go_with_the_next_refresh(bench: Keys) -> None:
    """It gave every task a record; a dead account had none then, either."""
    await bench.put("a")
    await bench.put("dead")
    bench.now_ms += 7_000
    task = await bench.take("dead")
    await bench.ledger.failed(QUEUE, "dead", task.lease, Step("dead", 0, RefreshTroubles(tries=1)))
    for account in ("a", "dead"):
        prefix = bench.prefix(account)
        await bench.call("HDEL", f"{prefix}:shard", "accounts")
        await bench.call("HSET", f"{prefix}:shard", "format", 1)
        if account == "a":
            record = (
                bytes([17, 50]) + (1_007_000).to_bytes(6, "big") + (1_010_000).to_bytes(6, "big")
            )
            await bench.call("HSET", f"{prefix}:tasks", account, record)
            await bench.call("HINCRBY", f"{prefix}:shard", "stored", 1)
    bench.audit()
    assert (await bench.queues.admin.peek(QUEUE, "a"))["due_ms"] == 1_007_000
    assert await nowhere(bench, "dead")
    await refreshed(bench, "a")
    assert await records(bench) == set()
    for n in range(40):
        await bench.put(f"more{n}")
    assert await nowhere(bench, "dead")
    assert (await bench.queues.consistency.check(QUEUE))["problems"] == 0
    bench.audit()
