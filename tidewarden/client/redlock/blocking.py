"""Redlock for threads: a thread beside yours runs the asyncio one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from tidewarden.client.loop_thread import Bridge, Inner, LoopThread, blocking, end_thread

from .lock import TTL_MS, AsyncRedlock, AsyncRedlockLock


class RedlockLock:
    """
    A lock over independent masters, see :class:`AsyncRedlockLock`.

    ``with redlock.lock("report") as lock: …``
    """

    __slots__ = ("inner", "redlock")

    def __init__(self, redlock: Redlock, inner: AsyncRedlockLock) -> None:
        self.redlock = redlock
        self.inner = inner

    @property
    def bridge(self) -> Bridge:
        """Return the bridge to the loop that runs the asyncio lock."""
        return self.redlock.bridge

    name = Inner[str]("The name of the lock, its key at each master.")
    valid_ms = Inner[float]("For how long the lock is ours from now on; 0: it is not.")
    held = Inner[bool]("Whether the lock is ours, as far as its time tells.")

    acquire = blocking(AsyncRedlockLock.acquire)
    extend = blocking(AsyncRedlockLock.extend)
    release = blocking(AsyncRedlockLock.release)

    def __enter__(self) -> Self:
        self.bridge.run(self.inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bridge.run(self.inner.__aexit__(kind, error, trace))


class Redlock:
    """
    Makes locks over independent masters, see :class:`AsyncRedlock`, for any number of threads.

    ``with Redlock(urls) as redlock: …`` closes its connections.
    """

    def __init__(self, urls: Iterable[str], *, answer_ms: int | None = None) -> None:
        self.inner = AsyncRedlock(urls, answer_ms=answer_ms)
        thread = LoopThread("tidewarden redlock")
        self.bridge: Bridge = thread
        self._end: Callable[[], object] = weakref.finalize(
            self, end_thread, thread, self.inner, os.getpid()
        )

    def lock(self, name: str, *, ttl_ms: int = TTL_MS) -> RedlockLock:
        """Return the lock of this name; ``ttl_ms``: its life, from each acquiring on."""
        return RedlockLock(self, self.inner.lock(name, ttl_ms=ttl_ms))

    def close(self) -> None:
        """Close the connections; locks end by their time."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
