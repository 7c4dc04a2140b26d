"""What is buried, with its history: shown, kicked and moved by filter, or all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import shards_of

from tidewarden.errors import BadArg
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
    assert desk.run("queue.read_buried", 10, 1000, 0, "dns", 0, 0) == [[], -1]
    assert desk.run("queue.read_buried", 10, 1000, 0, "http", 0, 1001) == [[], -1]
    rows, rank = desk.run("queue.read_buried", 10, 1000, 0, "http", 0, 1000)
    assert ([row[0] for row in rows], rank) == ([b"t3"], -1)


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


async def test_peek_shows_the_history(node: Any) -> None:
    queues, _ = await buried(node, 2, 4)
    (tasks, _) = await queues.admin.page("q", "buried")
    assert len(tasks) == 4
    for task in [*tasks, await queues.admin.peek("q", "t1")]:
        (end,) = task["history"]
        assert (end["how"], end["attempt"], end["reason"]) == ("bury", 1, task["reason"])
        assert end["at_ms"] == task["buried_ms"]
