"""What is buried, with its history: shown, kicked and moved by filter, or all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import shards_of

from tidewarden.errors import BadArg, Full, NoQuorum, NotFound, NotHeld, TooBig
from tidewarden.queue import TaskSpec


def history(desk: Any, task_id: str) -> list[tuple[int, str, int, str]]:
    """Times count from the desk's now."""
    return [
        (ms - desk.now, how.decode(), attempt, why.decode())
        for ms, how, attempt, why in desk.peek(task_id)["history"]
    ]


def test_each_bad_end_is_remembered(desk: Any) -> None:
    desk.put("a", attempts=5, lease_ms=1000)
    began = desk.now
    desk.end(desk.take_one(), "fail", delay_ms=0, reason="http 503")
    desk.now += 10
    desk.take_one()
    desk.now += 1000
    row = desk.take_one()  # its lease ran out
    desk.end(row, "loss")
    desk.end(desk.take_one(), "release", reason="not mine")
    desk.now += 5
    desk.end(desk.take_one(), "bury", reason="cannot be done")
    desk.now = began
    assert history(desk, "a") == [
        (0, "fail", 1, "http 503"),
        (1010, "expired", 2, ""),
        (1010, "loss", 3, ""),
        (1015, "bury", 3, "cannot be done"),
    ]
    shown = desk.peek("a")
    assert (shown["state"], shown["reason"], shown["attempts"], shown["losses"]) == (
        b"buried",
        b"cannot be done",
        3,
        1,
    )
    assert desk.run("queue.peek", "buried", 10, "")[0][0][-1] == shown["history"]


def test_the_last_few_are_kept_as_the_queue_says(desk: Any) -> None:
    desk.put("a")
    for n in range(7):
        desk.end(desk.take_one(), "fail", reason=f"r{n}" * 200)
    assert [why for *_, why in history(desk, "a")] == [(f"r{n}" * 200)[:240] for n in range(2, 7)]
    desk.configure(history=2)
    desk.end(desk.take_one(), "fail", reason="two")
    assert [attempt for _, _, attempt, _ in history(desk, "a")] == [7, 8]
    desk.configure(history=1)
    desk.end(desk.take_one(), "fail", reason="one")
    assert [why for *_, why in history(desk, "a")] == ["one"]
    desk.configure(history=0)
    desk.end(desk.take_one(), "fail", reason="none")
    assert [why for *_, why in history(desk, "a")] == ["one"], "what was remembered stays"
    desk.put("b")
    desk.end(desk.take_one(task_id="b"), "fail")
    assert history(desk, "b") == []


def test_a_task_that_never_failed_has_no_byte_of_it(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one()
    plain = desk.client.hget(f"{desk.prefix}:tries", "a")
    desk.end(row, "release", delay_ms=0)
    again = desk.take_one()
    assert len(desk.client.hget(f"{desk.prefix}:tries", "a")) == len(plain)
    assert desk.ack(again) == [1]


def test_a_death_a_ttl_and_used_up_attempts_are_in_it(desk: Any) -> None:
    desk.put("ttl", ttl_ms=5)
    desk.put("lost", priority=1)
    desk.take_one(task_id="lost", holder="n1.7")
    desk.run("queue.reap", 1, "n1", 7, 10)
    desk.now += 5
    desk.take()
    desk.now -= 5
    assert history(desk, "ttl") == [(5, "ttl", 0, "")]
    assert history(desk, "lost") == [(0, "loss", 1, "node n1.7 died")]
    desk.put("spent", attempts=1)
    desk.end(desk.take_one(task_id="spent"), "fail", reason="no")
    assert desk.state("spent") == "buried"
    assert history(desk, "spent") == [(0, "fail", 1, "no")], "the end that buried it is there once"
    desk.run("queue.kick", 1, "spent", "", 0)
    assert history(desk, "spent") == [], "a kick forgets"


def test_a_filter_by_age_and_by_reason(desk: Any) -> None:
    for n, reason in enumerate(["http 500", "http 404", "dns", "http 503"]):
        desk.put(f"t{n}")
        desk.end(desk.take_one(), "bury", reason=reason)
        desk.now += 1000
    assert desk.run("queue.kick", 10, "", "http", 0, 0, 3500) == [1, -1]
    assert desk.state("t0") == "ready"
    assert desk.run("queue.kick", 10, "", "", 0, desk.now - 2000, 0) == [2, -1]
    assert [desk.state(f"t{n}") for n in range(4)] == ["ready", "ready", "ready", "buried"]
    assert desk.run("queue.read_buried", 10, 1000, 0, "dns", 0, 0) == [[], -1, desk.now]
    assert desk.run("queue.read_buried", 10, 1000, 0, "http", 0, 1001) == [[], -1, desk.now]
    rows, rank, _ = desk.run("queue.read_buried", 10, 1000, 0, "http", 0, 1000)
    assert ([row[0] for row in rows], rank) == ([b"t3"], -1)


def test_a_filter_by_the_whole_reason(desk: Any) -> None:
    reasons = ["http 50", "http 500", "", "http 50", "http"]
    for n, reason in enumerate(reasons):
        desk.put(f"t{n}", lane="a" if n % 2 else None)
        desk.end(desk.take_one(task_id=f"t{n}"), "bury", reason=reason)
    rows, *_ = desk.run("queue.read_buried", 10, 1000, 0, "http 50", 0, 0, 1)
    assert [row[0] for row in rows] == [b"t0", b"t3"]
    assert desk.run("queue.kick", 10, "", "http 50", 0, 0, 0, 1) == [2, -1]
    assert desk.run("queue.delete_buried", 10, "", "", 0, 0, 0, 1) == [1, -1]
    assert [desk.state(f"t{n}") for n in range(5)] == ["ready", "buried", "", "ready", "buried"]
    assert desk.run("queue.delete_buried", 10, "", "http", 0, desk.now - 1, 0) == [0, -1]
    assert desk.run("queue.delete_buried", 1, "", "http", 0, 0, 0) == [1, 0]
    assert desk.run("queue.delete_buried", 10, "", "", 0, 0, 0) == [1, -1]
    desk.audit()


def test_some_are_named(desk: Any) -> None:
    for n in range(6):
        desk.put(f"t{n}", b"x" * 10)
        desk.end(desk.take_one(task_id=f"t{n}"), "bury", reason="bad")
    desk.put("other")
    named = ("t1", "none", "other", "t3", "t3")
    rows, behind, _ = desk.run("queue.read_buried", 10, 5, 0, "", 0, 0, 0, *named)
    assert ([row[0] for row in rows], behind) == ([b"t1"], 1)
    assert desk.run("queue.kick", 10, "", "", 0, 0, 0, 0, *named) == [2, -1]
    assert desk.run("queue.delete_buried", 10, "", "", 0, 0, 0, 0, *named, "t5") == [1, -1]
    assert [desk.state(f"t{n}") for n in range(6)] == [
        "buried", "ready", "buried", "ready", "buried", "",
    ]  # fmt: skip
    assert desk.state("other") == "ready", "what is not buried is let alone"
    desk.audit()


def test_long_payloads_are_kicked_in_pieces(desk: Any) -> None:
    """Each record is read: a thousand of a mebibyte would hold up the store."""
    for n in range(20):
        desk.put(f"t{n:02}", b"x" * 2**20)
        desk.end(desk.take_one(task_id=f"t{n:02}"), "bury", reason="odd" if n % 2 else "even")
    moved, rank = desk.run("queue.kick", 100, "", "odd", 0)
    assert (moved, rank) == (10, -1)
    moved, rank = desk.run("queue.kick", 100, "", "", 0)
    assert (moved, rank) == (10, -1)
    for _ in range(20):
        desk.end(desk.take_one(), "bury")
    moved, rank = desk.run("queue.kick", 100, "", "", 0)
    assert (moved, rank) == (16, 0)
    assert desk.run("queue.kick", 100, "", "", rank) == [4, -1]


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("x" * 241, "x" * 240),
        ("x" + "ü" * 120, "x" + "ü" * 119),
        ("x" * 239 + "ü", "x" * 239),
        ("xx" + "€" * 80, "xx" + "€" * 79),
        ("x" + "😀" * 60, "x" + "😀" * 59),
        ("ü" * 120, "ü" * 120),
    ],
)
@pytest.mark.parametrize("how", ["bury", "fail"])
def test_a_long_reason_is_cut_between_letters(desk: Any, how: str, reason: str, kept: str) -> None:
    """Else nobody could say it again, to kick those that were buried for it."""
    desk.put("a", attempts=1)
    desk.end(desk.take_one(), how, reason=reason)
    shown = desk.peek("a")
    assert (shown["reason"].decode(), shown["history"][0][3].decode()) == (kept, kept)
    desk.put("b", attempts=1)
    desk.end(desk.take_one(), how, reason=b"\x80" * 300)  # type: ignore[arg-type]
    assert 236 <= len(desk.peek("b")["reason"]) <= 240


def test_a_task_is_put_again_with_another_payload(desk: Any) -> None:
    desk.put("a", b"old", priority=7, attempts=2, ttl_ms=50, lane="l", deadline_ms=desk.now + 9)
    desk.end(desk.take_one(), "bury", reason="bad")
    before = desk.peek("a")
    desk.now += 100
    assert desk.run("queue.put_again", "a", b"new and longer", before["at_ms"]) == 1
    after = desk.peek("a")
    assert (after["payload"], after["state"], after["attempts"], after["history"]) == (
        b"new and longer", b"ready", 0, [],
    )  # fmt: skip
    for name in ("priority", "deadline_ms", "attempts_max", "lane", "due_ms"):
        assert after[name] == before[name], name
    assert after["expires_ms"] == 0
    desk.audit()
    assert desk.run("queue.put_again", "a", b"new and longer", before["at_ms"]) == 0, "came twice"
    assert desk.run("queue.put_again", "a", b"another", 0) == b"KICKED"
    row = desk.take_one()
    assert (row.payload, row.attempt) == (b"new and longer", 1)
    assert desk.run("queue.put_again", "a", b"another", 0) == b"NOTHELD"
    assert desk.run("queue.put_again", "a", b"new and longer", 0) == 0
    desk.end(row, "bury", reason="bad again")
    assert desk.run("queue.put_again", "a", b"x", before["at_ms"]) == b"KICKED", "anew"
    assert desk.run("queue.put_again", "a", b"x", 0) == 1
    assert desk.ack(desk.take_one()) == [1]
    assert desk.run("queue.put_again", "a", b"x", 0) == b"NOTFOUND"
    assert desk.counts()["ready"] == 0


def test_a_full_store_takes_no_longer_payload(desk: Any) -> None:
    desk.put("a", b"old")
    desk.end(desk.take_one(), "bury")
    before = desk.digest()
    desk.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(Full):
            desk.run("queue.put_again", "a", b"longer", 0)
        assert desk.digest() == before
        assert desk.run("queue.put_again", "a", b"low", 0) == 1
    finally:
        desk.client.config_set("maxmemory", "0")


async def buried(node: Any, shards: int, tasks: int) -> tuple[Any, Any]:
    """A queue with so many buried tasks, half of them for ``odd`` reasons."""
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": shards})
    await asyncio.gather(*(queues.put("q", TaskSpec(id=f"t{n}")) for n in range(tasks)))
    session = queues.open_session()
    for task in await queues.take(session, ["q"], count=1000):
        reason = "odd one" if int(task.id[1:]) % 2 else "even one"
        await queues.bury(session, "q", task.id, task.lease, reason)
    return queues, session


@pytest.mark.parametrize("shards", [1, 4])
async def test_kick_all_of_a_reason_and_then_the_rest(node: Any, shards: int) -> None:
    queues, _ = await buried(node, shards, 300)
    assert await queues.buried.kick("q", count=2**31, reason_prefix="odd") == 150
    assert await queues.buried.kick("q", count=2**31, age_ms=3_600_000) == 0
    assert await queues.buried.kick("q", count=100) == 100
    assert await queues.buried.kick("q", count=2**31) == 50
    with pytest.raises(BadArg, match="AGE is -1"):
        await queues.buried.kick("q", count=1, age_ms=-1)


async def test_what_fails_at_once_is_kicked_once(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kick of all ends, although its tasks are buried again behind it faster than it goes on."""
    queues, session = await buried(node, 1, 5)
    (shard,) = shards_of(queues, "q")
    run = shard.run

    async def slow(name: str, args: Any, now_ms: int = 0) -> Any:
        moved, rank = await run(name, args, now_ms)
        at_ms = shard.now_ms
        await asyncio.sleep(0.002)  # the store's clock goes on
        for task in await queues.take(session, ["q"], count=10):
            await queues.bury(session, "q", task.id, task.lease, "again")
        shard.now_ms = at_ms
        return [moved, 0 if moved else rank]  # as on a long list: go on

    monkeypatch.setattr(shard, "run", slow)
    assert await queues.buried.kick("q", count=2**31) == 5


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [1, 4])
async def test_move_by_reason(node: Any, shards: int) -> None:
    queues, session = await buried(node, shards, 300)
    assert await queues.buried.move("q", "again", count=2**31, age_ms=3_600_000) == 0
    assert await queues.buried.move("q", "again", count=120, reason_prefix="odd") == 120
    assert await queues.buried.move("q", "again", count=2**31, reason_prefix="odd") == 30
    assert (await queues.admin.stats("q"))["buried"] == 150
    assert (await queues.admin.stats("again"))["ready"] == 150
    assert all(int(task.id[1:]) % 2 for task in await queues.take(session, ["again"], count=1000))


@pytest.mark.parametrize("shards", [1, 4])
async def test_those_of_one_reason_or_some_are_kicked_moved_and_deleted(
    node: Any, shards: int
) -> None:
    queues, session = await buried(node, shards, 60)
    verbs = queues.buried
    assert await verbs.left("q", reason="odd one") == await verbs.left("q", reason="even one") == 30
    assert await verbs.left("q") == await verbs.left("q", reason_prefix="") == 60
    assert await verbs.left("q", reason="odd") == await verbs.left("q", age_ms=3_600_000) == 0
    assert await verbs.kick("q", count=2**31, reason="odd") == 0
    assert await verbs.kick("q", count=5, reason="odd one") == 5
    assert await verbs.left("q", reason="odd one") == 25
    some = [f"t{n}" for n in range(0, 20, 2)]
    assert await verbs.delete("q", ids=[*some, "none", some[0]]) == 10
    assert await verbs.left("q", ids=some) == 0
    some = [f"t{n}" for n in range(20, 60, 2)]
    assert await verbs.move("q", "again", ids=[*some[:5], "none"]) == 5
    assert await verbs.left("q", ids=some) == 15
    assert await verbs.delete("q", count=2**31, reason="even one") == 15
    assert await verbs.delete("q", count=2**31, age_ms=3_600_000) == 0
    assert await verbs.delete("q", count=2**31) == 25
    assert (await queues.admin.stats("q"))["total"] == 5
    ids = {task.id for task in await queues.take(session, ["again"], count=100)}
    assert ids == set(some[:5])


async def test_a_call_ends_in_time_and_the_next_goes_on(node: Any) -> None:
    """Each does one piece at least: so many calls end it."""
    queues, _ = await buried(node, 2, 300)
    assert await queues.buried.move("q", "again", count=2**31, within_s=0) == 100
    assert await queues.buried.left("q") == 200
    kicked = await queues.buried.kick("q", count=2**31, reason="odd one", within_s=0)
    assert 0 < kicked < 150
    left = await queues.buried.left("q")
    assert left == 200 - kicked
    while left:
        done = await queues.buried.delete("q", count=2**31, within_s=0)
        assert done > 0
        left -= done
    assert await queues.buried.left("q") == 0


async def test_what_stops_in_the_middle_says_how_much_is_done(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores have lost their quorum: the rest is as it was, and the same again goes on."""
    queues, _ = await buried(node, 4, 300)
    last = shards_of(queues, "q")[-1]
    there = len((await queues.admin.page("q", "buried", 1000))[0])
    run = last.run

    async def broken(name: str, args: Any, *more: Any) -> Any:
        if name in ("queue.kick", "queue.delete_buried", "queue.read_buried"):
            raise NoQuorum("too few stores have it")
        return await run(name, args, *more)

    with monkeypatch.context() as patch:
        patch.setattr(last, "run", broken)
        for call in (
            queues.buried.kick("q", count=2**31, reason="odd one"),
            queues.buried.delete("q", count=2**31, reason="even one"),
        ):
            with pytest.raises(NoQuorum, match=r"^\d+ tasks are done; the same again goes on"):
                await call
        with pytest.raises(NoQuorum, match=r"^too few stores have it"):
            await queues.buried.move("q", "again", count=2**31)
    left = await queues.buried.left("q")
    assert 0 < left < there
    assert left == await queues.buried.left("q", reason="odd one") + await queues.buried.left(
        "q", reason="even one"
    )
    assert await queues.buried.delete("q", count=2**31) == left


async def test_two_operators_at_once_deal_with_each_task_once(node: Any) -> None:
    queues, session = await buried(node, 2, 400)
    verbs = queues.buried
    done = await asyncio.gather(
        verbs.kick("q", count=2**31, reason="odd one"),
        verbs.kick("q", count=2**31),
        verbs.delete("q", count=2**31, reason="even one"),
    )
    while left := await verbs.left("q"):  # what one has passed by as the other took others out
        done.append(await verbs.kick("q", count=left))
    assert sum(done) == 400
    taken = await queues.take(session, ["q"], count=1000)
    assert len(taken) == 400 - done[2]


async def test_what_is_edited_while_it_is_moved_is_not_lost(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read, then somebody else put it again, and it failed at once: it stays beside."""
    queues, session = await buried(node, 1, 3)
    (shard,) = shards_of(queues, "q")
    run = shard.run

    async def between(name: str, args: Any, *more: Any) -> Any:
        if name == "queue.delete_buried":
            await asyncio.sleep(0.005)  # the store's clock goes on
            assert await run("queue.put_again", ("t1", b"better", 0)) == 1
            (task,) = await queues.take(session, ["q"], task_id="t1")
            await queues.bury(session, "q", "t1", task.lease, "again")
        return await run(name, args, *more)

    with monkeypatch.context() as patch:
        patch.setattr(shard, "run", between)
        assert await queues.buried.move("q", "again", count=2**31) == 2
    (left,) = (await queues.admin.page("q", "buried"))[0]
    assert (left["id"], left["payload"], left["reason"]) == ("t1", b"better", "again")


async def test_an_edited_task_stands_once(node: Any) -> None:
    queues, session = await buried(node, 2, 4)
    since_ms = (await queues.admin.peek("q", "t1"))["buried_ms"]
    edit = queues.buried.put_again
    answers = await asyncio.gather(
        *(edit("q", "t1", b"better", buried_ms=since_ms) for _ in range(5))
    )
    assert sorted(answers) == [False] * 4 + [True]
    with pytest.raises(NotHeld, match="t1 of q is not buried any more, or was buried anew"):
        await edit("q", "t1", b"another", buried_ms=since_ms)
    (task,) = await queues.take(session, ["q"], count=10)
    assert (task.id, task.payload) == ("t1", b"better")
    with pytest.raises(NotHeld, match="t1 of q is leased"):
        await edit("q", "t1", b"another")
    await queues.ack(session, "q", [(task.id, task.lease)])
    with pytest.raises(NotFound, match="there is no task t1 in q any more"):
        await edit("q", "t1", b"another")
    for args, error in (
        (("q", "t2", b"x" * 2**21), TooBig), (("q", "a b", b""), BadArg), (("no such", "t2", b""), BadArg),
    ):  # fmt: skip
        with pytest.raises(error):
            await edit(*args)
    assert (await queues.admin.stats("q"))["buried"] == 3


async def test_what_is_chosen_in_no_way_or_in_two_is_refused(node: Any) -> None:
    queues, _ = await buried(node, 2, 2)
    for choice in (
        {}, {"count": 0}, {"count": 1, "age_ms": -1}, {"count": 1, "reason": "", "reason_prefix": "x"},
        {"ids": ["t1"], "count": 1}, {"ids": ["t1"], "reason": ""}, {"ids": ["a b"]}, {"ids": ["x"] * 1001},
    ):  # fmt: skip
        for call in (
            queues.buried.kick("q", **choice),
            queues.buried.delete("q", **choice),
            queues.buried.move("q", "never.made", **choice),
        ):
            with pytest.raises(BadArg):
                await call
    assert "never.made" not in await queues.admin.names()
    assert (await queues.admin.stats("q"))["buried"] == 2


async def test_peek_shows_the_history(node: Any) -> None:
    queues, _ = await buried(node, 2, 4)
    (tasks, _) = await queues.admin.page("q", "buried")
    assert len(tasks) == 4
    for task in [*tasks, await queues.admin.peek("q", "t1")]:
        (end,) = task["history"]
        assert (end["how"], end["attempt"], end["reason"]) == ("bury", 1, task["reason"])
        assert end["at_ms"] == task["buried_ms"]
