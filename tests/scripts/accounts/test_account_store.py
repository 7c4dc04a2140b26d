"""The accounts' scripts on a real store."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from msgspec.structs import replace
from support.tokens.ledger_bench import LEASE_MS, QUEUE, Bench

from tidewarden.errors import BadArg
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.accounts.account_record import (
    AccountDetails,
    RefreshTroubles,
    Step,
    parse_row,
)
from tidewarden.tokens.accounts.account_store import ITEMS_MAX, Opened, RefusedAccount


async def test_put_compares_what_was_read(bench: Bench) -> None:
    assert (await bench.ledger.get(QUEUE, "a")).row is None
    assert await bench.put("a")
    reading = await bench.ledger.get(QUEUE, "a")
    assert reading.row == bench.row()
    assert reading.now_ms == bench.now_ms
    assert not await bench.put("a")  # As if it were still new.
    assert await bench.put("a", (1, 1))
    assert not await bench.put("a", (1, 1))
    row = (await bench.ledger.get(QUEUE, "a")).row
    assert row is not None
    assert (row.grant, row.generation) == (2, 2)
    assert await bench.stats() == {"total": 1, "fresh": 1}


def of(**details: Any) -> AccountDetails:
    return AccountDetails({"shop": "a"}, **details)


async def known(bench: Bench, account: str = "a") -> AccountDetails | None:
    row = (await bench.ledger.get(QUEUE, account)).row
    return row.details if row is not None else None


def ending(bench: Bench, valkey: Any, account: str = "a") -> int:
    """When its consent ends, as those have it that are told of it; 0: it is not among them."""
    prefix = prefix_of("t", QUEUE, bench.queues.catalog.shard_of(QUEUE, account))
    return int(valkey.client.zscore(f"{prefix}:account_consents", account) or 0)


async def test_details_stay_with_their_account_until_others_come(bench: Bench, valkey: Any) -> None:
    first = of(extras={"api": "x"}, consent_expires_ms=9_000_000, consent_end="fixed")
    assert await bench.ledger.put(QUEUE, "a", (0, 0), replace(bench.row(), details=first), 1)
    assert await known(bench) == first
    assert ending(bench, valkey) == 9_000_000
    bench.now_ms += 7_000
    task = await bench.take("a")
    opened = await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    assert isinstance(opened, Opened)
    assert opened.row.details == first
    # As a node of an earlier version writes it, too.
    assert await bench.stored(bench.row(1, 2)) == "STORED"
    assert await known(bench) == first
    later = of(extras={"api": "y"}, consent_expires_ms=9_500_000, consent_end="moves")
    row = replace(bench.row(1, 3), details=later)
    assert (
        await bench.ledger.stored(QUEUE, "a", (1, 2), row.pack_all(), row.due_ms, row.expires_at_ms)
        == "STORED"
    )
    assert (await known(bench), ending(bench, valkey)) == (later, 0)
    _, _, (entry,) = await bench.ledger.page(
        QUEUE, bench.queues.catalog.shard_of(QUEUE, "a"), 0, 10, troubled=False
    )
    assert entry.row.details == later
    _, (pair,) = await bench.ledger.pairs(QUEUE, bench.queues.catalog.shard_of(QUEUE, "a"), 0, 10)
    assert parse_row(pair.row, pair.details).details == later
    assert await bench.put("a", (1, 3))
    assert await known(bench) == AccountDetails(), "a new grant has what it was put with"


async def test_a_refreshed_pair_brings_its_details_while_its_task_is_leased(
    bench: Bench, valkey: Any
) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    assert isinstance(await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS), Opened)
    row = replace(bench.row(1, 2), details=of(consent_expires_ms=8_000_000, consent_end="fixed"))
    assert (
        await bench.ledger.stored(QUEUE, "a", (1, 1), row.pack_all(), row.due_ms, row.expires_at_ms)
        == "STORED"
    )
    assert (await known(bench), ending(bench, valkey)) == (row.details, 8_000_000)


async def test_whoever_is_dead_or_gone_has_no_consent_to_wait_for(
    bench: Bench, valkey: Any
) -> None:
    fixed = of(consent_expires_ms=9_000_000, consent_end="fixed")
    assert await bench.ledger.put(
        QUEUE, "a", (0, 0), replace(bench.row(due_ms=0), details=fixed), 1
    )
    task = await bench.take("a")
    assert await bench.ledger.failed(
        QUEUE, "a", task.lease, Step("dead", 0, RefreshTroubles(dead=True))
    )
    assert (await known(bench), ending(bench, valkey)) == (fixed, 0)
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=1) == "QUEUED"
    assert await bench.stored(bench.row(1, 2)) == "RECOVERED"
    assert ending(bench, valkey) == 9_000_000
    assert await bench.ledger.delete(QUEUE, "a")
    assert ending(bench, valkey) == 0
    assert await bench.put("a", (1, 0))
    assert await known(bench) == AccountDetails(), "of the one before nothing is left"


async def test_a_deleted_accounts_numbers_are_never_given_again(bench: Bench) -> None:
    await bench.put("a")
    await bench.put("a", (1, 1))
    assert await bench.ledger.delete(QUEUE, "a")
    assert not await bench.ledger.delete(QUEUE, "a")
    reading = await bench.ledger.get(QUEUE, "a")
    assert (reading.row, reading.floor) == (None, 2)
    assert not await bench.put("a", (0, 0))
    assert await bench.put("a", (2, 0))
    assert (
        await bench.ledger.stored(QUEUE, "a", (1, 1), bench.row(1, 2, mark="late").pack(), 1, 2)
        == "GONE"
    )
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_one_refresh(bench: Bench) -> None:
    await bench.put("a")
    bench.now_ms += 7_000
    assert await bench.stats() == {"total": 1, "expiring": 1}
    task = await bench.take("a")
    opened = await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    assert isinstance(opened, Opened)
    assert (opened.row.generation, opened.troubles, opened.spare, opened.found) == (
        1,
        RefreshTroubles(),
        None,
        None,
    )
    assert (await bench.stats())["intents"] == 1
    new = bench.row(1, 2)
    assert await bench.stored(new) == "STORED"
    assert await bench.stored(new) == "ALREADY"
    assert await bench.stats() == {"total": 1, "fresh": 1}
    # The lease is void: nothing said under it changes the task.
    assert not await bench.ledger.failed(
        QUEUE, "a", task.lease, Step("dead", 0, RefreshTroubles(dead=True))
    )
    assert await bench.locate("a") == "delayed"


async def test_an_intent_needs_the_lease(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    assert await bench.ledger.intend(QUEUE, "a", task.lease + 1, LEASE_MS) == RefusedAccount(
        "NOTHELD"
    )
    await bench.put("a", (1, 1), due_ms=0)  # A new consent voids the lease.
    assert await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS) == RefusedAccount("NOTHELD")
    assert (await bench.stats()).get("intents", 0) == 0


async def test_of_many_intents_in_one_call_each_is_judged_by_itself(bench: Bench) -> None:
    names = [f"a{n}" for n in range(100)]
    leases = {}
    for name in names:
        await bench.put(name, due_ms=0)
        leases[name] = (await bench.take(name)).lease
    await bench.put("a7", (1, 1), due_ms=0)
    await bench.ledger.delete(QUEUE, "a8")
    asked = [*leases.items(), ("a9", leases["a9"]), ("nobody", 1)]
    calls = [bench.ledger.intend(QUEUE, name, lease, LEASE_MS) for name, lease in asked]
    *found, again, nobody = await asyncio.gather(*calls)
    assert (again, nobody) == (
        RefusedAccount("OPEN", bench.now_ms + LEASE_MS),
        RefusedAccount("NOTHELD"),
    )
    assert [
        name for name, one in zip(names, found, strict=True) if one == RefusedAccount("NOTHELD")
    ] == ["a7", "a8"]
    assert all(
        isinstance(one, Opened) and one.troubles == RefreshTroubles()
        for one in (*found[:7], *found[9:])
    )
    assert (await bench.stats())["intents"] == 98


async def test_a_lease_with_an_intent_ends_by_its_time_alone(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a", "n0.1")
    bench.now_ms += LEASE_MS - 5_000
    assert isinstance(await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS), Opened)
    bench.session.held[QUEUE, "a"] = (task.lease, task.lease_end_ms, 0.0)
    await bench.queues.close_session(bench.session)  # As when the node's connection goes.
    assert await bench.locate("a") == "leased"
    bench.now_ms += LEASE_MS - 1  # The lease ran on from the intent.
    with pytest.raises(AssertionError, match="not to be had"):
        await bench.take("a", "n1.1")
    bench.now_ms += 1
    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    found = (
        await bench.queues.scripts.run(
            "queue.take", QUEUE, shard, (200, 1, LEASE_MS, 0, ""), now_ms=bench.now_ms
        )
    )[0]
    opened = await bench.ledger.intend(QUEUE, "a", found[0][1], LEASE_MS)
    assert isinstance(opened, Opened)
    assert opened.found is not None
    assert (opened.found.holder, opened.found.lease, opened.found.fingerprint) == (
        "n0.1",
        task.lease,
        b"m       ",
    )


async def test_an_intent_that_is_not_over_is_left_to_its_node(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    first = await bench.take("a", "n0.1")
    await bench.ledger.intend(QUEUE, "a", first.lease, LEASE_MS)
    # The lease is ended by force, as an operator can.
    await bench.queues.scripts.run(
        "queue.end",
        QUEUE,
        bench.queues.catalog.shard_of(QUEUE, "a"),
        ("a", first.lease, "release", 0, ""),
        now_ms=bench.now_ms,
    )
    second = await bench.take("a", "n1.1")
    refused = await bench.ledger.intend(QUEUE, "a", second.lease, LEASE_MS)
    assert refused == RefusedAccount("OPEN", bench.now_ms + LEASE_MS)


async def test_a_failure_goes_back_into_the_queue_with_its_troubles(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    troubles = RefreshTroubles(tries=1, outcome="unavailable", message="HTTP 503")
    assert await bench.ledger.failed(QUEUE, "a", task.lease, Step("retry", 5.0, troubles))
    assert await bench.locate("a") == "delayed"
    assert await bench.stats() == {"total": 1, "failing": 1}
    assert (await bench.ledger.stats(QUEUE))["next_ms"] == bench.now_ms + 5000
    reading = await bench.ledger.get(QUEUE, "a")
    assert (reading.row, reading.troubles) == (bench.row(due_ms=0), troubles)
    assert not await bench.ledger.failed(QUEUE, "a", task.lease, Step("retry", 5.0, troubles))
    bench.now_ms += 5_000
    again = await bench.take("a")
    opened = await bench.ledger.intend(QUEUE, "a", again.lease, LEASE_MS)
    assert isinstance(opened, Opened)
    assert (opened.troubles, opened.found) == (troubles, None)


async def late_ones(bench: Bench) -> None:
    """Two that fail and one that was not asked yet, which expired last; all are ready."""
    for account, late_ms in (("failing", 60_000), ("roused", 50_000), ("well", 1_000)):
        assert await bench.put(account, due_ms=-late_ms, life_ms=-late_ms)
    await bench.fails("failing", 2.0)
    await bench.fails("roused", 3600.0)
    bench.now_ms += 2_000
    assert await bench.ledger.rouse(QUEUE, 0, 10_000) == 1
    assert await bench.ledger.rouse(QUEUE, 0, 1) == 0
    bench.now_ms += 1_000


async def test_among_the_late_those_that_fail_give_way_to_those_that_were_not_asked(
    bench: Bench,
) -> None:
    """However soon they are tried again, and however long ago they expired."""
    await late_ones(bench)
    assert [(await bench.take("")).id for _ in range(3)] == ["well", "failing", "roused"]


async def test_they_give_way_also_where_somebody_waits_for_each(bench: Bench) -> None:
    await late_ones(bench)
    for account in ("failing", "roused", "well"):
        assert await bench.ledger.refresh(QUEUE, account) == "QUEUED"
    assert (await bench.take("")).id == "well"


async def test_who_was_not_asked_after_all_keeps_its_place(bench: Bench) -> None:
    for account, late_ms in (("first", 60_000), ("second", 1_000)):
        assert await bench.put(account, due_ms=-late_ms, life_ms=-late_ms)
    task = await bench.take("first")
    untouched = Step("hold", 0, RefreshTroubles())
    assert await bench.ledger.failed(QUEUE, "first", task.lease, untouched)
    assert (await bench.take("")).id == "first"


async def test_whose_token_lives_keeps_its_deadline(bench: Bench) -> None:
    """Also where it is tried again before the token ends, and not after it."""
    expires_ms = bench.now_ms + 100_000
    await bench.put("a", due_ms=0, life_ms=100_000)
    await bench.fails("a", 300.0)
    assert await bench.ledger.rouse(QUEUE, 0, 1) == 1
    bench.now_ms += 1_000
    assert (await bench.take("a")).deadline_ms == expires_ms


async def test_a_failure_that_is_told_under_an_older_number_changes_nothing(bench: Bench) -> None:
    """Of a node that was paused past its lease, when another refreshes the account."""
    await bench.put("a", due_ms=0)
    old = await bench.take("a", "n0.1")
    await bench.ledger.intend(QUEUE, "a", old.lease, LEASE_MS)
    bench.now_ms += LEASE_MS
    new = await bench.take("a", "n1.1")
    assert new.lease > old.lease
    assert not await bench.ledger.failed(
        QUEUE, "a", old.lease, Step("dead", 0, RefreshTroubles(dead=True))
    )
    assert await bench.locate("a") == "leased"
    assert isinstance(await bench.ledger.intend(QUEUE, "a", new.lease, LEASE_MS), Opened)
    # The request that is under way is the other's: whoever comes next has to know of it.
    assert not await bench.ledger.failed(
        QUEUE, "a", old.lease, Step("retry", 0, RefreshTroubles(tries=1))
    )
    assert await bench.ledger.renew(QUEUE, "a", new.lease, LEASE_MS)


async def test_an_intent_runs_on_for_whoever_holds_it(bench: Bench) -> None:
    """
    A request of unknown outcome is sent again in its place: its intent and lease last as long as if
    it had begun now.
    """
    await bench.put("a", due_ms=0)
    task = await bench.take("a", "n0.1")
    assert not await bench.ledger.renew(QUEUE, "a", task.lease, LEASE_MS)  # There is none yet.
    await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    began_ms = bench.now_ms
    bench.now_ms += LEASE_MS - 1
    assert not await bench.ledger.renew(QUEUE, "a", task.lease + 1, LEASE_MS)
    assert await bench.ledger.renew(QUEUE, "a", task.lease, LEASE_MS)
    bench.now_ms += LEASE_MS - 1
    with pytest.raises(AssertionError, match="not to be had"):
        await bench.take("a", "n1.1")
    bench.now_ms += 1
    other = await bench.take("a", "n1.1")
    assert not await bench.ledger.renew(QUEUE, "a", task.lease, LEASE_MS)
    opened = await bench.ledger.intend(QUEUE, "a", other.lease, LEASE_MS)
    assert isinstance(opened, Opened)
    assert opened.found is not None
    # The grace counts from the first request.
    assert (opened.found.started_ms, opened.found.holder, opened.found.lease) == (
        began_ms,
        "n0.1",
        task.lease,
    )
    assert await bench.ledger.renew(QUEUE, "a", other.lease, LEASE_MS)
    await bench.put("a", (1, 1), due_ms=0)  # A new consent: the old token is not sent again.
    assert not await bench.ledger.renew(QUEUE, "a", other.lease, LEASE_MS)


async def test_what_only_the_grace_saves_goes_before_what_somebody_waits_for(bench: Bench) -> None:
    async def fails(account: str, step: Step) -> None:
        await bench.ledger.failed(QUEUE, account, (await bench.take(account)).lease, step)

    async def order(shard: int) -> list[str]:
        rows = (
            await bench.queues.scripts.run(
                "queue.take", QUEUE, shard, (200, 3, LEASE_MS, 0, ""), now_ms=bench.now_ms
            )
        )[0]
        for row in rows:
            await bench.ledger.failed(
                QUEUE, row[0].decode(), row[1], Step("retry", 1, RefreshTroubles(tries=2))
            )
        return [row[0].decode() for row in rows]

    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    names = [
        "a",
        *(f"b{n}" for n in range(200) if bench.queues.catalog.shard_of(QUEUE, f"b{n}") == shard),
    ][:3]
    for name in names:
        await bench.put(name, due_ms=0, life_ms=1000)
    last, wanted, urgent = names
    await fails(
        urgent, Step("retry", 1, RefreshTroubles(tries=1, doubts=1), until_ms=bench.now_ms + 60_000)
    )
    bench.now_ms += 1000
    assert await bench.ledger.refresh(QUEUE, wanted) == "QUEUED"
    assert await bench.ledger.refresh(QUEUE, urgent) == "QUEUED"  # It is before others already.
    assert await order(shard) == [urgent, wanted, last]
    # When the grace is over it is one like others, by the deadline that it had.
    bench.now_ms += 1000
    assert sorted(await order(shard)) == sorted(names)
    found = await bench.queues.admin.peek(QUEUE, urgent)
    assert found["priority"] == 50
    assert found["deadline_ms"] == (await bench.queues.admin.peek(QUEUE, last))["deadline_ms"]


async def test_a_held_account_has_no_troubles(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    assert await bench.ledger.failed(
        QUEUE, "a", task.lease, Step("hold", 0, RefreshTroubles(tries=9))
    )
    assert (await bench.ledger.get(QUEUE, "a")).troubles is None
    assert await bench.locate("a") == "ready"


async def test_a_dead_account_keeps_its_row_and_costs_nothing(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    await bench.ledger.failed(
        QUEUE, "a", task.lease, Step("dead", 0, RefreshTroubles(dead=True, outcome="invalid_grant"))
    )
    assert await bench.stats() == {"total": 1, "dead": 1}
    assert (await bench.ledger.get(QUEUE, "a")).row is not None
    assert (await bench.queues.admin.stats(QUEUE))["total"] == 0
    assert await bench.ledger.refresh(QUEUE, "a") == "DEAD"
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=1) == "QUEUED"  # By hand, once more.
    assert await bench.stats() == {"total": 1, "failing": 1}
    assert await bench.put("a", (1, 1))  # A new consent is a new life.
    assert await bench.stats() == {"total": 1, "fresh": 1}


@pytest.mark.parametrize("ended", ["a new consent", "a refresh that went well", "deleted"])
async def test_a_stopped_account_is_counted_apart_until_it_lives_again(
    bench: Bench, ended: str
) -> None:
    await bench.put("a", due_ms=0)
    await bench.put("b", due_ms=0)
    stopped = RefreshTroubles(tries=90, stopped=True, outcome="unavailable")
    for account, what, troubles in (
        ("a", "stop", stopped),
        ("b", "dead", RefreshTroubles(dead=True)),
    ):
        task = await bench.take(account)
        await bench.ledger.failed(QUEUE, account, task.lease, Step(what, 0, troubles))  # type: ignore[arg-type]
    assert await bench.stats() == {"total": 2, "stopped": 1, "dead": 1}
    assert (await bench.queues.admin.stats(QUEUE))["total"] == 0
    assert await bench.ledger.refresh(QUEUE, "a") == "DEAD"
    if ended == "deleted":
        assert await bench.ledger.delete(QUEUE, "a")
        assert await bench.stats() == {"total": 1, "dead": 1}
        return
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=1) == "QUEUED"
    assert await bench.stats() == {"total": 2, "failing": 1, "dead": 1}
    if ended == "a new consent":
        assert await bench.put("a", (1, 1))
    else:
        await bench.take("a")
        assert await bench.stored(bench.row(1, 2)) == "RECOVERED"
    assert await bench.stats() == {"total": 2, "fresh": 1, "dead": 1}


async def test_a_refresh_that_is_wanted_goes_first(bench: Bench) -> None:
    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    sibling = next(
        f"a{n}" for n in range(1000) if bench.queues.catalog.shard_of(QUEUE, f"a{n}") == shard
    )
    await bench.put(sibling, due_ms=0, life_ms=1)
    await bench.put("a", due_ms=900_000, life_ms=1_000_000)
    # Whoever read it before it was refreshed does not have it refreshed again.
    assert await bench.ledger.refresh(QUEUE, "a", seen=(1, 9)) == "MOVED"
    assert await bench.ledger.refresh(QUEUE, "a") == "QUEUED"
    assert await bench.ledger.refresh(QUEUE, "a") == "QUEUED"
    assert await bench.ledger.refresh(QUEUE, "nobody", force_ms=1) == "GONE"
    found = (
        await bench.queues.scripts.run(
            "queue.take", QUEUE, shard, (200, 1, LEASE_MS, 0, ""), now_ms=bench.now_ms
        )
    )[0]
    assert found[0][0] == b"a"
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=1) == "LEASED"
    await bench.ledger.failed(QUEUE, "a", found[0][1], Step("retry", 30, RefreshTroubles(tries=1)))
    assert await bench.ledger.refresh(QUEUE, "a") == "BACKOFF"
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=1) == "QUEUED"


async def test_by_hand_an_account_is_refreshed_once_in_a_while_and_none_is_forgotten(
    bench: Bench,
) -> None:
    shard = bench.queues.catalog.shard_of(QUEUE, "a")

    async def taken() -> list[Any]:
        args = (200, 1, LEASE_MS, 0, "")
        rows = (
            await bench.queues.scripts.run("queue.take", QUEUE, shard, args, now_ms=bench.now_ms)
        )[0]
        for row in rows:
            await bench.ledger.failed(
                QUEUE, "a", row[1], Step("retry", 30, RefreshTroubles(tries=1))
            )
        return list(rows)

    await bench.put("a")
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=5000) == "QUEUED"
    assert len(await taken()) == 1
    for step_ms in (0, 1000, 3999):
        bench.now_ms += step_ms
        assert await bench.ledger.refresh(QUEUE, "a", force_ms=5000) == "RECENT"
        assert await taken() == []
    bench.now_ms += 1
    assert len(await taken()) == 1  # What was wanted meanwhile, once.
    assert await taken() == []
    bench.now_ms += 1
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=5000) == "RECENT"
    bench.now_ms -= 3_600_000  # The clock is stepped back: nobody waits for what was the hour.
    assert await bench.ledger.refresh(QUEUE, "a", force_ms=5000) == "QUEUED"


async def test_late_accounts_are_counted(bench: Bench) -> None:
    for number in range(40):
        await bench.put(f"a{number}", due_ms=1_000, life_ms=2_000)
    bench.now_ms += 2_000
    # What a take or the leader's sweep does.
    await bench.queues.scripts.run("queue.take", QUEUE, 0, (200, 1, 1, 1, ""), now_ms=bench.now_ms)
    stats = await bench.stats()
    assert stats["total"] == 40
    assert stats["late"] + stats.get("expiring", 0) == 40
    assert stats["late"] >= 39  # One was taken, and is under way.


async def test_many_items_are_one_script(bench: Bench) -> None:
    import asyncio

    calls = []
    real = bench.ledger.script

    async def counted(name: str, queue: str, shard: int, args: Any) -> Any:
        calls.append(name)
        return await real(name, queue, shard, args)

    bench.ledger.script = counted
    assert all(await asyncio.gather(*(bench.put(f"a{number}") for number in range(1000))))
    assert len(calls) == math.ceil(1000 / ITEMS_MAX)
    entries: list[str] = []
    cursor = -1
    while cursor:
        cursor, now_ms, page = await bench.ledger.page(QUEUE, 0, max(cursor, 0), 10, troubled=False)
        entries += [entry.account for entry in page]
        assert now_ms == bench.now_ms
    assert set(entries) == {f"a{number}" for number in range(1000)}


async def test_one_that_waits_for_its_provider_is_not_counted_fresh(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    assert await bench.ledger.failed(QUEUE, "a", task.lease, Step("hold", 30.0, RefreshTroubles()))
    assert await bench.locate("a") == "delayed"
    assert await bench.stats() == {"total": 1, "expiring": 1}
    bench.now_ms += 31_000
    task = await bench.take("a")
    assert await bench.stats() == {"total": 1, "expiring": 1}


async def test_a_malformed_item_changes_nothing(bench: Bench) -> None:
    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    row = bench.row().pack()
    for args in (
        ("a", 0, 0, b"no row", 1, 2, ""),
        ("a", 0, 0, row, 1, 2, "", "b", 0, 0, b"no row", 1, 2, ""),
        ("a", "x", 0, row, 1, 2, ""),
    ):
        with pytest.raises(BadArg):
            await bench.queues.scripts.run("tokens.put", QUEUE, shard, args)
    with pytest.raises(BadArg, match="what becomes of a"):
        await bench.queues.scripts.run(
            "tokens.failed", QUEUE, shard, ("a", 1, "explode", 0, b"", "keep")
        )
    assert await bench.stats() == {}


async def test_a_spare_saves_an_account_that_was_given_up(bench: Bench) -> None:
    dead = Step("dead", 0, RefreshTroubles(refusals=2, dead=True), spare="try")
    late = bench.row(1, 9, mark="late")
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    await bench.ledger.failed(QUEUE, "a", task.lease, dead)
    assert (await bench.stats())["dead"] == 1
    assert await bench.stored(late) == "SPARE"
    assert await bench.stats() == {"total": 1, "failing": 1, "spares": 1}
    task = await bench.take("a")
    # The spare came while it was under way.
    await bench.ledger.failed(QUEUE, "a", task.lease, dead)
    assert await bench.locate("a") == "ready"
    task = await bench.take("a")
    await bench.ledger.failed(
        QUEUE, "a", task.lease, Step("dead", 0, RefreshTroubles(dead=True), spare="drop")
    )
    assert await bench.stats() == {"total": 1, "dead": 1}


async def test_a_new_grant_ends_the_previous_token_of_the_old_one_but_no_pair_in_hand(
    bench: Bench,
) -> None:
    """Past its grace the previous token is a used one: sent again it would end a grant."""
    await bench.put("a")
    await bench.ledger.stored(
        QUEUE, "a", (1, 1), bench.row(1, 2).pack(), 1, 2, previous=bench.row(1, 1).pack()
    )
    assert (await bench.stats())["spares"] == 1
    assert await bench.put("a", base=(1, 2))
    assert "spares" not in await bench.stats()
    # To one under way.
    await bench.ledger.stored(QUEUE, "a", (1, 2), bench.row(1, 3, mark="late").pack(), 1, 2)
    assert await bench.put("a", base=(2, 3))
    assert (await bench.stats())["spares"] == 1
