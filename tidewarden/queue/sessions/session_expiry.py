"""
Ends shared sessions at the end of their grace.

The node that saw their last connection go does it, else the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from tidewarden.errors import Error, NotFound, StoreDown
from tidewarden.queue.background import BackgroundTasks
from tidewarden.queue.catalog import Catalog

from .session_records import SessionRecords

log = logging.getLogger("tidewarden.queue")

PIECE = 500  # leases, or sessions, that one script ends
REST_MS = 10_000  # after which the leader goes on with what was stopped, and not released


class SessionExpiry:
    """
    Ends shared sessions.

    A session's end is three steps, each safe to repeat: the record says that it has ended, so that
    no connection joins it any more; its leases end, shard by shard; the record goes.
    """

    def __init__(
        self, catalog: Catalog, records: SessionRecords, background: BackgroundTasks
    ) -> None:
        self._records = records
        self._catalog = catalog
        self._background = background
        self._loop = asyncio.get_running_loop()
        # that run here, by session
        self._graces: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self.ended = 0

    @property
    def running(self) -> int:
        """Return how many graces run here."""
        return len(self._graces)

    def end_in(self, left_ms: int, uuid: str, number: int) -> None:
        """
        End the session's grace in ``left_ms``, unless a connection joins it before.

        Only the latest end is waited for: a consumer that leaves and joins for an hour leaves no
        more behind than one that does so once.
        """
        if (former := self._graces.get(uuid)) is not None:
            if former[0] > number:
                return
            former[1].cancel()

        def over() -> None:
            del self._graces[uuid]
            self._background.start(self._end_quietly(uuid, number))

        self._graces[uuid] = number, self._loop.call_later(left_ms / 1000, over)

    async def _end_quietly(self, uuid: str, number: int) -> None:
        try:
            await self.end(uuid, number)
        except Error as error:
            log.warning(
                "the session %s could not be ended; the leader goes on with it: %s", uuid, error
            )

    async def end(self, uuid: str, number: int = -1) -> bool:
        """
        End a session whose grace is over: its leases, as losses, and its record.

        It is safe to repeat. ``number``: the attach number that was given up; a session that was
        joined since goes on. Returns whether it ended. Raises: StoreDown: the leader's next look
        goes on with it.
        """
        left_ms, places = await self._records.run("end", uuid, number)
        if left_ms > 0:
            self.end_in(left_ms, uuid, number)
        if left_ms != 0:
            return False
        await self.release(uuid, list(filter(None, map(_place_of, places))))
        self.ended += int(await self._records.run("forget", uuid))
        return True

    async def stop(self, uuid: str, user: str, tell: Callable[[str], Awaitable[object]]) -> int:
        """
        End a session though its connections be there; returns how many leases were released.

        Those in it join no more, and take nothing once ``tell(uuid)`` has told the processes that
        have them (:meth:`.Sessions.stopped`). Safe to repeat. ``user``: whose it has to be; empty:
        anybody's. Raises: NotFound: there is none; StoreDown: the leader's next look goes on with
        it.
        """
        places = await self._records.run("stop", uuid, user, REST_MS)
        await tell(uuid)
        found = list(filter(None, map(_place_of, places)))
        released = await self.release(uuid, found, "release")
        self.ended += int(await self._records.run("forget", uuid))
        return released

    async def release(self, uuid: str, places: list[Sequence[str]], how: str = "loss") -> int:
        """
        Release the session's leases in these shards, each a queue and a number; return how many.
        """
        counts = await asyncio.gather(
            *(self._release_in(uuid, queue, int(index), how) for queue, index in places)
        )
        return sum(counts)

    async def _release_in(self, uuid: str, queue: str, index: int, how: str) -> int:
        total = 0
        with contextlib.suppress(NotFound):  # it was dropped, with what the session held there
            shards = await self._catalog.open(queue)
            more = index < len(shards)  # a queue that was cut anew was empty
            while more:
                args = (uuid, PIECE, how)
                ended, more = await shards[index].run("queue.session_release", args)
                total += ended
        return total

    # --- what the leader does

    async def bury(
        self, epoch: int, node: str, boot: int, page_done: Callable[[], object] = bool
    ) -> int:
        """
        Begin the grace of a dead boot's sessions, and return how many it had.

        It was marked dead in every shard before.

        ``page_done`` is called after each of their pages. Raises: Stale: another leads; StoreDown.
        """
        total, more = 0, 1
        while more:
            left, more = await self._records.run_fenced("bury", epoch, node, boot, PIECE)
            page_done()
            total += left
        return total

    async def end_due(self, page_done: Callable[[], object] = bool) -> int:
        """
        End the sessions whose grace is over and whose node died before; return how many.

        ``page_done`` is called after each of their pages. Raises: StoreDown.
        """
        total = failed = 0
        more = True
        while more:
            # Those that could not be ended stay at the head: the next page begins behind them.
            uuids = [raw.decode() for raw in await self._records.run("due", PIECE, failed)]
            ends = await asyncio.gather(*(self.end(uuid) for uuid in uuids), return_exceptions=True)
            page_done()
            total += ends.count(True)
            more = True in ends
            for uuid, end in zip(uuids, ends, strict=True):
                if isinstance(end, BaseException):
                    if isinstance(end, StoreDown) or not isinstance(end, Error):
                        raise end
                    log.warning("the session %s could not be ended: %s", uuid, end)
                    failed, more = failed + 1, True
        return total


def _place_of(raw: bytes) -> Sequence[str] | None:
    """
    Parse a queue and the number of its shard; None, and a line in the log, if that cannot be read.
    """
    queue, _, index = raw.decode("utf-8", "backslashreplace").rpartition(" ")
    if queue and index.isascii() and index.isdigit():
        return queue, index
    log.warning("a session may hold tasks in a place that cannot be read: %r", raw[:200])
    return None
