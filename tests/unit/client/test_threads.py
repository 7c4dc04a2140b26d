"""Threads for handlers that block."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tidewarden.client.threads import Threads


async def test_as_many_as_are_needed_and_no_more() -> None:
    threads = Threads(3, "test")
    before = threading.active_count()
    assert await threads.run(lambda: 5) == 5
    assert await threads.run(lambda: 6) == 6
    assert threading.active_count() == before + 1
    gate = threading.Event()
    waiting = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert threading.active_count() == before + 3
    gate.set()
    assert await asyncio.gather(*waiting) == [True] * 5
    threads.stop()
    while threading.active_count() > before:
        await asyncio.sleep(0.005)


async def test_exceptions_come_back() -> None:
    threads = Threads(1, "test")

    def wrong(error: BaseException) -> Any:
        raise error

    with pytest.raises(KeyError):
        await threads.run(lambda: wrong(KeyError("x")))
    for error in (SystemExit(3), StopIteration()):
        with pytest.raises(RuntimeError, match=f"the handler raised {type(error).__name__}"):
            await threads.run(lambda error=error: wrong(error))  # type: ignore[misc]
    threads.stop()


async def test_a_call_whose_caller_has_gone_disturbs_nobody() -> None:
    threads = Threads(1, "test")
    gate = threading.Event()
    waiting = asyncio.ensure_future(threads.run(gate.wait))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await threads.run(lambda: 7) == 7
    threads.stop()
