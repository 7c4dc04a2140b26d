"""The SDK's lock against a real node."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.doors.client_harness import Site, url

from tidewarden.client import AsyncClient, Client
from tidewarden.errors import BadArg, NotHeld

NODES = 2


async def test_one_holds_it_and_the_next_gets_a_greater_number(
    here: Site, client: AsyncClient
) -> None:
    async with AsyncClient(here.urls[1:]) as other:
        lock, theirs = client.lock("report"), other.lock("report")
        async with lock:
            assert lock.held
            fence = lock.fence
            with pytest.raises(BadArg, match="not reentrant"):
                await lock.acquire(0)
            assert not await theirs.acquire(0)
            assert not await theirs.acquire(50)
            assert not theirs.held
            waiting = asyncio.ensure_future(theirs.acquire())
            await asyncio.sleep(0.05)
            assert not waiting.done()
        assert not lock.held
        assert await asyncio.wait_for(waiting, 20)
        assert theirs.fence > fence
        await theirs.release()
        with pytest.raises(NotHeld):
            await theirs.release()


@pytest.mark.thorough
@pytest.mark.usefixtures("soon")
async def test_it_is_renewed_while_the_block_runs(client: AsyncClient, eventually: Any) -> None:
    async with client.lock("report", lease_ms=15_000) as lock:
        since = lock.since
        await eventually(lambda: lock.since > since + 0.5)
        assert lock.held
        assert (await client.execute("L.PEEK", "report"))["fence"] == lock.fence
        await lock.renew()


async def test_it_says_when_it_is_lost(client: AsyncClient) -> None:
    lock = client.lock("report", lease_ms=1500)
    assert await lock.acquire(0)
    await client.execute("L.RELEASE", "report", lock.fence)  # as an operator breaks a lock
    assert await lock.wait_lost(20)
    assert not lock.held
    with pytest.raises(NotHeld):
        await lock.renew()

    async def work() -> None:
        async with lock:
            await client.execute("L.RELEASE", "report", lock.fence)
            raise KeyError

    with pytest.raises(KeyError) as caught:
        await work()
    assert "lock report could not be released" in caught.value.__notes__[0]


async def test_an_acquire_whose_answer_was_lost_gets_the_same_lock(here: Site) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), here.urls[1]], spread=False) as client:
        await client.queues()
        trap = proxy.trap(b":", "down")
        acquiring = asyncio.ensure_future(client.lock("report").acquire(0))
        await asyncio.to_thread(trap.wait)
        await asyncio.to_thread(lambda: proxy.cut(reset=False))
        trap.release()
        assert await asyncio.wait_for(acquiring, 20)


async def test_a_wait_that_is_called_off_holds_nothing(here: Site, client: AsyncClient) -> None:
    async with AsyncClient(here.urls, spread=False) as other:
        held = other.lock("report")
        await held.acquire(0)
        waiting = asyncio.ensure_future(client.lock("report").acquire())
        while here.doors[0].server.context.waiting == 0:
            await asyncio.sleep(0)
        releasing = asyncio.ensure_future(held.release())
        waiting.cancel()
        await releasing
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await client.lock("report").acquire(20_000)


@pytest.mark.thorough
@pytest.mark.usefixtures("soon")
async def test_from_threads(here: Site) -> None:
    def work() -> None:
        with Client(here.urls, spread=False) as client:
            with client.lock("report", lease_ms=15_000) as lock:
                assert (lock.name, lock.held, lock.lost) == ("report", True, False)
                time.sleep(0.6)  # two renewals or so
                assert lock.fence > 0
            assert not lock.held

    await asyncio.to_thread(work)


async def test_a_close_releases_what_is_held(here: Site, client: AsyncClient) -> None:
    other = AsyncClient(here.urls, grace_ms=60_000, spread=False)
    await other.lock("report").acquire(0)
    await other.close()
    assert await client.lock("report").acquire(20_000)
