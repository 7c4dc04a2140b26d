"""Runs blocking handlers in threads that are kept for the next one and hinder no program's end."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """
    Runs calls in daemon threads, ``threads_max`` at a time at most.

    ``concurrent.futures`` would not do: at the program's end it waits for a handler that hangs.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    async def run(self, call: Callable[[], Any]) -> Any:
        """
        Run the call in a thread and return its result.

        Cancelled, it goes on there, and its result is dropped.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        if self._busy == self._count < self._threads_max:
            self._count += 1
            threading.Thread(
                target=self._serve, name=f"{self._name} {self._count}", daemon=True
            ).start()
        self._busy += 1
        done.add_done_callback(self._finished)
        self._jobs.put((call, loop, done))
        return await done

    def stop(self) -> None:
        """End the idle threads now, and the others when they become idle."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _finished(self, _: asyncio.Future[Any]) -> None:
        self._busy -= 1

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, loop, done = job
            try:
                result, error = call(), None
            except BaseException as raised:
                # SystemExit too: it is the handler's answer, not this thread's end
                result, error = None, raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(_answer, done, result, error)
            del job, call, result, error


def _answer(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    elif isinstance(
        error, (StopIteration, KeyboardInterrupt, SystemExit)
    ):  # what a future cannot carry, or a loop dies of
        done.set_exception(RuntimeError(f"the handler raised {type(error).__name__}: {error}"))
    else:
        done.set_exception(error)
