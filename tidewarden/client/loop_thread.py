"""Runs coroutines for threads in an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

import uvloop

P = ParamSpec("P")
R = TypeVar("R")


class Bridge:
    """Runs coroutines in a loop that another thread runs. Any number of threads may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pid = os.getpid()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """
        Run a coroutine in the loop and return its result.

        An exception that interrupts the waiting, Ctrl-C for example, cancels it.

        Raises: what the coroutine raises; RuntimeError: the loop was closed, is this thread's own,
        or was left behind by a fork.
        """
        problem = self._problem()
        if problem:
            work.close()
            raise RuntimeError(problem)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def there(self, work: Coroutine[Any, Any, R]) -> R:
        """
        Run a coroutine in the loop for a task of any loop, and return its result.

        Raises: what the coroutine raises; RuntimeError: the loop was closed or left behind by a
        fork.
        """
        problem = self._gone()
        if problem:
            work.close()
            raise RuntimeError(problem)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def soon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine in the loop without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def _gone(self) -> str:
        if os.getpid() != self._pid:
            return "this client was made before a fork: make one in each process"
        return "this client was closed" if self.loop.is_closed() else ""

    def _problem(self) -> str:
        if gone := self._gone():
            return gone
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return ""
        return (
            "blocking calls would stop the event loop that serves them: use the asyncio client here"
            if here is self.loop
            else ""
        )


class LoopThread(Bridge):
    """Runs an event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        super().__init__(uvloop.new_event_loop())
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()

    def stop(self) -> None:
        """End the loop, cancelling what it still runs, and the thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()


class Closing(Protocol):
    """Is an asyncio object that is closed."""

    async def close(self) -> None: ...


def end_thread(thread: LoopThread, inner: Closing, pid: int) -> None:
    """Close what a thread's loop runs, and stop the thread, in the process that made it."""
    if os.getpid() == pid and not thread.loop.is_closed():
        with contextlib.suppress(RuntimeError):
            thread.run(inner.close())
        thread.stop()


class BlockingFront(Protocol):
    """Is a blocking object that stands for one of the asyncio client."""

    @property
    def bridge(self) -> Bridge: ...
    @property
    def inner(self) -> Any: ...


class Inner(Generic[R]):
    """Shows an attribute of the asyncio object at the blocking one that stands for it."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, front: None, owner: type) -> Self: ...
    @overload
    def __get__(self, front: BlockingFront, owner: type) -> R: ...
    def __get__(self, front: BlockingFront | None, owner: type) -> Self | R:
        if front is None:
            return self
        found: R = getattr(front.inner, self._name)
        return found


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingFront, P], R]:
    """Turn a method of an asyncio class into a blocking one: same arguments, and it waits."""

    @functools.wraps(method)
    def call(self: BlockingFront, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.bridge.run(method(self.inner, *args, **kwargs))

    return call
