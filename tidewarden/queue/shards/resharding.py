"""
Handles a request that reached a shard of a queue that was resharded since.

The module interprets the refusal, and repeats the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidewarden.errors import Error, NotFound, Stale
from tidewarden.store.connection import Arg, ReplySink, fail_reply

WORD = "RECUT"  # a script refuses so: `RECUT layout message`


class Resharded(Stale):
    """
    Says that the queue was resharded since this node read its settings; nothing was changed.

    ``layout`` is the shard's.
    """

    def __init__(self, queue: str, layout: int) -> None:
        super().__init__(
            f"the queue {queue} is being cut into other shards; repeat this in a moment"
        )
        self.layout = layout


def resharded_error(queue: str, error: BaseException) -> BaseException:
    """Return :class:`Resharded` if a script's error says so, else the error itself."""
    word, _, rest = str(error).partition(" ")
    return (
        Resharded(queue, int(rest.partition(" ")[0]))
        if word == WORD and type(error) is Error
        else error
    )


class Target(Protocol):
    """Declares a shard of the queue's present layout."""

    def repeat(self, name: str, item: Sequence[Arg], receiver: ReplySink) -> None:
        """
        Run one item of a refused batch once more, where its id lies now.

        The id is its first argument.
        """


Places = Callable[[str], Target]


def repeat(
    places: asyncio.Future[Any],
    error: Resharded,
    receivers: list[ReplySink],
    name: str,
    args: Sequence[Arg],
) -> None:
    """
    Run the items of a refused batch once more, each where its id lies now.

    The id is its first argument; ``places`` tells where. Without ``args`` the request is of no one
    id and fails with ``error``, after the settings were read. Where the queue was dropped all of
    them fail for that.
    """
    width = len(args) // len(receivers)

    def known(done: asyncio.Future[Places]) -> None:
        lost = done.cancelled() or done.exception() is not None
        dropped = None if done.cancelled() else done.exception()
        failure = dropped if isinstance(dropped, NotFound) else error
        for i, receiver in enumerate(receivers):
            if lost or not width:
                fail_reply(receiver, failure)
            elif not receiver.done():
                item = args[i * width : (i + 1) * width]
                try:
                    shard = done.result()(str(item[0]))
                except NotFound as gone:  # it was dropped in the meantime
                    fail_reply(receiver, gone)
                else:
                    shard.repeat(name, item, receiver)

    places.add_done_callback(known)
