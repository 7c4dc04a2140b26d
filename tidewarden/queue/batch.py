"""Items of one verb that wait to be sent to one shard together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidewarden.errors import Internal
from tidewarden.store.link import Arg, ReplyError, error_of


class Batch:
    """Items of one verb that wait to be sent: their arguments, and who wants each reply."""

    __slots__ = ("args", "bytes", "futures", "head", "name", "verb")

    def __init__(self, name: str, head: Sequence[Arg] = ()) -> None:
        self.name = name
        self.verb = name.rpartition(".")[2]
        self.head = head
        self.bytes = 0
        self.args: list[Arg] = []
        self.futures: list[asyncio.Future[Any]] = []

    def answer(self, items: Any) -> None:
        """The script's answer for each item, or its refusal of them all."""
        if isinstance(items, ReplyError):
            self.fail(error_of(str(items)))
        elif len(items) != len(self.futures):
            self.fail(Internal(f"a script answered {len(items)} items for {len(self.futures)}"))
        else:
            for future, item in zip(self.futures, items, strict=True):
                if not future.done():
                    future.set_result(item)

    def fail(self, error: BaseException) -> None:
        """Nobody's item was done, or nobody knows."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                _ = future.exception()
