"""A taken task: its block, its verbs, and what is known of a lease that is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.doors.client_harness import Site

from tidewarden.client import AsyncQueue, AsyncTask
from tidewarden.client.task import reason_of, shortened
from tidewarden.errors import Full, NotHeld


async def taken(queue: AsyncQueue, task_id: str = "a", **options: Any) -> AsyncTask:
    await queue.put('{"n": 1}', id=task_id, backoff_ms=60_000)
    task = await queue.take(wait_ms=10_000, **options)
    assert task is not None
    return task


async def test_what_a_task_says(queue: AsyncQueue) -> None:
    task = await taken(queue)
    assert task.text == '{"n": 1}'
    assert task.json() == {"n": 1}
    assert repr(task) == f"<AsyncTask mail a lease={task.lease} attempt=1>"
    assert task.fence == task.lease


async def test_a_result_that_a_full_store_refuses_leaves_the_task_in_hand(
    here: Site, queue: AsyncQueue
) -> None:
    """Also its lease is renewed as before."""
    async with await taken(queue) as task:
        await here.nodes[0].link.call("CONFIG", "SET", "maxmemory", "1")
        try:
            with pytest.raises(Full):
                await task.ack(b"y" * 10_000)
            assert not task.settled
            assert task in task.client.leases.held
            await task.ack(b"short")
        finally:
            await here.nodes[0].link.call("CONFIG", "SET", "maxmemory", "0")
    assert (await queue.wait("a", timeout_ms=0)).result == b"short"


async def test_the_end_of_a_block_acknowledges(queue: AsyncQueue) -> None:
    async with await taken(queue) as task:
        assert not task.settled
    assert task.settled
    assert (await queue.wait("a", timeout_ms=0)).word == "done"


async def test_an_exception_fails_and_goes_on(queue: AsyncQueue) -> None:
    with pytest.raises(ValueError, match="no good"):
        async with await taken(queue):
            raise ValueError("no good")
    found = await queue.peek("a")
    assert (found.state, found.reason, found.attempts) == ("delayed", "ValueError: no good", 1)


async def test_a_cancellation_releases(queue: AsyncQueue) -> None:
    task = await taken(queue)
    inside = asyncio.Event()

    async def work() -> None:
        async with task:
            inside.set()
            await asyncio.sleep(60)

    working = asyncio.ensure_future(work())
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    found = await queue.peek("a")
    assert (found.state, found.attempts, found.losses) == ("ready", 0, 0)


@pytest.mark.parametrize(
    ("settle", "state"),
    [
        (lambda task: task.release(), "ready"),
        (lambda task: task.release(60_000, reason="later"), "delayed"),
        (lambda task: task.fail(60_000, reason="no"), "delayed"),
        (lambda task: task.bury("never"), "buried"),
    ],
)
async def test_what_the_block_settles_itself_stays_so(
    queue: AsyncQueue, settle: Any, state: str
) -> None:
    async with await taken(queue) as task:
        await settle(task)
    assert (await queue.peek("a")).state == state


async def test_an_exception_after_settling_changes_nothing(queue: AsyncQueue) -> None:
    task = await taken(queue)

    async def work() -> None:
        async with task:
            await task.ack({"result": 1})
            raise KeyError

    with pytest.raises(KeyError):
        await work()
    assert (await queue.wait("a", timeout_ms=0)).result == b'{"result":1}'


async def test_a_block_whose_lease_is_lost_says_so(queue: AsyncQueue) -> None:
    async def work(error: Exception | None, **options: int) -> None:
        async with await taken(queue, **options) as task:
            await queue.release_all()
            if error is not None:
                raise error
            assert not task.lost
            assert await task.wait_lost(20)

    with pytest.raises(NotHeld):
        await work(None, lease_ms=1500)
    with pytest.raises(KeyError) as caught:
        await work(KeyError())  # the failing comes too late, which is noted on the exception
    assert "could not be given back" in caught.value.__notes__[0]


async def test_touch(queue: AsyncQueue) -> None:
    task = await taken(queue, lease_ms=5000)
    before = task.lease_end_ms
    assert await task.touch(60_000) == task.lease_end_ms > before + 50_000
    assert task.lease_ms == 60_000
    assert await task.wait_lost(0.01) is False
    await queue.release_all()
    with pytest.raises(NotHeld):
        await task.touch()
    with pytest.raises(NotHeld):
        await task.ack()
    assert task.lost


def test_reasons() -> None:
    assert reason_of(ValueError("x")) == "ValueError: x"
    assert reason_of(ValueError()) == "ValueError"
    assert shortened(None) is None
    assert shortened("short") == "short"
    long = shortened("ü" * 200)
    assert long is not None
    assert len(long.encode()) == 240
    assert len((shortened("x" + "ü" * 200) or "").encode()) == 239
