"""Answers that come when their row is no longer as it was, on a real store."""

from __future__ import annotations

from typing import Any

from support.tokens.ledger_bench import LEASE_MS, QUEUE, Bench

from tidewarden.tokens.accounts.account_record import RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import Opened, RefusedAccount


async def test_an_answer_after_the_lease_ended_is_stored_all_the_same(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a", "n0.1")
    await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    bench.now_ms += LEASE_MS
    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    found = (
        await bench.queues.scripts.run(
            "queue.take", QUEUE, shard, (200, 1, LEASE_MS, 0, ""), now_ms=bench.now_ms
        )
    )[0]
    new = bench.row(1, 2)
    assert await bench.stored(new) == "STORED"
    assert await bench.ledger.intend(QUEUE, "a", found[0][1], LEASE_MS) == RefusedAccount("NOTHELD")
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_an_answer_that_comes_too_late_is_a_spare(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    assert await bench.put("a", (1, 1), due_ms=0, mark="new")
    late = bench.row(1, 2, mark="late")
    assert await bench.stored(late) == "SPARE"
    task = await bench.take("a")
    opened = await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    assert isinstance(opened, Opened)
    assert opened.spare == late
    assert opened.row.refresh == b"sealed-new"
    newer = bench.row(2, 3)
    await bench.stored(newer)
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_an_answer_that_others_have_followed_is_no_spare(bench: Bench) -> None:
    """
    A journal that comes back after days has pairs that were used since: to try one would end the
    grant at some providers.
    """
    await bench.put("a")
    answers = [bench.row(1, generation, mark=f"m{generation}") for generation in (2, 3, 4)]
    assert [await bench.stored(row) for row in answers] == ["STORED", "STORED", "STORED"]
    assert [await bench.stored(row) for row in answers] == ["PAST", "PAST", "ALREADY"]
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_an_answer_with_the_same_refresh_token_is_no_spare(bench: Bench) -> None:
    """
    Within its grace a provider gives both requests the same pair; and where tokens do not rotate it
    always does.
    """
    await bench.put("a")
    first, second = bench.row(1, 2, mark="same"), bench.row(1, 2, mark="same", life_ms=11_000)
    assert await bench.stored(first) == "STORED"
    assert await bench.stored(second) == "ALREADY"
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_an_answer_that_comes_after_its_account_was_lost_is_tried_at_once(
    bench: Bench,
) -> None:
    """
    The refusal may have ended the grant, its pair with it: nobody is told that all is well before
    it is known.
    """
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    lost = RefreshTroubles(dead=True, outcome="lost_rotation")
    await bench.ledger.failed(QUEUE, "a", task.lease, Step("lost", 0, lost))
    assert await bench.stored(bench.row(1, 2, mark="late")) == "STORED"
    reading = await bench.ledger.get(QUEUE, "a")
    assert reading.row is not None
    assert (reading.row.generation, reading.troubles) == (2, lost)
    await bench.take("a")  # It is due.
    assert await bench.stored(bench.row(1, 3, mark="later")) == "RECOVERED"
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_an_answer_that_comes_after_its_token_was_refused_is_tried_at_once(
    bench: Bench,
) -> None:
    """
    Likewise where the account is asked for still; but the answer to whoever asks now is what
    counts.
    """
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    refused = RefreshTroubles(tries=1, refusals=1, doubts=1, outcome="invalid_grant")
    await bench.ledger.failed(QUEUE, "a", task.lease, Step("retry", 600, refused))
    assert await bench.stored(bench.row(1, 2, mark="late")) == "STORED"
    assert await bench.stats() == {"total": 1, "failing": 1}
    assert (await bench.ledger.get(QUEUE, "a")).troubles == refused
    task = await bench.take("a")
    await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    assert await bench.stored(bench.row(1, 3, mark="later")) == "STORED"
    assert await bench.stats() == {"total": 1, "fresh": 1}
    # What fails for other reasons is well with the answer that comes late.
    bench.now_ms += 7_000
    task = await bench.take("a")
    await bench.ledger.failed(
        QUEUE, "a", task.lease, Step("retry", 600, RefreshTroubles(tries=1, doubts=1))
    )
    assert await bench.stored(bench.row(1, 4, mark="more")) == "STORED"
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_an_answer_for_a_deleted_account_is_dropped(bench: Bench) -> None:
    await bench.put("a", due_ms=0)
    task = await bench.take("a")
    await bench.ledger.intend(QUEUE, "a", task.lease, LEASE_MS)
    await bench.ledger.delete(QUEUE, "a")
    assert await bench.ledger.stored(QUEUE, "a", (1, 1), bench.row(1, 2).pack(), 1, 2) == "GONE"
    assert await bench.stats() == {}


async def test_an_answer_for_a_deleted_account_is_not_given_to_the_next_of_its_name(
    bench: Bench,
) -> None:
    """
    Who has the name now may be somebody else: the pair would hand out the former owner's token.
    """
    await bench.put("a")
    late = bench.row(1, 2, mark="late")
    assert await bench.ledger.delete(QUEUE, "a")
    assert await bench.put("a", (1, 0))
    assert await bench.stored(late) == "GONE"
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_what_else_was_deleted_does_not_give_it_to_the_next_of_its_name_either(
    bench: Bench,
) -> None:
    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    other = next(
        name
        for name in map(str, range(1000))
        if bench.queues.catalog.shard_of(QUEUE, name) == shard
    )
    await bench.put("a")
    late = bench.row(1, 2, mark="late")
    assert await bench.ledger.delete(QUEUE, "a")
    assert await bench.put("a", (1, 0))
    for base in ((1, 0), (2, 1)):
        assert await bench.put(other, base)
    assert await bench.ledger.delete(QUEUE, other)
    assert await bench.stored(late) == "GONE"
    assert await bench.stats() == {"total": 1, "fresh": 1}


async def test_another_account_that_was_deleted_takes_no_spare_away(
    bench: Bench, valkey: Any
) -> None:
    shard = bench.queues.catalog.shard_of(QUEUE, "a")
    other = next(
        name
        for name in map(str, range(1000))
        if bench.queues.catalog.shard_of(QUEUE, name) == shard
    )
    # its grants went further than this one's, or not
    for bases in (((0, 0), (1, 1), (2, 2)), ((0, 0),)):
        valkey.client.flushall()
        await bench.put("a")
        for base in bases:
            assert await bench.put(other, base)
        assert await bench.ledger.delete(QUEUE, other)
        assert await bench.put("a", (1, 1), mark="new")
        assert await bench.put("a", (2, 2), mark="newer")
        assert await bench.stored(bench.row(1, 2, mark="late")) == "SPARE"


async def test_an_answer_for_the_one_before_the_last_of_a_name_is_not_given_to_it(
    bench: Bench,
) -> None:
    assert await bench.put("a")
    assert await bench.put("a", (1, 1))
    late = bench.row(2, 3, mark="late")
    assert await bench.ledger.delete(QUEUE, "a")
    assert await bench.put("a", (2, 0))
    assert await bench.put("a", (3, 1))
    assert await bench.stored(late) == "GONE"
    assert await bench.stored(bench.row(3, 2, mark="late")) == "SPARE"


async def test_answers_that_come_together_end_as_each_by_itself(bench: Bench, valkey: Any) -> None:
    """
    What is plain is written at once with others; whatever is not goes its own way, in the same
    call.
    """
    shard, queues = 0, (QUEUE, f"{QUEUE}1")
    names = [f"a{n}" for n in range(20)]

    async def script(verb: str, queue: str, *args: Any) -> Any:
        return await bench.queues.scripts.run(verb, queue, shard, args, now_ms=bench.now_ms)

    async def prepared(queue: str) -> list[list[Any]]:
        for name in names:
            row = bench.row()
            args = (name, 0, 0, row.pack(), row.due_ms, row.expires_at_ms, "")
            await script("tokens.put", queue, *args)
        await script("tokens.refresh", queue, names[3], 1, 0, 0)  # with a record of its own
        bench.now_ms += 8_000
        leases = {}
        for name in names[:12] + names[13:]:
            found = (await script("queue.take", queue, 200, 1, LEASE_MS, 0, name))[0]
            leases[name] = found[0][1]
            await script("tokens.intent", queue, name, leases[name], LEASE_MS)
        troubles = RefreshTroubles(tries=1, outcome="unavailable").pack()
        for name, what in ((names[4], "retry"), (names[5], "dead")):
            await script(
                "tokens.failed", queue, name, leases[name], what, 0, troubles, "keep", "", 0
            )
        leases[names[4]] = (await script("queue.take", queue, 200, 1, LEASE_MS, 0, names[4]))[0][0][
            1
        ]
        await script("tokens.delete", queue, names[6])
        for name, mark in ((names[7], "new"), (names[8], "new"), (names[8], "spare")):
            row = bench.row(1, 2, mark=mark)
            await script(
                "tokens.stored", queue, name, 1, 1, row.pack(), row.due_ms, row.expires_at_ms, ""
            )
        items = []
        for number, name in enumerate(names):
            row = bench.row(1, 2, due_ms=0 if number == 9 else 7_000, mark=f"m{number}")
            due_ms = row.due_ms - 500 * (number == 10)
            previous: str | bytes = {
                7: "drop",
                13: "drop",
                14: bench.row(mark="before").pack(),
            }.get(number, "")
            items.append([name, 1, 1, row.pack(), due_ms, row.expires_at_ms, previous])
        return [*items, items[15]]  # one of them twice

    def left(queue: str) -> dict[str, Any]:
        """All that lies in the shard, but for how often it was written."""
        found: dict[str, Any] = {}
        for key in valkey.client.scan_iter(match=f"{{*:{queue}:{shard}}}*"):
            part = key.decode().partition("}")[2]
            kind = valkey.client.type(key)
            if part not in (":shard", ":counts"):
                found[part] = (
                    valkey.client.hgetall(key)
                    if kind == b"hash"
                    else valkey.client.zrange(key, 0, -1, withscores=True)
                    if kind == b"zset"
                    else valkey.client.smembers(key)
                )
        (counts,) = (
            valkey.client.hgetall(key)
            for key in valkey.client.scan_iter(match=f"{{*:{queue}:{shard}}}:counts")
        )
        (record,) = (
            valkey.client.hgetall(key)
            for key in valkey.client.scan_iter(match=f"{{*:{queue}:{shard}}}:shard")
        )
        del record[b"seq"], counts[b"spares kept"]
        return found | {"counts": counts, "record": record}

    began_ms = bench.now_ms
    items = await prepared(queues[0])
    together = await script("tokens.stored", queues[0], *(part for item in items for part in item))
    bench.now_ms = began_ms
    items = await prepared(queues[1])
    alone = [
        (await script("tokens.stored", queues[1], *item, *item))[0] for item in items
    ]  # what comes twice is not plain
    assert together == alone
    words = [word.decode() for word in together]
    assert words[:9] == ["STORED"] * 6 + ["GONE", "MOVED", "SPARE"]
    assert words[9:] == ["STORED"] * 11 + ["ALREADY"]
    assert left(queues[0]) == left(queues[1])
