"""Searches over the shards of a queue: a bounded look a call, a cursor, and nothing seen twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.inspect import shards_of

from tidewarden.errors import BadArg
from tidewarden.queue import TaskSpec
from tidewarden.queue.reads import search
from tidewarden.queue.reads.condition import Condition, condition_of


def by(glob: str, place: str = "payload") -> Condition:
    return condition_of(glob, place, None)


async def filled(node: Any, shards: int = 3) -> Any:
    """Forty tasks, ten of them with an odd payload; some leased, some buried, some later."""
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": shards})
    for n in range(40):
        payload = json.dumps({"n": n, "odd": n % 4 == 1}).encode()
        options = {"delay_ms": 60_000} if n >= 30 else {}
        await queues.put("q", TaskSpec(payload, id=f"t{n:02}", priority=n % 3, **options))
    session = queues.open_session()
    for n in range(20):
        (task,) = await queues.take(session, ["q"], task_id=f"t{n:02}")
        if n < 10:
            await queues.bury(session, "q", task.id, task.lease, f"http {500 + n % 2}")
    return queues


async def walk(queues: Any, state: str, condition: Condition, count: int = 100) -> list[str]:
    """All ids that are found, in as many calls as it takes."""
    found: list[str] = []
    after = ""
    while True:
        told = await queues.search.find("q", state, count, after, condition=condition)
        assert len(told["tasks"]) <= count
        found += [one["id"] for one in told["tasks"]]
        after = told["after"]
        if not after:
            return found


@pytest.mark.parametrize("looked_max", [1, 3, 1000])
@pytest.mark.parametrize("count", [1, 2, 100])
async def test_each_that_fits_is_found_once(
    node: Any, monkeypatch: pytest.MonkeyPatch, looked_max: int, count: int
) -> None:
    queues = await filled(node)
    monkeypatch.setattr(search, "LOOKED_MAX", looked_max)
    monkeypatch.setattr(search, "PIECE", 2)
    wanted = {
        "buried": ["t01", "t05", "t09"],
        "leased": ["t13", "t17"],
        "ready": ["t21", "t25", "t29"],
        "delayed": ["t33", "t37"],
    }
    for state, ids in wanted.items():
        assert sorted(await walk(queues, state, by('*"odd": true*'), count)) == ids
        value = condition_of(None, "payload", "$.odd=true")
        assert sorted(await walk(queues, state, value, count)) == ids
        named = {"buried": "t05", "leased": "t15", "ready": "t25", "delayed": "t35"}[state]
        assert await walk(queues, state, by("*5", "id"), count) == [named]
    assert len(await walk(queues, "buried", by("http 501", "reason"), count)) == 5


async def test_tasks_of_lanes_that_wait_are_found(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"lane_limit": 1})
    for n in range(12):
        await queues.put("q", TaskSpec(str(n).encode(), id=f"t{n:02}", lane=f"\xff lane {n % 2}"))
    found = await walk(queues, "waiting", by("1*"), 1)
    assert sorted(found) == ["t10", "t11"]


async def test_an_answer_says_how_far_it_looked(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = await filled(node, 1)
    monkeypatch.setattr(search, "LOOKED_MAX", 4)
    none = await queues.search.find("q", "buried", condition=by("nothing"))
    assert (none["tasks"], none["looked"], none["unread"], bool(none["after"])) == ([], 4, 0, True)
    monkeypatch.setattr(search, "LOOKED_MAX", 1000)
    first = await queues.search.find("q", "buried", 1, condition=by('*"odd": true*'))
    assert ([one["id"] for one in first["tasks"]], first["looked"]) == (["t01"], 2)
    rest = await queues.search.find("q", "buried", 9, first["after"], condition=by("*"))
    assert (len(rest["tasks"]), rest["looked"], rest["after"]) == (8, 8, "")


async def test_long_payloads_end_a_call_early(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes are read in all, and of them so many by one script."""
    queues = (await node()).queues
    for n in range(12):
        await queues.put("q", TaskSpec(b"x" * 1000, id=f"t{n:02}"))
    (shard,) = shards_of(queues, "q")
    run, asked = shard.run, list[int]()

    async def counted(name: str, args: Any, *more: Any) -> Any:
        answer = await run(name, args, *more)
        if args[0] == "ids":
            asked.append(int(answer[1]))
        return answer

    monkeypatch.setattr(shard, "run", counted)
    monkeypatch.setattr(search, "PIECE_BYTES", 1500)
    monkeypatch.setattr(search, "BYTES_MAX", 4000)
    told = await queues.search.find("q", "ready", condition=by("*"))
    assert ([one["id"] for one in told["tasks"]], told["looked"], asked) == (
        ["t00", "t01", "t02", "t03"], 4, [2, 2],
    )  # fmt: skip
    asked.clear()
    told = await queues.search.find("q", "ready", condition=by("t11", "id"))
    assert ([one["id"] for one in told["tasks"]], told["looked"], asked) == (["t11"], 12, [1]), (
        "what no id names is not read"
    )
    assert await walk(queues, "ready", by("*")) == [f"t{n:02}" for n in range(12)]


async def test_tasks_that_go_meanwhile_are_left_out(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ids were read, then somebody kicked one and deleted another."""
    queues = await filled(node, 1)
    (shard,) = shards_of(queues, "q")
    run = shard.run

    async def between(name: str, args: Any, *more: Any) -> Any:
        if args[0] == "ids":
            await run("queue.kick", (1, "t01", "", 0))
            await run("queue.delete", ("t05", 0, 0))
        return await run(name, args, *more)

    monkeypatch.setattr(shard, "run", between)
    told = await queues.search.find("q", "buried", condition=by('*"odd": true*'))
    assert ([one["id"] for one in told["tasks"]], told["after"]) == (["t09"], "")


async def test_what_is_too_long_for_json_is_counted(node: Any) -> None:
    queues = (await node()).queues
    await queues.put("q", TaskSpec(b'{"a": 1, "b": "' + b"x" * 70_000 + b'"}', id="long"))
    await queues.put("q", TaskSpec(b'{"a": 1}', id="short"))
    await queues.put("q", TaskSpec(b"\xff\x00", id="bytes"))
    told = await queues.search.find("q", "ready", condition=condition_of(None, "payload", "$.a=1"))
    assert ([one["id"] for one in told["tasks"]], told["unread"]) == (["short"], 1)
    told = await queues.search.find("q", "ready", condition=by("*\x00", "payload"))
    assert [one["payload"] for one in told["tasks"]] == [b"\xff\x00"]


async def test_two_who_search_while_others_work(node: Any) -> None:
    queues = await filled(node)
    session = queues.open_session()

    async def work() -> None:
        for _ in range(10):
            (task,) = await queues.take(session, ["q"])
            await queues.ack(session, "q", [(task.id, task.lease)])

    one, other, _ = await asyncio.gather(
        walk(queues, "buried", by("*n*"), 2), walk(queues, "buried", by("*n*"), 3), work()
    )
    assert sorted(one) == sorted(other) == [f"t{n:02}" for n in range(10)]


async def test_what_is_refused(node: Any) -> None:
    queues = await filled(node, 2)
    for args in (
        ("q", "done"), ("q", "ready", 0), ("q", "ready", 1001), ("no such name", "ready"),
        ("q", "ready", 1, "9:"), ("q", "ready", 1, "x"), ("q", "ready", 1, "0:buried 5 a"),
    ):  # fmt: skip
        with pytest.raises(BadArg):
            await queues.search.find(*args, condition=by("*"))
