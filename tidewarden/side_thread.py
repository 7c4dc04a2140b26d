"""Runs what may block for long in threads that hold up nothing, not even the end of a process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_side_thread(work: Callable[[], Result], name: str) -> Result:
    """
    Run it in a daemon thread and return its result; cancelled, leave the thread to itself.

    The threads of :func:`asyncio.to_thread` are waited for when a loop ends, those here are not.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            tell(future.set_exception, error)
        else:
            tell(future.set_result, result)

    def tell(settle: Callable[..., None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody wants it
            loop.call_soon_threadsafe(lambda: None if future.done() else settle(value))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
