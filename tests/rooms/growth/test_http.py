"""What leases and waits of HTTP leave behind stays bounded: see docs/testing.md, "What stays"."""

from __future__ import annotations

from typing import Any

import pytest
from support.growth import by_container, entries

from tidewarden.config.load import Config
from tidewarden.errors import Full
from tidewarden.queue.sessions import unbound
from tidewarden.user_limits import UserLimits


def test_requests_that_wait() -> None:
    limits = UserLimits(Config())
    for n in range(1000):
        with limits.http_waits.held(f"u{n}"), limits.waits.held(f"u{n}", 3):
            assert (limits.http_waits.used, limits.waits.used) == (1, 3)
    assert entries(limits) == 0, by_container(limits)


async def test_sessions_that_requests_name(
    node: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(unbound, "LINGER_S", 0.0)
    made = await node()
    sessions = made.queues.unbound
    uuids = [await sessions.make("bob") for _ in range(4)]
    for _ in range(3):
        for uuid in uuids:
            async with sessions.named("bob", uuid):
                assert entries(sessions) - len(made.queues.sessions.open_ones) >= 1
        await eventually(lambda: not made.queues.sessions.open_ones)
    for uuid in uuids:
        await sessions.end("bob", uuid)
    assert made.queues.user_limits.sessions.used == 0


async def test_one_user_shuts_nobody_out_of_sessions(node: Any, eventually: Any) -> None:
    made = await node(flags={"limits.sessions_max": "5"})
    limits, sessions = made.queues.user_limits, made.queues.unbound
    limits.follow(["eve", "bob"])
    uuids = [await sessions.make("eve", 3_600_000) for _ in range(4)]
    with pytest.raises(
        Full, match=r"eve has 4 sessions .* 1 of 5 \(limits.sessions_max\) are free"
    ):
        await sessions.make("eve", 1000)
    await sessions.make("bob", 1000)
    with pytest.raises(Full, match=r"This node has 5 sessions, as many as it may"):
        await sessions.make("bob", 1000)
    # an end of one's own, and one by time
    await sessions.end("eve", uuids[0])
    await eventually(lambda: limits.sessions.used == 3)
    # a session that is counted may be named however many there are
    await sessions.make("bob", 3_600_000)
    await sessions.make("bob", 3_600_000)
    async with sessions.named("eve", uuids[1]):
        assert limits.sessions.used == 5


async def test_sessions_of_connections_count_while_their_grace_runs(
    node: Any, eventually: Any
) -> None:
    made = await node(flags={"limits.sessions_max": "5"})
    queues, limit = made.queues, made.queues.user_limits.sessions
    queues.user_limits.follow(["eve", "bob"])
    uuids = []
    for _ in range(4):
        connection = queues.open_session("eve")
        uuids.append(await queues.join_session(connection, "eve", grace_ms=3_600_000))
        await queues.close_session(connection)
    late = queues.open_session("eve")
    with pytest.raises(Full, match=r"limits\.user_share"):
        await queues.join_session(late, "eve")
    await queues.join_session(late, "eve", uuids[0], 0)
    assert limit.by_user == {"eve": 4}
    await queues.close_session(late)
    await eventually(lambda: limit.by_user == {"eve": 3})
