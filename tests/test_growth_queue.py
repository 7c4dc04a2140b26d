"""What the queue's room keeps for long stays bounded through its worst case: see docs/testing.md, "What stays"."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from growth import by_container, entries
from live.proxy import Proxy

from tidewarden.errors import Full, StoreDown

HOUR_MS = 3_600_000


@pytest.mark.thorough
async def test_a_session_that_is_left_and_joined_again(node: Any) -> None:
    """Each end of a connection begins a grace of an hour; only the latest is waited for."""
    queues = (await node("n0")).queues
    uuid, first = "", 0
    for n in range(500):
        first = first or (n // 10 and entries(queues))
        session = queues.open_session("bob")
        uuid = await queues.join_session(session, "bob", uuid, HOUR_MS)
        await queues.close_session(session)
    assert queues.session_counts()["detached"] == 1
    assert entries(queues) <= first, by_container(queues)


@pytest.mark.thorough
async def test_sessions_that_are_asked_for_while_the_store_is_away(
    node: Any, store_proxy: Proxy, eventually: Any
) -> None:
    """A client asks again and again, all through an outage: what was not even sent leaves nothing to be undone."""
    n0 = await node("n0", url=f"redis://127.0.0.1:{store_proxy.port}/0")
    queues = n0.queues
    store_proxy.ways["down"].lost = store_proxy.ways["up"].lost = True
    store_proxy.cut()
    await eventually(lambda: not n0.link.up)
    sessions = [queues.open_session("bob") for _ in range(300)]
    found = await asyncio.gather(*(queues.join_session(one, "bob") for one in sessions), return_exceptions=True)
    assert all(isinstance(one, StoreDown) for one in found)
    await asyncio.gather(*(queues.close_session(one) for one in sessions))
    assert len(queues._tasks) < 10
    store_proxy.calm()


async def test_topics_count_as_queues_do(node: Any) -> None:
    queues = (await node("n0")).queues
    queues._config = queues._config.__class__(limits=queues._config.limits.__class__(queues_max=20))
    for n in range(10):
        await queues.link(f"topic{n}", "q")
    await queues.link("topic9", "another")
    for n in range(10):
        await queues.link(f"further{n}", "q")
    for n in range(100):
        with pytest.raises(Full, match="queues_max"):
            await queues.link(f"over{n}", "q")
    assert len(await queues.topics()) == len(queues._topics) == 20
    assert await queues.unlink("topic9", "q")
