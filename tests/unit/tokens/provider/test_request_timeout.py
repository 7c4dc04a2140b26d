"""The time that a request may take."""

from __future__ import annotations

import asyncio
import time

import pytest

from tidewarden.tokens.provider import request_timeout
from tidewarden.tokens.provider.request_timeout import RequestTimeout


async def test_what_ends_in_time_ends_as_it_does() -> None:
    loop = asyncio.get_running_loop()
    with RequestTimeout(loop, 30):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="mine"), RequestTimeout(loop, 30):
        raise ValueError("mine")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_does_not_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_timeout, "UNREAD_S", 0.01)
    with pytest.raises(TimeoutError), RequestTimeout(asyncio.get_running_loop(), 0.01):
        await asyncio.Event().wait()
    await asyncio.sleep(0)  # Nobody is cancelled any more.


async def test_an_answer_that_was_there_when_the_time_was_over_is_read() -> None:
    came = asyncio.Event()
    loop = asyncio.get_running_loop()
    with RequestTimeout(loop, 0.01):
        loop.call_soon(time.sleep, 0.05)  # The process stands still past the time;
        loop.call_later(0.02, came.set)  # what came meanwhile is behind the timer in the line.
        await came.wait()


async def test_who_is_cancelled_by_others_is_cancelled() -> None:
    async def wait() -> None:
        with RequestTimeout(asyncio.get_running_loop(), 30):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_is_cancelled_by_others_too_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_timeout, "UNREAD_S", 0.0)

    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        with RequestTimeout(asyncio.get_running_loop(), 0.0):
            while task.cancelling() == 0:
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    task.cancel()  # as somebody else would in the same turn
                    raise

    task = asyncio.create_task(wait())
    with pytest.raises(asyncio.CancelledError):
        await task
