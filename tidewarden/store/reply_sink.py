"""Defines the interface of a receiver of the store's replies."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class ReplySink(Protocol):
    """
    Receives one reply: a future, or anything else with these three methods of one.

    A future's listeners run in a later turn of the loop; what acts at once in ``set_result`` saves
    those turns. It must not raise.
    """

    def done(self) -> bool:
        """Return whether the reply is not wanted any more."""

    def set_result(self, result: Any, /) -> None:
        """Receive the reply."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Receive the error, when there is no reply."""


def ignore_errors(future: asyncio.Future[Any]) -> None:
    """Ignore the failure of a future that is not awaited: a later call makes up for it."""
    if not future.cancelled():
        _ = future.exception()


def fail_reply(receiver: ReplySink, error: BaseException) -> None:
    """Give the receiver an error instead of a reply; a caller that has gone leaves no warning."""
    if not receiver.done():
        receiver.set_exception(error)
        if isinstance(receiver, asyncio.Future):
            _ = receiver.exception()
