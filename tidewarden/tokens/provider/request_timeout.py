"""
Times a request as asyncio.timeout() does, for a sixth of the price, and looks twice at the end.

A process that was paused past the time (SIGSTOP, a host that slept) finds the timer gone off and
the answer unread at once; and an answer that holds the only refresh token must not be thrown away.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

UNREAD_S = 0.25  # What a request whose time is over gets to read the answer that may be there.


class RequestTimeout:
    """Raises TimeoutError in its block ``limit_s`` + :data:`UNREAD_S` seconds after it begins."""

    __slots__ = ("_cancelling", "_loop", "_over", "_task", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        """Use the running ``loop``: asking for it is a system call before Python 3.12."""
        task = asyncio.current_task(loop)
        assert task is not None
        self._loop = loop
        self._task = task
        self._cancelling = task.cancelling()
        self._over = False
        self._timer = loop.call_later(limit_s, self._look_again)

    def __enter__(self) -> None:
        """Do nothing: the timer runs already."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if not self._over:
            return
        # As in asyncio.timeout(): others may have cancelled the task besides.
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(UNREAD_S, self._end)

    def _end(self) -> None:
        self._over = True
        self._task.cancel()
