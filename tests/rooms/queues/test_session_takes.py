"""What is taken under a session that several connections share, and how its leases end."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any
from uuid import UUID

import redis
from support.inspect import parked_in
from support.queues.shared_sessions import LONG_MS, holder, joined, n0, one, state

from tidewarden.queue import TaskSpec

__all__ = ["n0"]  # a fixture


async def test_any_connection_acknowledges_what_its_session_took(n0: Any) -> None:
    queues = n0.queues
    first, uuid = await joined(queues)
    await queues.put("q", TaskSpec(id="a"))
    await queues.put("q", TaskSpec(id="b"))
    a, b = await queues.take(first, ["q"], count=2)
    await queues.close_session(first)
    second, _ = await joined(queues, uuid)
    assert await queues.touch(second, "q", "a", a.lease, 60_000) > a.lease_end_ms
    assert await queues.ack(second, "q", [("a", a.lease)]) == [1]
    assert await queues.ack(queues.open_session(), "q", [("b", b.lease)]) == [1], (
        "the number is the right"
    )
    assert (await queues.admin.stats("q"))["total"] == 0


async def test_a_waiting_take_of_a_closed_connection_takes_nothing(
    n0: Any, eventually: Any
) -> None:
    queues = n0.queues
    gone, uuid = await joined(queues)
    await joined(queues, uuid)
    await queues.admin.settings("q")
    waiting = queues.take(gone, ["q"], wait_ms=60_000)
    await eventually(lambda: parked_in(n0.queues, "q"))
    await queues.close_session(gone)
    await eventually(waiting.cancelled)
    await queues.put("q", TaskSpec(id="a"))
    assert await state(queues, "a") == "ready"


async def test_a_take_answered_to_a_gone_connection_goes_back_uncounted(
    n0: Any, eventually: Any
) -> None:
    queues = n0.queues
    gone, uuid = await joined(queues)
    await joined(queues, uuid)
    await queues.put("q", TaskSpec(id="a"))
    await queues.take(gone, ["q"], task_id="none")  # so that the session is known to take from here
    under_way = queues.take(gone, ["q"])
    await asyncio.sleep(0)  # the script is sent
    await queues.close_session(gone)
    assert under_way.cancelled()
    while await state(queues, "a") != "ready":
        await asyncio.sleep(0)
    found = await queues.admin.peek("q", "a")
    assert (found["attempts"], found["losses"]) == (0, 0)


async def test_every_way_that_a_lease_ends_is_heard_by_its_session(n0: Any, valkey: Any) -> None:
    """
    What the session knows of its leases is bounded by what it holds: conftest's audit looks after
    each test, too.
    """
    queues = n0.queues
    session, _ = await joined(queues)
    names = ["ack", "acks", "release", "fail", "bury", "delete", "purge", "free", "expire", "keep"]
    await asyncio.gather(*(queues.put("q", TaskSpec(id=name)) for name in names))
    lease = {
        task.id: task.lease
        for task in await queues.take(session, ["q"], count=100, lease_ms=LONG_MS)
    }
    with redis.Redis(unix_socket_path=valkey.path) as client:
        assert client.zcard("{tw:q:0}:held") == client.zcard("{tw:q:0}:leased:~") == len(names)
    await queues.ack(session, "q", [("ack", lease["ack"])])
    await queues.ack(session, "q", [("acks", lease["acks"]), ("none", 1)])
    await queues.release(session, "q", "release", lease["release"], 60_000)
    await queues.fail(session, "q", "fail", lease["fail"], 60_000)
    await queues.bury(session, "q", "bury", lease["bury"])
    await queues.admin.delete("q", "delete", force=True)
    await queues.scripts.run("queue.purge", "q", 0, ["leased", 1, "purge"])
    await queues.touch(session, "q", "expire", lease["expire"], 1)
    while await state(queues, "expire") == "leased":
        await queues.take(queues.open_session(), ["q"], task_id="none")
    with redis.Redis(unix_socket_path=valkey.path) as client:
        left = {entry[32:].decode() for entry in client.zrange("{tw:q:0}:held", 0, -1)}
    assert left == {"free", "keep"}
    assert len((await queues.admin.page("q", "leased"))[0]) == 2
    found = await queues.admin.peek("q", "keep")
    assert (found["session"], found["node"]) == (str(UUID(session.uuid)), "")
    assert await queues.bulk.release_all("q") == 2
    assert (await queues.admin.stats("q"))["leased"] == 0


async def test_plain_connections_do_not_pay_for_sessions(n0: Any, valkey: Any) -> None:
    """Not one command of put, take, touch, ack or a close concerns sessions when there are none."""
    queues = n0.queues
    seen: list[str] = []
    ready, done = threading.Event(), threading.Event()

    def watch() -> None:
        with redis.Redis(unix_socket_path=valkey.path) as client, client.monitor() as monitor:
            ready.set()
            for line in monitor.listen():
                seen.append(line["command"])
                if "the end" in line["command"]:
                    done.set()
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    await asyncio.to_thread(ready.wait, 20)
    session = queues.open_session()
    await asyncio.gather(*(queues.put("q", TaskSpec()) for _ in range(5)))
    tasks = await queues.take(session, ["q"], count=3)
    await queues.touch(session, "q", tasks[0].id, tasks[0].lease)
    await queues.ack(session, "q", [(task.id, task.lease) for task in tasks[:2]])
    await queues.close_session(session)
    await n0.link.call("ECHO", "the end")
    await asyncio.to_thread(done.wait, 20)
    thread.join(20)
    commands = [
        line for line in seen if not line.startswith(("EVAL", "SCRIPT", "FCALL", "FUNCTION"))
    ]
    assert any("leased:n0.1" in line for line in commands)
    # A session's id, not any ~: a packed time may have one.
    assert not [line for line in commands if re.search(r"~[0-9a-f]{32}|:held|:session", line)]


async def test_a_pipeline_of_takes_of_many_sessions_is_one_script(n0: Any) -> None:
    queues = n0.queues
    sessions = [(await joined(queues))[0] for _ in range(5)]
    plain = queues.open_session()
    await asyncio.gather(*(queues.put("q", TaskSpec(id=f"t{n}")) for n in range(12)))
    for session in sessions:
        await queues.take(session, ["q"], task_id="none")
    before = n0.link.calls
    taken = await asyncio.gather(
        *(queues.take(session, ["q"], count=2) for session in (*sessions, plain))
    )
    assert n0.link.calls == before + 1
    assert sorted(task.id for tasks in taken for task in tasks) == sorted(
        f"t{n}" for n in range(12)
    )
    for session, tasks in zip(sessions, taken, strict=False):
        for task in tasks:
            assert await holder(queues, task.id) == f"~{session.uuid}"
    assert await holder(queues, taken[-1][0].id) == "n0.1"


async def test_a_take_under_a_boot_that_came_back_joins_first(node: Any) -> None:
    n1 = await node("n1", boot=4)
    session, _ = await joined(n1.queues)
    for task_id, boot in (("a", 4), ("b", 5), ("c", 6)):  # also from a shard that it took from
        await n1.queues.put("q", TaskSpec(id=task_id))
        await n1.queues.session_expiry.bury(1, "n1", boot)
        n1.queues.catalog.holder = f"n1.{boot + 1}"  # and nobody has joined again yet
        assert (await one(n1.queues, session)).id == task_id
        assert session.shared.holder == f"n1.{boot + 1}"


async def test_a_session_takes_from_many_shards_and_queues(n0: Any) -> None:
    queues = n0.queues
    await queues.admin.configure("wide", {"shards": 4})
    session, _ = await joined(queues, grace_ms=0)
    await asyncio.gather(
        *(queues.put("wide", TaskSpec()) for _ in range(40)), queues.put("q", TaskSpec())
    )
    assert len(await queues.take(session, ["wide", "q"], count=41)) == 41
    calls = n0.link.calls
    await queues.take(session, ["wide", "q"])
    assert n0.link.calls == calls + 5, "the places are known: one script a shard"
    await queues.close_session(session)
    assert (await queues.admin.stats("wide"))["ready"] == 40
    assert (await queues.admin.stats("q"))["ready"] == 1
