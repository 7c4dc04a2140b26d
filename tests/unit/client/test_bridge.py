"""From threads to a loop and back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tidewarden.client.loop_thread import LoopThread


def test_a_coroutine_runs_there_and_its_result_or_error_comes_back() -> None:
    bridge = LoopThread("test loop")

    async def where() -> str:
        return threading.current_thread().name

    async def wrong() -> None:
        raise KeyError("x")

    assert bridge.run(where()) == "test loop"
    with pytest.raises(KeyError):
        bridge.run(wrong())
    bridge.stop()
    bridge.stop()
    with pytest.raises(RuntimeError, match="was closed"):
        bridge.run(where())


def test_a_stop_cancels_what_still_runs() -> None:
    bridge = LoopThread("test loop")
    begun, ended = threading.Event(), threading.Event()

    async def long() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            ended.set()

    asyncio.run_coroutine_threadsafe(long(), bridge.loop)
    assert begun.wait(10)
    bridge.stop()
    assert ended.is_set()
