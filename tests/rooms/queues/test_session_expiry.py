"""
How shared sessions end when nobody is left to end them: dead nodes, a store that is away or has
forgotten.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import redis
from support.inspect import run_session_script

from tidewarden.errors import Internal, Stale, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.sessions import session_expiry

LONG_MS = 600_000


async def joined(queues: Any, uuid: str = "", *, grace_ms: int | None = LONG_MS) -> tuple[Any, str]:
    """A connection in a session, and the session's uuid."""
    session = queues.open_session("bob")
    return session, await queues.join_session(session, "bob", uuid, grace_ms)


async def holding(queues: Any, task_id: str, grace_ms: int = 0) -> tuple[Any, str]:
    """A session that holds a task."""
    session, uuid = await joined(queues, grace_ms=grace_ms)
    await queues.put("q", TaskSpec(id=task_id))
    assert [task.id for task in await queues.take(session, ["q"], task_id=task_id)] == [task_id]
    return session, uuid


async def states(queues: Any, *task_ids: str) -> list[str]:
    return [str((await queues.admin.peek("q", task_id))["state"]) for task_id in task_ids]


@pytest.fixture
async def n0(node: Any) -> Any:
    return await node("n0", views=True)


async def test_a_dead_nodes_sessions_have_their_grace_from_the_mark_on(node: Any, n0: Any) -> None:
    n1 = await node("n1", boot=4)
    await holding(n1.queues, "short")
    _, uuid = await holding(n1.queues, "long", LONG_MS)
    _, shared = await holding(n1.queues, "both")
    await joined(n0.queues, shared, grace_ms=None)
    assert await n0.queues.scripts.run("queue.reap", "q", 0, [1, "n1", 4, 100]) == [0, 0], (
        "leases of sessions are no node's"
    )
    assert await n0.queues.session_expiry.bury(1, "n1", 4) == 3
    assert await n0.queues.session_expiry.bury(1, "n1", 4) == 0
    assert await n0.queues.session_expiry.end_due() == 1
    assert await n0.queues.session_expiry.end_due() == 0
    assert await states(n0.queues, "short", "long", "both") == ["ready", "leased", "leased"]
    back, _ = await joined(n0.queues, uuid)
    assert back.uuid == UUID(uuid).hex
    with pytest.raises(Stale, match=r"n1\.4 was declared dead"):
        await joined(n1.queues)
    await n0.link.call("HSET", "{tw}:fence", "epoch", 2)
    with pytest.raises(Stale, match="epoch 2"):
        await n0.queues.session_expiry.bury(1, "n1", 9)


async def test_what_a_node_left_behind_on_its_way_is_ended_by_the_leader(
    node: Any, n0: Any
) -> None:
    """
    The node that saw the last close died before the grace was over, or between the end and the end
    of the leases.
    """
    n1 = await node("n1")
    for task_id in ("a", "b"):
        _, uuid = await holding(n1.queues, task_id)
        await run_session_script(n1.queues, "leave", UUID(uuid).hex, 1)
    await run_session_script(n1.queues, "end", UUID(uuid).hex, 1)
    pages: list[int] = []
    assert await n0.queues.session_expiry.end_due(lambda: pages.append(1)) == 2
    assert pages, "who waits for it sees that it gets on"
    assert await states(n0.queues, "a", "b") == ["ready", "ready"]


async def test_a_shard_that_refuses_does_not_stop_the_others(
    node: Any, n0: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    n1 = await node("n1")
    _, bad = await holding(n1.queues, "a")
    _, good = await holding(n1.queues, "b")
    for uuid in (bad, good):
        await run_session_script(n1.queues, "leave", UUID(uuid).hex, 1)
    real = n0.queues.session_expiry.release

    async def refuse(uuid: str, places: Any) -> None:
        if uuid == UUID(bad).hex:
            raise Internal("a newer format")
        await real(uuid, places)

    monkeypatch.setattr(n0.queues.session_expiry, "release", refuse)
    assert await n0.queues.session_expiry.end_due() == 1
    assert await states(n0.queues, "a", "b") == ["leased", "ready"]
    assert "could not be ended: a newer format" in caplog.text
    monkeypatch.undo()
    assert await n0.queues.session_expiry.end_due() == 1
    assert await states(n0.queues, "a") == ["ready"]


async def test_sessions_that_cannot_be_ended_do_not_keep_those_behind_them(
    node: Any, n0: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are, and whatever stands among them that is no session."""
    n1 = await node("n1")
    monkeypatch.setattr(session_expiry, "PIECE", 3)
    bad = []
    for task_id in ("a", "b", "c", "d", "e", "f", "g", "good"):
        _, uuid = await holding(n1.queues, task_id)
        await run_session_script(n1.queues, "leave", UUID(uuid).hex, 1)
        bad.append(UUID(uuid).hex)
        await n0.link.call("ZADD", "{tw}:session:graces", len(bad), bad[-1])
    good = bad.pop()
    await n0.link.call("ZADD", "{tw}:session:graces", 0, b"\xff\x00", 0, "z" * 32)
    await n0.link.call("SADD", f"{{tw}}:session:in:{good}", "q", b"\xff 1", "q one", "")
    real = n0.queues.session_expiry.release

    async def refuse(uuid: str, places: Any) -> None:
        if uuid in bad:
            raise Internal("a newer format")
        await real(uuid, places)

    monkeypatch.setattr(n0.queues.session_expiry, "release", refuse)
    assert await n0.queues.session_expiry.end_due() == 1
    assert await states(n0.queues, "a", "good") == ["leased", "ready"]
    monkeypatch.undo()
    assert await n0.queues.session_expiry.end_due() == 7
    assert await states(n0.queues, "a", "g") == ["ready", "ready"]


async def test_a_grace_that_ends_while_the_store_is_away_is_the_leaders(
    n0: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session, _ = await holding(n0.queues, "a", grace_ms=5)
    real = n0.queues.session_records.run

    def away(name: str, *args: Any, **options: Any) -> Any:
        if name == "end":
            raise StoreDown("away")
        return real(name, *args, **options)

    monkeypatch.setattr(n0.queues.session_records, "run", away)
    await n0.queues.close_session(session)
    await eventually(lambda: "could not be ended; the leader goes on with it" in caplog.text)
    monkeypatch.undo()
    assert await n0.queues.session_expiry.end_due() == 1
    assert await states(n0.queues, "a") == ["ready"]


async def test_a_store_that_is_away_at_the_close_is_waited_for(
    n0: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    session, _ = await holding(n0.queues, "a")
    real, failures = n0.queues.session_records.run, [StoreDown("away")] * 2

    def away(name: str, *args: Any, **options: Any) -> Any:
        if name == "leave" and failures:
            raise failures.pop()
        return real(name, *args, **options)

    monkeypatch.setattr(n0.queues.session_records, "run", away)
    monkeypatch.setattr("tidewarden.queue.sessions.sessions.LOST_RETRY_S", 0.01)
    await n0.queues.close_session(session)
    await eventually(lambda: n0.queues.session_expiry.ended)
    assert await states(n0.queues, "a") == ["ready"]


@pytest.mark.parametrize("heard", [True, False])
async def test_a_join_whose_answer_is_lost_attaches_nobody_for_ever(
    n0: Any, valkey: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any, heard: bool
) -> None:
    session, uuid = await holding(n0.queues, "a", 50)
    real, failures = n0.queues.session_records.run, [StoreDown("away")] * 2

    async def away(name: str, *args: Any, **options: Any) -> Any:
        if name == "join" and failures:
            if heard:
                await real(name, *args, **options)
            raise failures.pop()
        return await real(name, *args, **options)

    monkeypatch.setattr(n0.queues.session_records, "run", away)
    monkeypatch.setattr("tidewarden.queue.sessions.sessions.LOST_RETRY_S", 0.01)
    other = n0.queues.open_session("bob")
    with pytest.raises(StoreDown):
        await n0.queues.join_session(other, "bob", uuid)
    await n0.queues.close_session(other)
    await eventually(lambda: not failures)
    await n0.queues.close_session(session)
    await eventually(lambda: n0.queues.session_expiry.ended)
    assert await states(n0.queues, "a") == ["ready"]
    with redis.Redis(unix_socket_path=valkey.path) as client:
        assert client.keys("{tw}:session*") == []


async def test_a_session_whose_record_the_store_lost_ends_its_leases_all_the_same(
    n0: Any, valkey: Any
) -> None:
    session, uuid = await holding(n0.queues, "a", LONG_MS)
    with redis.Redis(unix_socket_path=valkey.path) as client:
        client.delete(f"{{tw}}:session:{UUID(uuid).hex}")
    await n0.queues.close_session(session)
    assert await states(n0.queues, "a") == ["ready"]


async def test_a_queue_that_was_cut_anew_holds_nothing_of_it(n0: Any) -> None:
    await n0.queues.admin.configure("wide", {"shards": 4})
    session, _ = await joined(n0.queues, grace_ms=0)
    assert await n0.queues.take(session, ["wide"]) == []
    await n0.queues.admin.configure("wide", {"shards": 1})
    await n0.queues.close_session(session)
    assert n0.queues.session_expiry.ended == 1


async def test_a_session_that_holds_a_task_of_a_dropped_queue(node: Any, n0: Any) -> None:
    n1 = await node("n1")
    session, _ = await holding(n1.queues, "a")
    await n1.queues.put("r", TaskSpec(id="b"))
    assert len(await n1.queues.take(session, ["r"])) == 1
    await n1.queues.dropped.drop("q", force=True)
    assert await n0.queues.session_expiry.bury(1, "n1", 1) == 1
    assert await n0.queues.session_expiry.end_due() == 1
    assert (await n0.queues.admin.stats("r"))["ready"] == 1
    assert "q" not in await n0.queues.catalog.names()
