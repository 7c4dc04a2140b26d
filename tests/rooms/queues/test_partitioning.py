"""Where an id lies: in the shard that it carries, else in that of its hash."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest
from support.inspect import strategies_of

from tidewarden.errors import BadArg, ConfigError, Denied, Internal
from tidewarden.queue import TaskSpec
from tidewarden.queue.partitioning import carried, carry, load_strategies, shard_of


@pytest.mark.parametrize("shard", [0, 1, 9, 10, 255])
def test_a_carried_shard_is_found(shard: int) -> None:
    task_id = carry("order-17", shard)
    assert carried(task_id, 256) == shard
    assert shard_of(task_id, 256) == shard
    assert shard_of(carry("a~1", shard), 256) == shard, "the last mark counts"


@pytest.mark.parametrize(
    "task_id",
    ["order", "a~", "~", "a~01", "a~00", "a~4", "a~256", "a~1000", "a~-1", "a~1 ", "a~²", "a~٣"],
)
def test_an_id_that_names_no_shard_of_the_queue_lies_by_its_hash(task_id: str) -> None:
    assert carried(task_id, 4) is None
    assert shard_of(task_id, 4) == zlib.crc32(task_id.encode()) % 4


def test_a_queue_of_one_shard_has_every_id() -> None:
    assert shard_of("a~3", 1) == shard_of("a", 1) == shard_of("a~0", 1) == 0


# --- strategies


def by_tens(task_id: str, payload: bytes, shards: int) -> int:
    """A strategy as a user writes one: the payload's first byte says the shard."""
    return payload[0] - 48 if payload else 0


async def by_later(task_id: str, payload: bytes, shards: int) -> int:
    return 0


MINE = f"{__name__}:by_tens"
FLAGS = {"queues.strategies": MINE}


async def spread(queues: Any, queue: str) -> list[int]:
    """How many tasks lie in each shard."""
    return [
        shard["total"] for shard in (await queues.admin.stats(queue, by_shard=True))["by_shard"]
    ]


async def test_round_robin_fills_the_shards_evenly_and_takes_empty_them_evenly(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": 4, "strategy": "round_robin"})
    names = await asyncio.gather(*(queues.put("q", TaskSpec()) for _ in range(40)))
    assert len(set(names)) == 40
    assert all(
        0 <= (carried(name, 4) if carried(name, 4) is not None else -1) < 4 for name in names
    )
    assert await spread(queues, "q") == [10, 10, 10, 10]
    session = queues.open_session()
    for left in range(9, -1, -1):  # a round of four takes has one of each shard
        for _ in range(4):
            (task,) = await queues.take(session, ["q"])
            assert (await queues.admin.peek("q", task.id))["state"] == "leased"
            assert await queues.ack(session, "q", [(task.id, task.lease)]) == [1]
        assert await spread(queues, "q") == [left] * 4


async def test_round_robin_keeps_ids_of_the_callers(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": 4, "strategy": "round_robin"})
    for _ in range(3):
        assert await queues.put("q", TaskSpec(id="order-17")) == "order-17"
        assert await queues.put("q", TaskSpec(id="order-18~2")) == "order-18~2"
    assert (await queues.admin.stats("q"))["total"] == 2
    assert queues.catalog.shard_of("q", "order-18~2") == 2


async def test_a_function_of_the_users_chooses(node: Any) -> None:
    queues = (await node(flags=FLAGS)).queues
    assert (await queues.admin.configure("q", {"shards": 4, "strategy": MINE}))["strategy"] == MINE
    assert await queues.put("q", TaskSpec(b"3", id="a")) == "a~3"
    assert await queues.put("q", TaskSpec(b"3", id="a")) == "a~3", (
        "the same put again is the same task"
    )
    assert await queues.put("q", TaskSpec(b"0", id="a~3")) == "a~3", "the answered id finds it, too"
    made = await queues.put_waiting("q", TaskSpec(b"1"), 10)
    assert made.endswith("~1")
    assert await spread(queues, "q") == [0, 1, 0, 1]
    for payload in (b"4", b"/"):
        with pytest.raises(Internal, match=r"answered -?\d+; allowed is 0 to 3"):
            await queues.put("q", TaskSpec(payload))
    with pytest.raises(BadArg, match="longer than 200 bytes with its shard"):
        await queues.put("q", TaskSpec(b"1", id="x" * 199))
    assert (await queues.admin.stats("q"))["total"] == 2


async def test_a_function_that_fails_is_named(node: Any) -> None:
    queues = (await node(flags=FLAGS)).queues
    strategies_of(queues)[MINE] = lambda *_: 1 // 0
    await queues.admin.configure("q", {"shards": 2, "strategy": MINE})
    with pytest.raises(Internal, match="by_tens failed: ZeroDivisionError"):
        await queues.put("q", TaskSpec())


async def test_a_node_that_does_not_know_the_function_refuses_puts_and_serves_the_rest(
    node: Any,
) -> None:
    n0 = await node("n0", flags=FLAGS)
    await n0.queues.admin.configure("q", {"shards": 4, "strategy": MINE})
    await n0.queues.put("q", TaskSpec(b"2", id="a"))
    n1 = await node("n1")
    with pytest.raises(Denied, match=f"the strategy {MINE} is not among"):
        await n1.queues.put("q", TaskSpec(b"2", id="b"))
    (task,) = await n1.queues.take(n1.queues.open_session(), ["q"])
    assert task.id == "a~2"
    assert await n1.queues.ack(n1.queues.open_session(), "q", [(task.id, task.lease)]) == [1]
    with pytest.raises(
        BadArg, match=r"allowed at this node are hash, round_robin; .*\[queues\] strategies"
    ):
        await n1.queues.admin.configure("q", {"strategy": "os:getpid"})


def test_functions_are_loaded_by_their_names() -> None:
    assert load_strategies([MINE, MINE.replace(":", ".")]) == {
        MINE: by_tens,
        MINE.replace(":", "."): by_tens,
    }
    with pytest.raises(ConfigError) as error:
        load_strategies(
            ["no_such_module:f", f"{__name__}:absent", f"{__name__}:MINE", f"{__name__}:by_later"]
        )
    assert len(error.value.problems) == 4
    assert "not async" in error.value.problems[3]


async def test_the_callers_id_under_a_topic_is_placed_in_each_queue(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("wide", {"shards": 8, "strategy": "round_robin"})
    await queues.topics.link("events", "wide")
    made = await queues.put("events", TaskSpec())
    assert await queues.put("events", TaskSpec(id=made)) == made
    assert (await queues.admin.stats("wide"))["total"] == 1
