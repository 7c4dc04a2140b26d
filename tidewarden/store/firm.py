"""
Writes that are on disk before they are believed, also in an embedded store that brings its log to disk once a second.

WAITAOF would be the way, but under ``appendfsync everysec`` Valkey to 9.1 and some Redis answer it before the disk has
anything (https://github.com/redis/redis/pull/13793). So the server is told to sync every write as long as there are such groups:
the answer to a write made then comes after the sync of all that was written before.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, StoreDown
from tidewarden.store.commit import KEEP_MS, Commit, Demand, log
from tidewarden.store.link import Link, ReplyError, pack
from tidewarden.store.refusals import error_of

REST_MS = 2000  # after the last group, of whichever node, the store syncs once a second again


class Firm(Commit):
    """The group commit to an embedded store's disk."""

    def __init__(self, data: Link, link: Link, key: str, limit_ms: int, clock: Clock) -> None:
        super().__init__(data, link, key, Demand(0, disk_here=True), limit_ms, clock)
        self._key = key
        self._waits = ()
        self._rest: asyncio.Task[None] | None = None
        self._begin = [pack(("MULTI",)), pack(("CONFIG", "SET", "appendfsync", "always"))]
        self._end = pack(("EXEC",))

    async def _written(self) -> asyncio.Future[Any]:
        answers = [self._send(one) for one in (*self._begin, self._own_write(), self._end)]
        *_, executed = await asyncio.gather(*answers, return_exceptions=True)
        if self._rest is None:
            self._rest = self._loop.create_task(self._rest_later(), name="store syncs once a second again")
        written: asyncio.Future[Any] = self._loop.create_future()
        if isinstance(executed, BaseException):
            written.set_exception(executed)
        elif executed is None:  # what was watched for the end of the last groups has changed
            written.set_exception(StoreDown("nothing was done"))
        elif isinstance(executed[0], ReplyError):
            written.set_exception(error_of(str(executed[0])))
        else:
            written.set_result(executed[1])
        return written

    async def _rest_later(self) -> None:
        """Once nobody has had a group for a while. The key's age tells, and WATCH that nobody begins one in that very moment."""
        try:
            while True:
                await sleep(self._clock, REST_MS / 1000)
                try:
                    if await self._rested():
                        return
                except StoreDown:
                    return  # one that was started anew syncs as it is configured
                except Error as error:
                    log.warning("the store goes on syncing every write: %s", error)
                    return
        finally:
            self._rest = None

    async def _rested(self) -> bool:
        link, connects = self._link, self._link.reconnects
        _, left_ms = await asyncio.gather(link.call("WATCH", self._key), link.call("PTTL", self._key))
        if link.reconnects != connects:
            return False
        if self._task is not None or KEEP_MS - left_ms < REST_MS:
            await link.call("UNWATCH")
            return False
        words = (("MULTI",), ("CONFIG", "SET", "appendfsync", "everysec"), ("EXEC",))
        *_, done = await asyncio.gather(*(link.call(*one) for one in words))
        return done is not None

    async def stop(self) -> None:
        """See :meth:`Commit.stop`."""
        await super().stop()
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.gather(self._rest, return_exceptions=True)
