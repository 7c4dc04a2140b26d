"""Runs one script on several shards, in one call where they lie on one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from tidewarden.errors import Error, StoreDown
from tidewarden.queue.background import BackgroundTasks
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.scripts.loader import EACH

from .shard import Shard

TOGETHER = 32
"""
A call with so many shards takes in no further queue: each costs some 50 µs of the store's time.
"""

Kind = tuple[str, tuple[Arg, ...], str]
"""
The requests that may go in one call have the same: a script, its arguments, the shards' layout.
"""
Asked = tuple[Sequence[Shard], asyncio.Future[list[Any]]]
"""The shards of one queue, and the future of their items."""


class ShardGroup:
    """
    Runs scripts whose header says EACH on several shards.

    A script that READS, or may run twice, is run in one call for the queues that are asked in one
    turn of the loop: a call for each of thousands of small queues costs more than what it asks for.
    """

    def __init__(
        self,
        link: StoreClient,
        scripts: Scripts,
        holder: Callable[[], str],
        background: BackgroundTasks,
    ) -> None:
        self._link = link
        self._scripts = scripts
        self._holder = holder
        self._background = background
        self._gathering: dict[Kind, list[Asked]] = {}

    async def run(
        self, shards: Sequence[Shard], name: str, args: Sequence[Arg], *, together: bool = False
    ) -> list[Any]:
        """
        Run a script on these shards of one queue; returns the items of each.

        ``together``: it may run twice on a shard, so it is asked with other queues as one that
        READS is.

        A shard that has refused runs the script by itself, and finds out what that means. Raises:
        as :meth:`Shard.run`.
        """
        if (together or self._scripts[name].reads) and not self._link.clustered:
            found = await self._gathered(shards, name, args)
        else:
            found = await self._together(shards, name, args)
        alone = {
            place: shards[place].run(name, args)
            for place, items in enumerate(found)
            if isinstance(items, Exception)
        }
        for place, items in zip(alone, await asyncio.gather(*alone.values()), strict=True):
            found[place] = items
        return found

    def _gathered(
        self, shards: Sequence[Shard], name: str, args: Sequence[Arg]
    ) -> asyncio.Future[list[Any]]:
        """Return what :meth:`_together` does, with other queues that are asked in this turn."""
        kind = (name, tuple(args), shards[0].layout)
        asked = self._gathering.get(kind)
        if asked is None:
            asked = self._gathering[kind] = []
            # a task of its own: whoever waits may be cancelled, and others wait, too
            self._background.start(self._answer(kind, asked))
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        asked.append((shards, future))
        if sum(len(some) for some, _ in asked) >= TOGETHER:
            del self._gathering[kind]  # It goes as it is; the next queue begins another.
        return future

    async def _answer(self, kind: Kind, asked: list[Asked]) -> None:
        if self._gathering.get(kind) is asked:
            del self._gathering[kind]
        try:
            found = await self._found(kind, list(chain.from_iterable(some for some, _ in asked)))
            for shards, future in asked:
                items, found = found[: len(shards)], found[len(shards) :]
                if not future.done():
                    future.set_result(items)
        except Exception as error:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
        finally:
            for _, future in asked:
                future.cancel()  # which has no answer: this task was cancelled

    async def _found(self, kind: Kind, shards: Sequence[Shard]) -> list[Any]:
        """
        Return what :meth:`_together` does.

        A script that fails at one shard fails the call: each shard is to be asked by itself, and
        the one at fault says so to those alone that asked for it.
        """
        name, args, _ = kind
        try:
            return await self._together(shards, name, args)
        except StoreDown:
            raise
        except Error as error:
            return [error] * len(shards)

    async def _together(self, shards: Sequence[Shard], name: str, args: Sequence[Arg]) -> list[Any]:
        """
        Run a script on shards of one layout in one call.

        Returns the items of each, or an error where the shard is to be asked by itself.
        """
        found: list[Any] = [StoreDown("it was not asked")] * len(shards)
        places = [place for place, shard in enumerate(shards) if not shard.flies]
        if self._link.clustered or len(places) < 2:
            return found
        some = [shards[place] for place in places]
        keys = (*(shard.keys[0] for shard in some), *some[0].keys[1:])
        said = (len(some), some[0].stamped(0), self._holder(), *args)
        for shard in some:
            shard.sent()
        try:
            replies = await self._scripts.run(self._link, name + EACH, keys, said)
        finally:
            for shard in some:
                shard.answered()
        for place, reply in zip(places, replies, strict=True):
            if isinstance(reply, Exception):
                found[place] = reply
            else:
                now_ms, next_ms, woke, found[place] = reply
                shards[place].on_shard_state(now_ms, next_ms, bool(woke))
        return found
