"""The plain verbs at the door, on real queues: the same replies as the ordinary ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors import doubles
from support.inspect import parked_in
from support.waiting import eventually

from tidewarden.queue import TaskSpec


@pytest.fixture
async def door(node: Any) -> AsyncIterator[Any]:
    n0 = await node()
    await n0.queues.catalog.shard_count("q")
    async with doubles.Door(queues=n0.queues) as opened:
        yield opened


async def test_put_take_ack(door: Any) -> None:
    line = await door.dial()
    (task_id,) = await line.replies(("Q.PUT", "q", b"\x00\r\n\xff"))
    ((row,),) = await line.replies("q.take wait 5 from q")
    assert row[:2] == [b"q", task_id]
    assert row[3:5] == [b"\x00\r\n\xff", 1]
    lease = row[2]
    assert await line.replies(("Q.ACK", "q", task_id, str(lease))) == [b"OK"]
    (again,) = await line.replies(("Q.ACK", "q", task_id, str(lease)))
    assert str(again).startswith("NOTHELD This lease has ended")
    assert await line.replies("Q.TAKE FROM q") == [[]]
    await line.close()


async def test_many_at_once_come_back_in_their_order(door: Any) -> None:
    line = await door.dial()
    puts = await line.replies(*[("Q.PUT", "q", b"%d" % n) for n in range(200)])
    assert puts == sorted(set(puts))
    taken = await line.replies(*["Q.TAKE FROM q"] * 201)
    assert [rows[0][1] for rows in taken[:200]] == puts
    assert taken[200] == []
    acks = [("Q.ACK", "q", rows[0][1], str(rows[0][2])) for rows in taken[:200]]
    *acked, not_held, pong = await line.replies(*acks, "Q.ACK q none 1", "PING")
    assert acked == [b"OK"] * 200
    assert str(not_held).startswith("NOTHELD")
    assert pong == b"PONG"
    await line.close()


async def test_what_is_not_right_is_refused_by_the_ordinary_way(door: Any) -> None:
    line = await door.dial()
    replies = await line.replies(
        "Q.TAKE WAIT soon FROM q", "Q.TAKE COUNT 1 q", "Q.ACK q a lease", ("Q.ACK", "q", b"\xff", "1"), "Q.ACK q a 9007199254740993",
        "Q.PUT _q x", ("Q.PUT", b"\xff", "x"), "Q.TAKE WAIT 99999999999 FROM q",
    )  # fmt: skip
    assert [str(reply).partition(" ")[0] for reply in replies] == [
        *["BADARG"] * 5,
        "DENIED",
        *["BADARG"] * 2,
    ]
    await line.close()


async def test_a_waiting_take_holds_up_what_follows_and_ends_with_its_connection(door: Any) -> None:
    queues, line, other = door.queues, await door.dial(), await door.dial()
    line.send("Q.TAKE WAIT 20000 FROM q", "PING")
    await other.ask("PING")
    await eventually(lambda: parked_in(queues, "q"))
    assert door.server.context.waiting == 1
    await other.replies("Q.PUT q x")
    ((row,), pong) = [await line.reply() for _ in range(2)]
    assert row[3] == b"x"
    assert pong == b"PONG"
    line.send("Q.TAKE WAIT 20000 FROM q")
    await eventually(lambda: parked_in(queues, "q"))
    await line.close()
    await eventually(lambda: not parked_in(queues, "q"))
    # what the first held came back as a loss
    ((row,),) = await other.replies("Q.TAKE WAIT 20000 FROM q")
    assert row[3] == b"x"
    assert door.server.context.waiting == 0
    await other.close()


async def test_a_door_that_closes_tells_who_waits(door: Any) -> None:
    line = await door.dial()
    line.send("Q.TAKE WAIT 20000 FROM q")
    await eventually(lambda: parked_in(door.queues, "q"))
    stopped = asyncio.ensure_future(door.server.stop(5))
    assert (await line.line()).startswith(b"-DRAINING")
    await stopped


async def test_a_full_queue_is_an_error_of_the_put(door: Any) -> None:
    await door.queues.admin.configure("q", {"capacity": 1})
    line = await door.dial()
    first, second = await line.replies("Q.PUT q x", "Q.PUT q y")
    assert len(first) == 20
    assert str(second).startswith("FULL ")
    assert (
        await door.queues.put("q", TaskSpec(b"z", if_exists="keep", id=first.decode()))
        == first.decode()
    )
    await line.close()
