"""
What Q.CONFIG shows is what is in force in every shard and on every node, whoever raced and whatever
was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from support.inspect import (
    fail_backlog,
    settings_of,
    topics_of,
    transport_of,
    way_of,
)

from tidewarden.errors import BadArg, Error, Stale, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.settings import QueueSettings

SHARDS = 4


async def shown(n: Any) -> dict[str, Any]:
    found: dict[str, Any] = await n.queues.admin.settings("q")
    return found


async def in_force(n: Any, name: str, absent: Any) -> list[Any]:
    """What each shard's record says."""
    raw = [await n.link.call("HGET", f"{{tw:q:{at}}}:shard", name) for at in range(SHARDS)]
    return [type(absent)(one.decode()) if one is not None else absent for one in raw]


async def agree(nodes: Sequence[Any], name: str, absent: Any) -> Any:
    """What all show, which is to be in force in all shards, and to be known to all nodes."""
    async with asyncio.timeout(30):
        while True:
            there = {await in_force_word(n, name, absent) for n in nodes}
            told = [(await shown(n))[name] for n in nodes]
            known = [getattr(settings_of(n.queues)["q"], name) for n in nodes]
            if len({*there, *told, *known}) == 1:
                return told[0]
            await asyncio.sleep(0.005)


async def in_force_word(n: Any, name: str, absent: Any) -> Any:
    found = set(await in_force(n, name, absent))
    return found.pop() if len(found) == 1 else found and tuple(sorted(found))


async def pair(node: Any) -> tuple[Any, Any]:
    n0 = await node("n0")
    await n0.queues.admin.configure("q", {"shards": SHARDS})
    n1 = await node("n1")
    assert await n1.queues.catalog.shard_count("q") == SHARDS
    return n0, n1


def lets_go(n: Any) -> None:
    """It dies between the settings and the shards: whatever it would do is not done."""

    async def never(*_: Any) -> None:
        raise StoreDown("it died")

    n.queues.catalog.settle = never


async def test_of_two_who_set_at_once_one_is_in_force(node: Any) -> None:
    n0, n1 = await pair(node)
    for round_ in range(20):
        low = 10_000 + 10 * round_
        replies = await asyncio.gather(
            n0.queues.admin.configure("q", {"lease_ms": low}),
            n1.queues.admin.configure("q", {"lease_ms": low + 1}),
            return_exceptions=True,
        )
        assert {type(reply) for reply in replies} <= {dict, Stale}
        won = await agree((n0, n1), "lease_ms", 30_000)
        assert [reply["lease_ms"] for reply in replies if isinstance(reply, dict)][-1:] in (
            [won],
            [low],
            [low + 1],
        )
        assert won in (low, low + 1)


async def test_a_late_write_of_older_settings_changes_nothing(node: Any) -> None:
    n0, n1 = await pair(node)
    await n0.queues.admin.configure("q", {"lease_ms": 1000})
    (late,) = {tuple(await shard_args(n0))}
    await n1.queues.admin.configure("q", {"lease_ms": 2000})
    for at in range(SHARDS):
        await n0.queues.scripts.run("queue.configure", "q", at, late)
    assert await in_force(n0, "lease_ms", 30_000) == [2000] * SHARDS


async def shard_args(n: Any) -> list[str | int]:
    settings = settings_of(n.queues)["q"]
    return ["version", settings.version, *settings.shard_fields()]


@pytest.mark.parametrize("who", ["others", "itself", "a later one"])
async def test_who_dies_between_the_settings_and_the_shards(node: Any, who: str) -> None:
    n0, n1 = await pair(node)
    if who != "others":
        await n1.ears.stop()
        await n1.link.stop()
    settle = n0.queues.catalog.settle
    lets_go(n0)
    with pytest.raises(StoreDown):
        await n0.queues.admin.configure("q", {"lease_ms": 1234})
    if who == "itself":  # it did not die: its connection was lost
        n0.queues.catalog.settle = settle
        rest = (n0,)
    else:
        await n0.ears.stop()
        await n0.link.stop()
        rest = (n1,) if who == "others" else (await node("n2"),)
    assert await agree(rest, "lease_ms", 30_000) == 1234


@pytest.mark.parametrize("name", ["lane_limit", "capacity", "history"])
async def test_what_is_not_named_in_a_new_record_is_in_force_too(node: Any, name: str) -> None:
    n0, n1 = await pair(node)
    await asyncio.gather(
        *(n.queues.admin.configure("q", {name: 4 * (at + 1)}) for at, n in enumerate((n0, n1))),
        return_exceptions=True,
    )
    (found,) = set(await in_force(n0, name, -1))
    expected = (await shown(n1))[name]
    assert found == (expected // SHARDS if name == "capacity" else expected)


async def test_settings_that_an_older_version_wrote_without_a_number(node: Any) -> None:
    """It writes into the shards whatever they have; who knows of numbers goes on above theirs."""
    n0, n1 = await pair(node)
    for lease_ms in (1000, 2000, 3000):
        await n0.queues.admin.configure("q", {"lease_ms": lease_ms})
    raw = msgspec.json.decode(await n0.link.call("HGET", "{tw}:queues", "q"))
    assert raw.pop("version") > 2
    raw["lease_ms"] = 4000
    await n0.link.call("HSET", "{tw}:queues", "q", msgspec.json.encode(raw))
    for at in range(SHARDS):
        await n0.queues.scripts.run("queue.configure", "q", at, ["lease_ms", 4000])
    await n1.queues.admin.configure("q", {"urgent_ms": 5})
    assert await agree((n0, n1), "urgent_ms", 60_000) == 5
    assert await agree((n0, n1), "lease_ms", 30_000) == 4000


async def test_a_store_that_lost_the_settings_and_not_the_shards(node: Any) -> None:
    """On a cluster they lie on different servers."""
    n0, n1 = await pair(node)
    await n0.queues.admin.configure("q", {"lease_ms": 1000})
    before = await n0.link.call("HGET", "{tw}:queues", "q")
    await n0.queues.admin.configure("q", {"lease_ms": 2000})
    await agree((n0, n1), "lease_ms", 30_000)
    await n0.link.call("HSET", "{tw}:queues", "q", before)
    await n0.queues.catalog.recall()
    assert await agree((n0, n1), "lease_ms", 30_000) == 1000


# The order of a queue, which is in force from its first task on.


async def orders(n: Any) -> set[Any]:
    return set(await in_force(n, "order", "bands"))


async def test_two_who_change_the_order_at_once(node: Any) -> None:
    n0, n1 = await pair(node)
    for first, second in (("edf", "bands"), ("bands", "edf"), ("edf", "edf")):
        replies = await asyncio.gather(
            n0.queues.admin.configure("q", {"order": first, "late_share": 3}),
            n1.queues.admin.configure("q", {"order": second, "late_share": 4}),
            return_exceptions=True,
        )
        assert all(isinstance(reply, dict | Stale) for reply in replies), replies
        names = [f"t{i}" for i in range(12)]
        await asyncio.gather(
            *((n0, n1)[i % 2].queues.put("q", TaskSpec(id=name)) for i, name in enumerate(names))
        )
        assert await agree((n0, n1), "order", "bands") in (first, second)
        for name in names:
            await n0.queues.admin.delete("q", name)


async def test_a_task_that_is_put_while_the_order_changes_keeps_it(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n0, n1 = await pair(node)
    stats = n0.queues.admin.stats

    async def stats_then_put(queue: str) -> dict[str, Any]:
        found: dict[str, Any] = await stats(queue)
        await n1.queues.put("q", TaskSpec(id="late"))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(n0.queues.admin, "stats", stats_then_put)
        with pytest.raises(BadArg, match="order of q can be changed only while it is empty"):
            await n0.queues.admin.configure("q", {"order": "edf"})
    assert await agree((n0, n1), "order", "bands") == "bands"
    await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=f"t{i}")) for i in range(20)))
    assert (await n0.queues.admin.stats("q"))["total"] == 21


async def test_an_order_whose_settings_came_too_late(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else changed others meanwhile: the shards go back to the order that is stored."""
    n0, n1 = await pair(node)
    change = n0.queues.catalog.run_on_names

    async def changed_meanwhile(name: str, *args: Any) -> Any:
        if name == "queue.swap_settings":
            monkeypatch.undo()
            await n1.link.call(
                "HSET",
                "{tw}:queues",
                "q",
                msgspec.json.encode(
                    msgspec.structs.replace(settings_of(n1.queues)["q"], late_share=7, version=9)
                ),
            )
        return await change(name, *args)

    monkeypatch.setattr(n0.queues.catalog, "run_on_names", changed_meanwhile)
    with pytest.raises(Stale):
        await n0.queues.admin.configure("q", {"order": "edf"})
    await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=f"t{i}")) for i in range(20)))
    assert await agree((n0, n1), "order", "bands") == "bands"
    assert await agree((n0, n1), "late_share", 8) == 7


@pytest.mark.thorough
@pytest.mark.parametrize("closed", [1, SHARDS])
async def test_who_dies_over_an_order(node: Any, closed: int) -> None:
    n0, n1 = await pair(node)
    layout = settings_of(n0.queues)["q"].layout + 1
    for at in range(closed):
        assert (
            await n0.queues.scripts.run(
                "queue.configure", "q", at, ["same_layout", layout, "order", "edf"]
            )
            == 1
        )
    await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=f"t{i}")) for i in range(20)))
    assert await agree((n0, n1), "order", "bands") == "bands"


async def test_an_order_changes_beside_schedules(node: Any) -> None:
    n0, n1 = await pair(node)
    await n0.link.call("HSET", "{tw:q:0}:schedules", "s", "x")
    await n0.queues.admin.configure("q", {"order": "edf"})
    assert await agree((n0, n1), "order", "bands") == "edf"
    with pytest.raises(
        BadArg, match="shards of q can be changed only while it is empty and has no schedules"
    ):
        await n0.queues.admin.configure("q", {"shards": 2})
    await n0.link.call("DEL", "{tw:q:0}:schedules")


# A message of new settings that meets a lost connection.


@pytest.mark.parametrize("how", ["lost", "away"])
async def test_settings_that_could_not_be_read_are_read_later(
    node: Any, eventually: Any, how: str
) -> None:
    """Nobody repeats the message: its node would go on by what it knew."""
    n0, n1 = await pair(node)
    transport_of(n1.link).pause_reading()
    if how == "away":
        way, opened = way_of(n1.link), way_of(n1.link).open
        refusals = 3

        async def refused(*args: Any) -> Any:
            nonlocal refusals
            refusals -= 1
            if refusals > 0:
                fail_backlog(n1.link, "it took too long")
                raise StoreDown("away")
            return await opened(*args)

        way.open = refused
    asked = n1.link.calls
    await n0.queues.admin.configure("q", {"lease_ms": 1234})
    await eventually(lambda: n1.link.calls > asked)
    transport_of(n1.link).abort()
    await eventually(lambda: settings_of(n1.queues)["q"].lease_ms == 1234)


async def test_a_topic_that_could_not_be_read_is_read_later(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    for n in (n0, n1):
        await n.queues.topics.link("topic", "a")
    await eventually(lambda: topics_of(n1.queues).get("topic") == ("a",))
    transport_of(n1.link).pause_reading()
    asked = n1.link.calls
    await n0.queues.topics.link("topic", "b")
    await eventually(lambda: n1.link.calls > asked)
    transport_of(n1.link).abort()
    await eventually(lambda: set(topics_of(n1.queues).get("topic", ())) == {"a", "b"})


def test_what_is_the_users_is_shown() -> None:
    assert not {"layout", "version"} & QueueSettings(layout=2, version=3).shown().keys()
    assert issubclass(Stale, Error)
