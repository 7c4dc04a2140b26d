"""Leases that are kept running, and those that are not any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.doors.client_harness import Site, url
from support.inspect import retry_within

from tidewarden.client import AsyncClient


@pytest.mark.usefixtures("soon")
async def test_tasks_of_one_moment_are_touched_together(here: Site, eventually: Any) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        queue = client.queue("mail")
        await queue.put_many([b"x"] * 50)
        tasks = await queue.take_many(50, lease_ms=30_000)
        ends = {task.id: task.lease_end_ms for task in tasks}
        for task in tasks:
            client.leases.keep(task)
        await eventually(lambda: all(task.lease_end_ms > ends[task.id] + 200 for task in tasks))
        assert not any(task.lost for task in tasks)
        assert here.doors[0].server.context.calls["Q.TOUCH"] % 50 == 0
        assert (await queue.stats())["leased"] == 50
        await queue.ack_many(tasks)
        assert client.leases.held == []


@pytest.mark.thorough
@pytest.mark.usefixtures("soon")
async def test_the_puts_own_lease_is_known_and_kept(here: Site, eventually: Any) -> None:
    """Nobody told the client how long it is: it knows by the store's clock."""
    async with AsyncClient(here.urls, spread=False) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a", lease_ms=30_000)
        async with await queue.take() as task:  # type: ignore[union-attr]
            end_ms = task.lease_end_ms
            assert 0 < task.lease_ms <= 30_000
            await eventually(lambda: task.lease_end_ms > end_ms + 1500)
            assert not task.lost
            assert (await queue.peek("a")).attempts == 1


@pytest.mark.thorough
async def test_without_a_node_a_lease_is_lost_by_our_own_clock(here: Site, eventually: Any) -> None:
    proxy = here.proxied()
    async with AsyncClient(url(proxy.port)) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        task = await queue.take(lease_ms=1500)
        assert task is not None
        retry_within(client.line, 0.1)  # from now on, for nobody is there any more
        client.leases.keep(task)
        heard: list[str] = []
        task.on_lost = lambda: heard.append("lost")
        await asyncio.to_thread(proxy.close)
        await eventually(lambda: task.lost)
        assert heard == ["lost"]
        assert client.leases.held == []


async def test_the_end_of_the_session_loses_everything_at_once(here: Site, eventually: Any) -> None:
    proxy = here.proxied()
    async with AsyncClient(url(proxy.port), grace_ms=0) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        task = await queue.take()
        assert task is not None
        client.leases.keep(task)
        session = client.nodes.session
        await asyncio.to_thread(proxy.cut)
        await eventually(lambda: task.lost)
        assert client.nodes.session != session
        assert (await queue.peek("a")).state == "ready"
