"""What leases and waits of HTTP leave behind stays bounded: see docs/testing.md, "What stays"."""

from __future__ import annotations

from typing import Any

import pytest
from support.growth import by_container, entries

from tidewarden.errors import Full
from tidewarden.queue.sessions import unbound
from tidewarden.server.http.long_polls import LongPolls


def test_requests_that_wait() -> None:
    polls = LongPolls(40, several=True)
    for n in range(1000):
        with polls.wait(f"u{n}", 1):
            assert polls.waiting == 1
    assert entries(polls) == 0, by_container(polls)


async def test_sessions_that_requests_name(
    node: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(unbound, "NAMED_MAX", 3)
    monkeypatch.setattr(unbound, "LINGER_S", 0.0)
    made = await node()
    sessions = made.queues.unbound
    uuids = [await sessions.make("bob") for _ in range(4)]
    for _ in range(3):
        for uuid in uuids:
            async with sessions.named("bob", uuid):
                assert entries(sessions) - len(made.queues.sessions.open_ones) >= 1
        await eventually(lambda: not made.queues.sessions.open_ones)
    async with (
        sessions.named("bob", uuids[0]), sessions.named("bob", uuids[1]),
        sessions.named("bob", uuids[2]),
    ):  # fmt: skip
        with pytest.raises(Full, match="3 sessions, as many as may be"):
            async with sessions.named("bob", uuids[3]):
                pass
    await eventually(lambda: not made.queues.sessions.open_ones)
    for uuid in uuids:
        await sessions.end("bob", uuid)


async def test_one_user_shuts_nobody_out_of_sessions(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unbound, "MADE_MAX", 3)
    sessions = (await node()).queues.unbound
    for _ in range(3):
        await sessions.make("eve", 3_600_000)
    with pytest.raises(Full, match="has made 3 sessions at this node whose graces run still"):
        await sessions.make("eve", 1000)
    for _ in range(3):
        await sessions.make("bob", 3_600_000)
