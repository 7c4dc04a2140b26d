"""Who gets a reply of the store."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class ReplySink(Protocol):
    """
    Who gets a reply: a future, or anything else with these three methods of one.

    A future's listeners run in a later turn of the loop; what acts at once in ``set_result`` saves
    those turns. It must not raise.
    """

    def done(self) -> bool:
        """Whether it wants nothing any more."""

    def set_result(self, result: Any, /) -> None:
        """The reply."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Why there is none."""


def ignore_errors(future: asyncio.Future[Any]) -> None:
    """
    A listener for what nobody waits for: its failure leaves no warning, for time puts right what it
    would have done.
    """
    if not future.cancelled():
        _ = future.exception()


def fail_reply(receiver: ReplySink, error: BaseException) -> None:
    """There will be no reply; a caller that has gone leaves no warning."""
    if not receiver.done():
        receiver.set_exception(error)
        if isinstance(receiver, asyncio.Future):
            _ = receiver.exception()
