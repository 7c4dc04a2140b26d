"""
Q.WAIT: how a task ends, told to whoever waits for it, on any node; and the result an ack leaves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidewarden.errors import BadArg, Full, TooBig
from tidewarden.queue import TaskSpec
from tidewarden.queue.shards.shard import Shard

LONG_MS = 60_000


async def taken(n: Any, name: str, session: Any = None) -> Any:
    (task,) = await n.queues.take(session or n.queues.open_session(), ["q"], task_id=name)
    return task


async def noted(eventually: Any, n: Any, count: int = 1) -> None:
    """Until the store knows that the ends of so many tasks are waited for."""
    for _ in range(5000):
        if await n.link.call("HLEN", "{tw:q:0}:waits") == count:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{count} waits were not noted")


async def end_it(n: Any, name: str, how: str) -> None:
    session = n.queues.open_session()
    if how == "deleted":
        assert await n.queues.admin.delete("q", name) == 1
        return
    task = await taken(n, name, session)
    if how == "done":
        assert await n.queues.ack(session, "q", [(name, task.lease)], b"42") == [1]
    else:
        await n.queues.bury(session, "q", name, task.lease, "why")


@pytest.mark.parametrize(("how", "result"), [("done", b"42"), ("buried", b"why"), ("deleted", b"")])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_wait_is_woken_by_the_end(
    node: Any, eventually: Any, how: str, result: bytes, elsewhere: bool
) -> None:
    n0 = await node("n0")
    n1 = await node("n1") if elsewhere else n0
    await n0.queues.put("q", TaskSpec(id="a"))
    waits = [asyncio.ensure_future(n0.queues.wait("q", "a", LONG_MS)) for _ in range(2)]
    await noted(eventually, n0)
    await end_it(n1, "a", how)
    assert await asyncio.gather(*waits) == [(how, result)] * 2
    await noted(eventually, n0, 0)


@pytest.mark.parametrize(("how", "result"), [("done", b"42"), ("buried", b"why"), ("deleted", b"")])
async def test_a_task_that_has_ended_before(node: Any, how: str, result: bytes) -> None:
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="a"))
    await end_it(n0, "a", how)
    for wait_ms in (0, LONG_MS):
        assert await n0.queues.wait("q", "a", wait_ms) == (how, result)


async def test_what_is_not_known(node: Any) -> None:
    queues = (await node()).queues
    assert await queues.wait("q", "none", LONG_MS) == ("unknown", b"")
    await queues.admin.configure("q", {"dedup_ms": 0})
    await queues.put("q", TaskSpec(id="a"))
    await queues.admin.delete("q", "a")
    assert await queues.wait("q", "a", LONG_MS) == ("unknown", b""), "nothing is remembered"


async def test_a_wait_that_is_over_leaves_nothing(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a"))
    assert await n0.queues.wait("q", "a", 0) == ("timeout", b"")
    other = asyncio.ensure_future(n1.queues.wait("q", "a", LONG_MS))
    await noted(eventually, n0)
    assert await n0.queues.wait("q", "a", 20) == ("timeout", b"")
    other.cancel()
    await noted(eventually, n0, 0)


async def test_a_lost_wake_up_is_covered(node: Any, eventually: Any) -> None:
    """The node hears nothing for a while; when it hears again, it asks."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a"))
    wait = asyncio.ensure_future(n0.queues.wait("q", "a", LONG_MS))
    await noted(eventually, n0)
    await n0.ears.call("UNSUBSCRIBE", "{tw}:wake:n0.1")
    await end_it(n1, "a", "done")
    n0.queues.wakeups.wake_all()  # what the daemon does after each connect
    assert await wait == ("done", b"42")


async def test_a_task_that_ends_between_the_question_and_the_answer(node: Any) -> None:
    """Ends and waits of one moment, in either order: none stays."""
    n0, n1 = await node("n0"), await node("n1")
    names = [f"t{n}" for n in range(50)]
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=name)) for name in names))
    session = n1.queues.open_session()
    tasks = await n1.queues.take(session, ["q"], count=50)
    waits = [asyncio.ensure_future(n0.queues.wait("q", name, LONG_MS)) for name in names]
    acks = [
        n1.queues.ack(session, "q", [(task.id, task.lease)], task.id.encode()) for task in tasks
    ]
    assert await asyncio.gather(*acks) == [[1]] * 50
    assert await asyncio.gather(*waits) == [("done", name.encode()) for name in names]


async def test_a_node_that_goes_down_ends_its_waits(node: Any, eventually: Any) -> None:
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="a"))
    wait = asyncio.ensure_future(n0.queues.wait("q", "a", LONG_MS))
    await noted(eventually, n0)
    n0.queues.end_waits()
    assert await wait == ("timeout", b"")
    await noted(eventually, n0, 0)


async def test_what_is_refused(node: Any, eventually: Any) -> None:
    n0 = await node("n0", flags={"limits.payload_bytes": "10", "limits.waiting_max": "1"})
    session = n0.queues.open_session()
    for queue, name, ms in (
        ("q", "a b", 1),
        ("q", "", 1),
        ("q", "a", -1),
        ("q", "a", 10**12),
        ("no such name", "a", 1),
    ):
        with pytest.raises(BadArg):
            await n0.queues.wait(queue, name, ms)
    with pytest.raises(TooBig, match="the result has 11 bytes"):
        await n0.queues.ack(session, "q", [("a", 1)], b"x" * 11)
    await n0.queues.put("q", TaskSpec(id="a"))
    wait = asyncio.ensure_future(n0.queues.wait("q", "a", LONG_MS))
    await noted(eventually, n0)
    with pytest.raises(Full):
        await n0.queues.wait("q", "b", 1)
    wait.cancel()
    await noted(eventually, n0, 0)


def test_the_result_stands_in_the_tombstone(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one()
    assert desk.run("queue.ack", "a", row.lease, b"\x00 ack\n") == [1]
    assert desk.run("queue.wait", "a", 0) == [[b"done", b"\x00 ack\n"]]
    assert desk.ack(row) == [1], "the same ack again, without the result"
    assert desk.put("a") == 0
    assert desk.ack(("a", row.lease + 1)) == [0]


def test_a_result_is_kept_for_an_id_of_ours_too(desk: Any) -> None:
    desk.put("made", own=True)
    desk.put("plain", own=True)
    for name, result in (("made", b"1"), ("plain", b"")):
        row = desk.take_one(task_id=name)
        assert desk.run("queue.ack", name, row.lease, result) == [1]
    assert desk.run("queue.wait", "made", 0, "plain", 0) == [[b"done", b"1"], [b"unknown", b""]]


def test_a_deleted_id_may_be_put_at_once(desk: Any) -> None:
    desk.put("a")
    desk.run("queue.delete", "a", 0, 0)
    assert desk.put("a", if_exists="fail") == 1
    assert desk.run("queue.wait", "a", 0) == [[b"waits", b""]]


def test_a_full_store_lets_a_wait_through(desk: Any) -> None:
    desk.put("a")
    desk.client.config_set("maxmemory", "1")
    try:
        assert desk.run("queue.wait", "a", 1) == [[b"waits", b""]]
        assert desk.run("queue.unwait", "a") == 1
        assert desk.run("queue.unwait", "a") == 0
    finally:
        desk.client.config_set("maxmemory", "0")


async def test_a_note_that_is_taken_back_late_leaves_nobody_waiting(
    node: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not know the script is sent it again, behind what was sent meanwhile."""
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="a"))
    run, go, late = Shard.run, asyncio.Event(), []

    def run_late(self: Shard, name: str, args: Any, now_ms: int = 0) -> Any:
        async def one() -> Any:
            await go.wait()
            return await run(self, name, args, now_ms)

        if name != "queue.unwait":
            return run(self, name, args, now_ms)
        late.append(asyncio.ensure_future(one()))
        return late[-1]

    monkeypatch.setattr(Shard, "run", run_late)
    assert (await n0.queues.wait("q", "a", 20))[0] == "timeout"
    assert late
    again = asyncio.ensure_future(n0.queues.wait("q", "a", LONG_MS))
    await n0.queues.wait("q", "a", 0)  # behind it
    go.set()
    await late[0]
    await noted(eventually, n0)
    await end_it(n0, "a", "done")
    async with asyncio.timeout(30):
        assert await again == ("done", b"42")
