"""
Sessions that several connections share, on several nodes, and that outlive the last of them by
their grace.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from support.inspect import run_session_script, shards_of
from support.queues.shared_sessions import graces_held, joined, keys, n0, one, state

from tidewarden.errors import BadArg, Full, Internal, NotFound, Stale, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.shards.shard import Shard

__all__ = ["n0"]  # a fixture


async def test_leases_stay_until_the_last_connection_has_gone_and_the_grace_is_over(
    n0: Any, valkey: Any, eventually: Any
) -> None:
    queues = n0.queues
    first, uuid = await joined(queues)
    second, same = await joined(queues, uuid, grace_ms=None)
    assert uuid == same == str(UUID(uuid))
    await asyncio.gather(*(queues.put("q", TaskSpec(id=f"t{n}")) for n in range(3)))
    await queues.take(first, ["q"], count=2)
    await one(queues, second)
    await queues.close_session(first)
    assert (await queues.admin.stats("q"))["leased"] == 3, "the other connection has them too"
    await queues.close_session(second)
    assert (await queues.admin.stats("q"))["leased"] == 3, "the grace runs"
    assert queues.sessions.counts() == {"attached": 0, "detached": 1, "ended_total": 0}
    last, _ = await joined(queues, uuid, grace_ms=30)
    await queues.close_session(last)
    await eventually(lambda: queues.session_expiry.ended == 1)
    found = await queues.admin.peek("q", "t0")
    assert (found["state"], found["attempts"], found["losses"]) == ("ready", 0, 1)
    assert found["reason"] == "its session ended"
    assert (await queues.admin.stats("q"))["ready"] == 3
    assert keys(valkey) == [], "nothing of it stays"
    with pytest.raises(NotFound, match="has ended, or never was"):
        await joined(queues, uuid)


async def test_one_of_two_connections_of_a_node_goes_and_the_other_keeps_the_leases(
    n0: Any, eventually: Any
) -> None:
    queues = n0.queues
    first, uuid = await joined(queues)
    # nothing outlives the last connection: it is the second that keeps what there is
    second, _ = await joined(queues, uuid, grace_ms=0)
    await asyncio.gather(*(queues.put("q", TaskSpec(id=f"t{n}")) for n in range(2)))
    of_first, of_second = await one(queues, first), await one(queues, second)
    await queues.close_session(first)
    assert queues.sessions.counts() == {"attached": 1, "detached": 0, "ended_total": 0}
    for task in (of_first, of_second):
        assert (await queues.admin.peek("q", task.id))["state"] == "leased", task.id
        assert await queues.touch(second, "q", task.id, task.lease) > 0
    await queues.close_session(second)
    await eventually(lambda: queues.session_expiry.ended == 1)
    assert (await queues.admin.stats("q"))["ready"] == 2


async def test_what_a_closed_connection_held_is_given_back_once_the_store_is_there_again(
    n0: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first word of it is lost with the store."""
    queues = n0.queues
    session = queues.open_session()
    await asyncio.gather(*(queues.put("q", TaskSpec(id=f"t{n}")) for n in range(2)))
    for _ in range(2):
        await one(queues, session)
    end, lost = Shard.end, set[str]()

    def lost_at_first(self: Shard, task_id: str, *args: Any) -> asyncio.Future[Any]:
        if task_id not in lost:
            lost.add(task_id)
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            failed.set_exception(StoreDown("the store is away"))
            return failed
        return end(self, task_id, *args)

    monkeypatch.setattr(Shard, "end", lost_at_first)
    await queues.close_session(session)
    assert lost == {"t0", "t1"}
    assert (await queues.admin.stats("q"))["ready"] == 2


async def test_a_session_goes_on_at_another_node_in_time(
    node: Any, n0: Any, eventually: Any
) -> None:
    n1 = await node("n1")
    first, uuid = await joined(n0.queues)
    await n0.queues.put("q", TaskSpec(id="a"))
    task = await one(n0.queues, first)
    with graces_held(n0.queues) as let_come:
        await n0.queues.close_session(first)
        second, _ = await joined(n1.queues, uuid, grace_ms=1)
        let_come()
        # the timer of the first node has fired
        await eventually(lambda: n0.queues.sessions.counts()["detached"] == 0)
    await n0.queues.put("q", TaskSpec(id="b"))
    assert (await one(n1.queues, second)).id == "b"
    assert await state(n1.queues, "a") == "leased"
    assert await n1.queues.ack(second, "q", [("a", task.lease)]) == [1]
    assert n0.queues.session_expiry.ended == 0


async def test_who_comes_too_late_finds_nothing(node: Any, n0: Any, eventually: Any) -> None:
    n1 = await node("n1")
    first, uuid = await joined(n0.queues, grace_ms=30)
    await n0.queues.put("q", TaskSpec(id="a"))
    task = await one(n0.queues, first)
    waiting = n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=20_000)
    await n0.queues.close_session(first)
    assert [(t.id, t.attempt) for t in await waiting] == [("a", 1)], (
        "who waits gets it at once, the attempt given back"
    )
    late = n1.queues.open_session("bob")
    await eventually(lambda: n0.queues.session_expiry.ended)
    with pytest.raises(NotFound):
        await n1.queues.join_session(late, "bob", uuid)
    assert await n1.queues.ack(late, "q", [("a", task.lease)]) == [0]
    assert late.uuid == "", "it goes on as its own session"
    await n1.queues.put("q", TaskSpec(id="b"))
    await one(n1.queues, late)
    await n1.queues.close_session(late)
    assert await state(n1.queues, "b") == "ready"


async def test_grace_0_ends_with_the_last_connection(n0: Any) -> None:
    session, uuid = await joined(n0.queues)
    assert await n0.queues.join_session(session, "bob", grace_ms=0) == uuid, (
        "said again: its uuid, and the grace anew"
    )
    await n0.queues.put("q", TaskSpec(id="a"))
    await one(n0.queues, session)
    await n0.queues.close_session(session)
    assert await state(n0.queues, "a") == "ready"


async def test_a_lower_attach_number_does_nothing(node: Any, n0: Any) -> None:
    """A close, or a grace's end, that comes late belongs to a past attachment."""
    n1 = await node("n1")
    queues = n0.queues
    session, uuid = await joined(queues)
    digits = UUID(uuid).hex
    assert await run_session_script(n1.queues, "join", digits, "bob", -1, 0) == 2
    assert await run_session_script(queues, "leave", digits, 0) == -1
    assert await run_session_script(n1.queues, "leave", digits, 1) == -1, "the other node's number"
    assert await run_session_script(n1.queues, "leave", digits, 2) == -1, "n0 still has it"
    assert await run_session_script(queues, "end", digits, 2) == [-1, []]
    again, _ = await joined(queues, uuid, grace_ms=0)
    assert await run_session_script(queues, "leave", digits, 1) == -1
    assert session.shared is again.shared
    assert again.shared.number == 3
    assert await run_session_script(queues, "leave", digits, 3) == 0
    assert await run_session_script(queues, "end", digits, 2) == [-1, []]
    assert await run_session_script(queues, "end", digits, 3) == [0, []]
    assert await run_session_script(queues, "leave", digits, 3) == -2
    assert await run_session_script(queues, "forget", digits) == 1
    assert await run_session_script(queues, "forget", digits) == 0


async def test_a_session_belongs_to_its_user(n0: Any) -> None:
    session, uuid = await joined(n0.queues, user="bob")
    for stranger, wanted in (("eve", uuid), ("bob", str(uuid4()))):
        with pytest.raises(
            NotFound, match=r"there is no session .* of yours: it has ended, or never was"
        ):
            await joined(n0.queues, wanted, user=stranger)
    with pytest.raises(BadArg, match="another one needs another connection"):
        # the connection has logged in as somebody else
        await n0.queues.join_session(session, "eve")
    assert session.uuid == UUID(uuid).hex


async def test_session_comes_before_the_first_take_and_once(n0: Any) -> None:
    queues = n0.queues
    await queues.put("q", TaskSpec())
    session = queues.open_session()
    await one(queues, session)
    with pytest.raises(
        BadArg, match="holds 1 tasks by itself: SESSION comes before the first take"
    ):
        await queues.join_session(session, "default")
    await queues.close_session(session)
    assert (await queues.admin.stats("q"))["ready"] == 1, (
        "a connection that was refused a session is one by itself"
    )
    first, uuid = await joined(queues)
    _, other = await joined(queues)
    assert other != uuid
    with pytest.raises(BadArg, match="another one needs another connection"):
        await queues.join_session(first, "bob", other)


@pytest.mark.parametrize("uuid", ["x", "1234", "graces", "z" * 32, "0" * 33, "\x00", "~" * 32])
async def test_rubbish_is_no_uuid(n0: Any, uuid: str, valkey: Any) -> None:
    with pytest.raises(BadArg, match="allowed is a uuid that SESSION answered"):
        await joined(n0.queues, uuid)
    with pytest.raises(BadArg, match="GRACE"):
        await joined(n0.queues, grace_ms=3_600_001)
    assert keys(valkey) == []


async def test_two_sessions_of_one_connection_at_once_are_one(n0: Any) -> None:
    session = n0.queues.open_session("bob")
    uuids = await asyncio.gather(*(n0.queues.join_session(session, "bob") for _ in range(5)))
    assert len(set(uuids)) == 1
    assert n0.queues.sessions.counts()["attached"] == 1


async def test_a_connection_that_closes_while_it_joins_leaves_again(n0: Any, valkey: Any) -> None:
    session = n0.queues.open_session("bob")
    joining = asyncio.ensure_future(n0.queues.join_session(session, "bob", "", 0))
    later = asyncio.ensure_future(n0.queues.join_session(session, "bob", "", 0))
    await asyncio.sleep(0)
    await n0.queues.close_session(session)
    await asyncio.gather(joining, later, return_exceptions=True)
    assert n0.queues.sessions.counts()["attached"] == 0
    assert keys(valkey) == []


async def test_a_node_that_registers_anew_joins_again_what_it_had(
    node: Any, n0: Any, eventually: Any
) -> None:
    n1 = await node("n1", boot=4)
    kept, _ = await joined(n1.queues)
    lost, _ = await joined(n1.queues, grace_ms=0)
    await n0.queues.put("q", TaskSpec(id="a"))
    task = await one(n1.queues, kept)
    waiting = n1.queues.take(lost, ["q"], wait_ms=60_000)
    await eventually(lambda: n1.queues.consumer.waiting() == 1)
    await n0.queues.scripts.run("queue.reap", "q", 0, [1, "n1", 4, 100])
    await n0.queues.session_expiry.bury(1, "n1", 4)
    await n0.queues.session_expiry.end_due()
    n1.queues.catalog.holder = "n1.5"
    n1.queues.sessions.rejoin()
    with pytest.raises(
        NotFound, match=r"has ended; what it held is ready again\. SESSION makes a new one"
    ):
        await waiting
    with pytest.raises(NotFound):
        await n1.queues.take(lost, ["q"])
    assert await n1.queues.join_session(lost, "bob"), "and so it does"
    assert await n1.queues.take(lost, ["q"]) == []
    await eventually(lambda: kept.shared.holder == "n1.5")
    assert await n1.queues.ack(kept, "q", [("a", task.lease)]) == [1]
    await n0.queues.session_expiry.end_due()
    await n0.queues.put("q", TaskSpec(id="b"))
    assert (await one(n1.queues, kept)).id == "b"


@pytest.mark.thorough
async def test_there_is_a_limit_to_sessions_that_nobody_has(n0: Any, valkey: Any) -> None:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        pipe = client.pipeline()
        for start in range(0, 100_000, 10_000):
            pipe.zadd("{tw}:session:graces", {uuid4().hex: 2**41 for _ in range(10_000)})
            assert start >= 0
        pipe.execute()
    with pytest.raises(Full, match="100000 sessions without a connection"):
        await joined(n0.queues)


async def test_a_shard_that_refuses_keeps_no_other_from_ending_its_leases(
    n0: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues = n0.queues
    session = queues.open_session()
    for queue in ("refuses", "q"):
        await queues.put(queue, TaskSpec(id="a"))
        await one(queues, session, queue)
    (shard,) = shards_of(queues, "refuses")
    refused = asyncio.get_running_loop().create_future()
    refused.set_exception(Internal("the shard has format 9"))
    monkeypatch.setattr(shard, "end", lambda *_: refused)
    await queues.close_session(session)
    assert await state(queues, "a") == "ready"
    assert "the lease of a in refuses ends by its time: the shard has format 9" in caplog.text


async def test_a_node_that_was_declared_dead_takes_on_for_a_session_when_it_has_registered_anew(
    n0: Any,
) -> None:
    """
    It was paused, say; its consumers' session is not over, and the first take at a new place must
    not say so.
    """
    queues = n0.queues
    session, uuid = await joined(queues)
    await queues.put("q", TaskSpec(id="a"))
    refused = []

    def register_anew(error: BaseException) -> None:
        refused.append(str(error))
        queues.catalog.holder = "n0.2"
        queues.sessions.rejoin()

    queues.catalog.on_refused = register_anew
    await queues.session_expiry.bury(1, "n0", 1)
    assert (await one(queues, session)).id == "a"
    assert refused == ["n0.1 was declared dead; the node has to register again"]
    assert session.uuid == uuid.replace("-", "")
    assert session.shared.holder == "n0.2"


@pytest.mark.parametrize("verb", ["take", "batch", "lock", "session"])
async def test_whatever_a_dead_boot_is_refused_tells_the_node_so(n0: Any, verb: str) -> None:
    queues, heard = n0.queues, []
    queues.catalog.on_refused = heard.append
    await queues.put("q", TaskSpec())
    for queue in ("q", "_locks"):
        for shard in range(await queues.catalog.shard_count(queue)):
            await queues.scripts.run("queue.reap", queue, shard, [1, "n0", 1, 10])
    await queues.session_expiry.bury(1, "n0", 1)
    session = queues.open_session()
    asked: list[Any] = []
    if verb == "lock":
        asked = [queues.locks.acquire(session, "l", 1000)]
    elif verb == "session":
        asked = [queues.join_session(session, "bob")]
    else:
        asked = [queues.take(session, ["q"])] + [queues.put("q", TaskSpec())] * (verb == "batch")
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(outcomes[0], Stale)
    assert [str(error) for error in heard] == [
        "n0.1 was declared dead; the node has to register again"
    ]
