"""
Releases leases that no connection knows of.

The answer of a take was lost with the connection to the store, or the call that would have given
its task back. Such leases end here, as releases. Without this they would last their whole time, and
count as attempts. Leases of shared sessions are left alone: another node, or a connection yet to
come, may know of them. Those of no connection are looked at, too: only the process that took them
can know of them (:mod:`.unbound`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from tidewarden.clock import Clock, sleep, sleep_or
from tidewarden.errors import Error, StoreDown
from tidewarden.queue.shards.resharding import Resharded
from tidewarden.queue.shards.shard import Shard

from .session import Session

log = logging.getLogger("tidewarden.queue")

PAGE = 500
RETRY_S = 0.5
# a call that the store had not read yet when its connection was lost has been run, or never will be
AGAIN_S = 5.0


class LostTakes:
    """
    Looks through a shard after :meth:`lost`, once for many of these.

    ``holder()`` is this process's; ``sessions()`` all that are open; ``arriving()`` what takes have
    got that is no session's yet, by queue, id and lease number; ``current(shard)`` what has the
    shard's place since its queue was cut anew, None where nothing has: it was empty then.
    """

    def __init__(
        self,
        clock: Clock,
        holder: Callable[[], str],
        sessions: Callable[[], Iterable[Session]],
        arriving: Callable[[], Iterable[tuple[str, str, int]]],
        current: Callable[[Shard], Shard | None],
    ) -> None:
        self._clock = clock
        self._holder = holder
        self._sessions = sessions
        self._arriving = arriving
        self._current = current
        self._looks: dict[Shard, asyncio.Task[None]] = {}
        self._further: dict[Shard, asyncio.Event] = {}
        self.released = 0

    def lost(self, shard: Shard) -> None:
        """
        Look for leases in this shard, where the answer of a take, or of a giving back, was lost.
        """
        if shard in self._looks:
            self._further[shard].set()
            return
        further = self._further[shard] = asyncio.Event()
        task = self._looks[shard] = asyncio.get_running_loop().create_task(
            self._look(shard, further)
        )
        task.add_done_callback(lambda done: self._looked(shard, done))

    def _looked(self, shard: Shard, done: asyncio.Task[None]) -> None:
        del self._looks[shard], self._further[shard]
        if not done.cancelled() and done.exception() is not None:
            log.error(
                "leases that nobody knows of in %s end by their time",
                shard.queue,
                exc_info=done.exception(),
            )

    async def _look(self, shard: Shard, further: asyncio.Event) -> None:
        """
        Release the holder's unknown leases at once after each loss, and once more later.

        The lost call may be run yet.
        """
        while True:
            further.clear()
            holder = self._holder()
            await self._release(shard, holder, further)
            await sleep_or(further, self._clock, self._clock.monotonic() + AGAIN_S)
            if not further.is_set():
                await self._release(shard, holder, further)
            if not further.is_set():
                return

    async def _release(self, shard: Shard, holder: str, further: asyncio.Event) -> None:
        """
        Release the leases that this process holds unknowingly, unless it has registered anew.

        Then it holds nothing any more: the leader ends the former boot's leases.
        """
        before = self.released
        # What was answered before this list was has reached its session or its take, or waits for
        # its group: `known` tells.
        found = await self._list(shard, holder)
        for session in [one for one in self._sessions() if one.own]:
            found += await self._list(shard, holder, session.own)
        while found and self._holder() == holder:
            known = self.known(shard)
            page, found = found[:PAGE], found[PAGE:]
            unknown = [(task_id, lease) for task_id, lease in page if (task_id, lease) not in known]
            try:
                self.released += await self._end(shard, unknown)
            except (StoreDown, Resharded) as error:
                log.debug(
                    "leases that nobody knows of were not released, they are looked for again: %s",
                    error,
                )
                further.set()
                await sleep(self._clock, RETRY_S)
                return
            except Error as error:
                log.debug("leases that nobody knows of were not released: %s", error)
        if self.released > before:
            log.info(
                "%d leases of %s were released: their takes' answers had been lost",
                self.released - before,
                shard.queue,
            )

    async def _end(self, shard: Shard, leases: Sequence[tuple[str, int]]) -> int:
        """
        Release leases that no session knows of; return how many still ran.

        None of them has an ack that was made and is not answered: that would be known.
        """
        now = self._current(shard)
        if not leases or now is None:
            return 0
        args = [arg for task_id, lease in leases for arg in (task_id, lease, "release", -1, "")]
        return sum(await now.run("queue.end", args))

    async def _list(self, shard: Shard, holder: str, own: str = "") -> list[tuple[str, int]]:
        """
        List the holder's leases in this shard at one moment after the store is back.

        With ``own``, list those that stand under that uuid instead.
        """
        found: list[tuple[str, int]] = []
        seen, more = 0, True
        while more and self._holder() == holder and (now := self._current(shard)) is not None:
            try:
                *flat, looked = await now.run(
                    "queue.leases_of", (seen, PAGE, own) if own else (seen, PAGE)
                )
            except (StoreDown, Resharded):
                # the latter came with the settings, unless the store went away
                await sleep(self._clock, RETRY_S)
                continue
            seen, more = seen + looked, looked == PAGE
            found += [
                (row.decode("utf-8", "surrogateescape"), n)
                for row, n in zip(flat[::2], flat[1::2], strict=True)
            ]
        return found

    def known(self, shard: Shard) -> set[tuple[str, int]]:
        """Return every lease in the shard's queue that this process knows of, by id and number."""
        known = {
            (task_id, lease) for queue, task_id, lease in self._arriving() if queue == shard.queue
        }
        for one in {shard, self._current(shard) or shard}:
            known.update(one.leases())
        # those of one shared session hold together
        for held in {id(one.held): one.held for one in self._sessions()}.values():
            known.update(
                (task_id, lease)
                for (queue, task_id), (lease, _, _) in held.items()
                if queue == shard.queue
            )
        return known
