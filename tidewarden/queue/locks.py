"""
Grants named locks, which are held under a lease and carry a fence number.

Callers that wait for a lock get it in the order in which they came to this node.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from tidewarden.errors import (
    BadArg,
    Error,
    Field,
    Full,
    NoQuorum,
    NotFound,
    NotHeld,
    Stale,
    StoreDown,
)

from .admin import QueueAdmin
from .catalog import Catalog
from .sessions.hold_limit import HoldLimit
from .sessions.session import Session
from .sessions.sessions import Sessions
from .settings import LOCKS_QUEUE as QUEUE
from .shards.reply_durability import Unconfirmed
from .shards.shard import Shard
from .take import hand_back
from .task import LEASE_MAX_MS, LEASE_NUMBER_MAX, Taken, check_id, check_range
from .waits.drain import Drain
from .waits.results import Results
from .waits.wait_lines import AGAIN_S, AWAY_S, Turn, WaitLines

log = logging.getLogger("tidewarden.queue")

KEY_MAX = 200
FENCE_BYTES = 8  # of a lock's payload; its KEY follows
SOON_S = 0.001  # a lease that is just ending is looked at again so soon


class _Want(NamedTuple):
    """
    Names the lock that is asked for.

    ``key`` begins with ``=`` when it is the caller's, with ``-`` when we made it.
    """

    session: Session
    name: str
    key: bytes
    lease_ms: int


class _Claim:
    """Shows an acquire under way to its session: to end :attr:`future` ends it."""

    __slots__ = ("_session", "_task", "_unclaimed", "future")

    queues = (QUEUE,)

    def __init__(
        self,
        session: Session,
        work: Coroutine[Any, Any, int | None],
        unclaimed: Callable[[int], object],
    ) -> None:
        """Call ``unclaimed`` with a fence whose caller has gone."""
        loop = asyncio.get_running_loop()
        self._unclaimed = unclaimed
        self.future: asyncio.Future[int | None] = loop.create_future()
        self._session = session
        self._task = loop.create_task(work)
        self._task.add_done_callback(self._answered)
        self.future.add_done_callback(self._ended)
        session.takes.add(self)

    def _answered(self, task: asyncio.Task[int | None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.future.done():
            if error is None and not task.cancelled() and (fence := task.result()):
                self._unclaimed(fence)
            return
        if task.cancelled():
            self.future.cancel()
        elif error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def cancel(self) -> None:
        """End the acquire, because the connection has gone."""
        self.future.cancel()

    def fail(self, error: BaseException) -> None:
        """End the acquire with an error, because the shared session has ended."""
        if not self.future.done():
            self.future.set_exception(error)

    def _ended(self, _: asyncio.Future[int | None]) -> None:
        self._session.takes.discard(self)
        self._task.cancel()


class Locks:
    """
    Grants and releases the locks of one node.

    A lock is a task of ``_locks`` that is there while the lock is held; its lease is the hold.
    """

    def __init__(
        self,
        catalog: Catalog,
        sessions: Sessions,
        hold_limit: HoldLimit,
        results: Results,
        admin: QueueAdmin,
        drain: Drain,
        *,
        wait_max_ms: int,
        waiting_max: int,
    ) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._hold_limit = hold_limit
        self._results = results
        self._admin = admin
        self._wait_max_ms = wait_max_ms
        self._waiting_max = waiting_max
        self._loop = asyncio.get_running_loop()
        # by name: only the first of a line asks, so that a release costs one try a node
        self._lines: WaitLines[str] = WaitLines(drain)

    @property
    def waiting(self) -> int:
        """Return how many acquires wait on this node."""
        return self._lines.waiting

    def acquire(
        self, session: Session, name: str, lease_ms: int, *, wait_ms: int = 0, key: bytes = b""
    ) -> asyncio.Future[int | None]:
        """
        Acquire the lock ``name`` for ``lease_ms`` from now; return a future of its fence number.

        The future is None when the lock was not free within ``wait_ms``.

        The number is greater than every earlier one of that name. With a ``key``, the same call
        again gets the same number while the lock is held, and for ``lease_ms`` anew: it belongs to
        the session that asked last. Callers on this node are served in the order of their calls.
        Cancel the future when the caller goes: what it was given by then is free again. Raises:
        BadArg, Full: too many wait on this node (at once), or the connection holds too many;
        StoreDown, Stale: the time is over, and the store still away (in the future; without a
        ``key`` the lock may be held by nobody until its lease ends).
        """
        _check_name(name)
        check_range(lease_ms, "lease_ms", 1, LEASE_MAX_MS, "the lease (ms)")
        check_range(wait_ms, "wait_ms", 0, self._wait_max_ms)
        if len(key) > KEY_MAX:
            raise BadArg(Field("key"), f" has {len(key)} bytes; allowed are 1 to {KEY_MAX}")
        if wait_ms and self.waiting >= self._waiting_max:
            raise Full(
                f"{self.waiting} wait for locks on this node; that is its limit"
                " (limits.waiting_max)"
            )
        # A key of our own makes our own second try safe, after the store was away.
        want = _Want(session, name, b"=" + key if key else b"-" + secrets.token_bytes(8), lease_ms)
        until = self._loop.time() + wait_ms / 1000
        work = self._wait(want, until) if wait_ms else self._try(want)
        return _Claim(session, work, lambda fence: self.unclaimed(session, name, fence, key)).future

    def unclaimed(self, session: Session, name: str, fence: int, key: bytes) -> None:
        """
        Free a lock whose caller went before it was told that it has it.

        With a ``key`` it may be a hold from before, and with a connection it ends anyway.
        """
        if not (key or session.closed):
            self._catalog.background.start(self._free(session, name, fence))

    async def _free(self, session: Session, name: str, fence: int) -> None:
        try:
            await self.release(session, name, fence)
        except Error as error:
            log.debug("the lock %s ends by its time: %s", name, error)

    async def _try(self, want: _Want) -> int | None:
        """
        Acquire at once or not at all; while others wait here, only a lock that the key holds
        already.
        """
        fence, _ = await self._ask(want, take=want.name not in self._lines)
        return fence or None

    async def _wait(self, want: _Want, until: float) -> int | None:
        if want.key[:1] == b"=" and want.name in self._lines:
            # It may be this caller's own hold that the line waits for.
            fence, _ = await self._ask(want, take=False)
            if fence:
                return fence
        try:
            with self._lines.join(want.name) as turn:
                return await self._first(want, turn, until)
        except TimeoutError:
            return None
        finally:
            # also when another than the first has left: the first looks again
            self._lines.wake(want.name)

    async def _first(self, want: _Want, turn: Turn, until: float) -> int:
        """Wait to become the first of the line, then for the lock. Raises: TimeoutError."""
        await turn.wait(until)
        place = (QUEUE, want.name)
        fence = 0
        self._results.listen(place, turn.event)
        try:
            while not fence:
                turn.begin()
                try:
                    fence, again = await self._ask(want, take=True, note=True)
                except (StoreDown, Stale, NoQuorum) as error:
                    if isinstance(error, Unconfirmed) and error.item[0]:
                        raise
                    again = self._loop.time() + AWAY_S
                    if again >= until:
                        raise
                if not fence:
                    await turn.wait(until, again)
            return fence
        finally:
            self._results.unlisten(place, turn.event, noted=not fence)

    async def _ask(self, want: _Want, *, take: bool, note: bool = False) -> tuple[int, float]:
        """
        Return the fence, or 0 and the loop's time to ask again at if nothing was heard by then.
        """
        if take and want.session.is_full and (QUEUE, want.name) not in want.session.held:
            await self._hold_limit.make_room(want.session)
        shard = await self._catalog.shard(QUEUE, want.name)
        owner = await self._sessions.owner(want.session, shard)
        reply = shard.batched(
            "queue.lock_acquire", want.name, want.key, want.lease_ms, int(take), int(note), owner
        )
        try:
            fence, lease, end_ms = await asyncio.shield(reply)
        except asyncio.CancelledError:
            reply.add_done_callback(lambda done: _give_back(shard, want.name, done))
            raise
        except Unconfirmed as error:
            # with a KEY of the caller's it may be a hold from before
            if want.key[:1] == b"-" and error.item[0]:
                hand_back(shard, want.name, error.item[1])
            raise
        if not fence:
            left_s = (end_ms - shard.now_ms) / 1000
            return 0, self._loop.time() + min(max(left_s, SOON_S), AGAIN_S)
        if want.session.closed:
            _give_back(shard, want.name, reply)
            raise asyncio.CancelledError
        hold = Taken(QUEUE, want.name, lease, b"", 1, end_ms, end_ms)
        want.session.hold([hold], shard.now_ms, self._loop.time())
        return int(fence), 0.0

    async def renew(self, session: Session, name: str, fence: int, lease_ms: int) -> int:
        """
        Hold the lock for ``lease_ms`` from now on; return its end, in unix ms of the store.

        Raises: BadArg; NotHeld: not under this fence, or no longer; StoreDown.
        """
        check_range(lease_ms, "lease_ms", 1, LEASE_MAX_MS, "the lease (ms)")
        shard = await self._shard(name, fence)
        lease, end_ms = await shard.batched("queue.lock_renew", name, fence, lease_ms)
        if not lease:
            raise _not_held(name, fence)
        if (entry := session.held.get((QUEUE, name))) is not None and entry[0] == lease:
            session.held[QUEUE, name] = (lease, int(end_ms), entry[2])
        return int(end_ms)

    async def release(self, session: Session, name: str, fence: int) -> None:
        """
        Free the lock, which goes to the next caller that waits for it.

        Raises: BadArg; NotHeld: not under this fence, or no longer; StoreDown.
        """
        shard = await self._shard(name, fence)
        lease = await shard.batched("queue.lock_release", name, fence)
        if not lease:
            raise _not_held(name, fence)
        session.drop(QUEUE, name, lease)

    async def _shard(self, name: str, fence: int) -> Shard:
        _check_name(name)
        check_range(fence, "fence", 0, LEASE_NUMBER_MAX, "the fence")
        return await self._catalog.shard(QUEUE, name)

    async def peek(self, name: str) -> dict[str, Any]:
        """Describe the lock and its holder. Raises: BadArg; NotFound: it is not held."""
        _check_name(name)
        try:
            return _described(await self._admin.peek(QUEUE, name))
        except NotFound:
            raise NotFound(f"nobody holds the lock {name}") from None

    async def page(self, count: int = 100, after: str = "") -> tuple[list[dict[str, Any]], str]:
        """
        List at most ``count`` held locks; returns them and the cursor to go on from, "" at the end.
        """
        tasks, cursor = await self._admin.page(QUEUE, "leased", count, after)
        return [_described(task) for task in tasks], cursor


def _check_name(name: str) -> str:
    return check_id(name, "lock's name")


def _not_held(name: str, fence: int) -> NotHeld:
    return NotHeld(f"the lock {name} is not held under the fence {fence}")


def _described(task: dict[str, Any]) -> dict[str, Any]:
    """Describe a lock for people; its KEY is that of its holder."""
    payload = task["payload"]
    found = {
        "name": task["id"],
        "fence": int(struct.unpack(">d", payload[:FENCE_BYTES])[0]),
        "node": task["node"],
        "lease_end_ms": task.get("lease_end_ms", 0),
        "keyed": payload[FENCE_BYTES : FENCE_BYTES + 1] == b"=",
    }
    if "session" in task:
        found["session"] = task["session"]
    return found


def _give_back(shard: Shard, name: str, done: asyncio.Future[Any]) -> None:
    """Give an acquired lock back, with its quorum or without, because its caller has gone."""
    if done.cancelled():
        return
    error = done.exception()
    found = done.result() if error is None else getattr(error, "item", None)
    if found and found[0]:
        hand_back(shard, name, found[1])
