"""Waiting for a condition over what goes on in this loop, and for what blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


async def eventually(condition: Callable[[], Any], limit_s: float = 120.0) -> Any:
    """
    What ``condition`` (which may be a coroutine function) returns once that is true; of a long wait
    it is asked more seldom.
    """
    end, pause_s = time.monotonic() + limit_s, 0.002
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"not within {limit_s:g} s: {condition}"
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.1, 0.03)


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """What ``work`` returns, which blocks a thread of its own."""
    return await asyncio.wait_for(asyncio.to_thread(work, *args), 60)
