"""
Answers writes once they are on disk, also in an embedded store that syncs its log once a second.

WAITAOF would be the way, but under ``appendfsync everysec`` Valkey to 9.1 and some Redis answer it
before the disk has anything (https://github.com/redis/redis/pull/13793). So the server is told to
sync every write as long as any write needs that: then it answers each after its sync. The calls of
one turn of the loop stand in a :class:`FsyncWindow`, which tells whether the server did so all the
while, without a further round trip. Where it did not, a group is committed behind the writes.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, NoQuorum, StoreDown
from tidewarden.store.connection import Arg, ReplyError, StoreConnection, pack
from tidewarden.store.full_store_writes import full_store_write
from tidewarden.store.reply_errors import error_of
from tidewarden.store.reply_sink import ReplySink, fail_reply, ignore_errors

from .group_commit import KEEP_MS, GroupCommit, Requirement, log
from .server_identity import ServerIdentity

REST_MS = 2000  # after the last such write, of whichever node, the store syncs once a second again
AWAKE = pack(("CONFIG", "SET", "appendfsync", "always"))


class FsyncCommit(GroupCommit):
    """Commits the scripts sent by :attr:`route`: an answer leaves once its write is on disk."""

    def __init__(
        self, data: StoreConnection, link: StoreConnection, key: str, limit_ms: int, clock: Clock
    ) -> None:
        super().__init__(data, link, key, Requirement(0, disk_here=True), limit_ms, clock)
        self._key = key
        self._waits = ()
        self._rest: asyncio.Task[None] | None = None
        self._awake = False
        self._begin = [pack(("MULTI",)), AWAKE]
        self._end = pack(("EXEC",))
        self._window: FsyncWindow | None = None  # of this turn of the loop
        self.route = FsyncClient(data, self)

    def window(self) -> FsyncWindow:
        """Return the window of this turn of the loop, which has the calls of ``data``."""
        window = self._window
        if window is None:
            window = self._window = FsyncWindow(self, self._data, self._key, self.ground())
            self._loop.call_soon(self._close)
            self._will_rest()
        return window

    def _close(self) -> None:
        window, self._window = self._window, None
        assert window is not None
        window.close()
        self.groups += 1

    def _own_write(self) -> bytes:
        # It writes another value each time: see FsyncWindow.
        made, self._there = self._there, True
        return (
            self._mark
            if made
            else pack(full_store_write("SET", self._key, uuid.uuid4().hex, "PX", KEEP_MS))
        )

    async def _written(self) -> asyncio.Future[Any]:
        answers = [self._send(one) for one in (*self._begin, self._own_write(), self._end)]
        *_, executed = await asyncio.gather(*answers, return_exceptions=True)
        self._will_rest()
        written: asyncio.Future[Any] = self._loop.create_future()
        if isinstance(executed, BaseException):
            written.set_exception(executed)
        elif executed is None:  # the key has changed, which _rested watches on this connection
            written.set_exception(StoreDown("nothing was done"))
        elif isinstance(executed[0], ReplyError):
            written.set_exception(error_of(str(executed[0])))
        else:
            written.set_result(executed[1])
        return written

    # --- a sync a second again

    def _will_rest(self) -> None:
        self._awake = True
        if self._rest is None:
            self._rest = self._loop.create_task(
                self._rest_later(), name="store syncs once a second again"
            )

    async def _rest_later(self) -> None:
        """
        Let the store sync once a second again, once no node has needed more for a while.

        The key's age tells that, and WATCH tells that no node begins to in that very moment.
        """
        try:
            while self._awake:
                self._awake = False  # until a write from here on
                await sleep(self._clock, REST_MS / 1000)
                try:
                    rested = await self._rested()
                    self._awake = self._awake or not rested
                except StoreDown:
                    log.debug("a store that was started anew syncs as it is configured")
                except Error as error:
                    log.warning("the store goes on syncing every write: %s", error)
                    return
        finally:
            self._rest = None

    async def _rested(self) -> bool:
        link, connects = self._link, self._link.reconnects
        _, left_ms = await asyncio.gather(
            link.call("WATCH", self._key), link.call("PTTL", self._key)
        )
        if link.reconnects != connects:
            return False
        if self._task is not None or KEEP_MS - left_ms < REST_MS:
            await link.call("UNWATCH")
            return False
        mark = full_store_write(
            "SET", self._key, uuid.uuid4().hex, "PX", KEEP_MS - REST_MS
        )  # another value of the same age
        words = (("MULTI",), mark, ("CONFIG", "SET", "appendfsync", "everysec"), ("EXEC",))
        *_, done = await asyncio.gather(*(link.call(*one) for one in words))
        return done is not None

    async def stop(self) -> None:
        """See :meth:`GroupCommit.stop`."""
        await super().stop()
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.gather(self._rest, return_exceptions=True)


class FsyncClient:
    """Sends scripts (as a :class:`tidewarden.store.client.CallSender`) inside a window."""

    clustered = False

    def __init__(self, link: StoreConnection, commit: FsyncCommit) -> None:
        self._link = link
        self._commit = commit

    def send(self, packed: bytes, receiver: ReplySink, _key: Arg = "", /) -> None:
        """See :meth:`StoreConnection.send`."""
        window = self._commit.window()
        self._link.send(packed, FsyncReply(window, receiver))


class FsyncWindow:
    """
    Holds the calls of one link between two readings of a key.

    The order is: read, sync every write, the writes, read and touch.

    A node that has the server go back to a sync a second gives the key another value in the same
    transaction. If that comes behind the first reading, the second reading shows it. It does not
    come behind the second reading before the writes are synced: that node watches the key, so that
    the touch prevents its transaction, or its watch began later; then the transaction comes a turn
    of the server's loop later, and each turn ends with the sync of what was written in it.
    """

    def __init__(
        self, commit: FsyncCommit, link: StoreConnection, key: str, ground: ServerIdentity[str]
    ) -> None:
        """
        Begin with the first reading.

        ``ground``: the server of the group that is committed behind the writes, where the readings
        differ.
        """
        self._commit = commit
        self._link = link
        self._ground = ground
        self._touch = pack(("GETEX", key, "PX", KEEP_MS))
        self._answered: list[FsyncReply] = []
        self._before, self._synced = self._send(pack(("GET", key))), self._send(AWAKE)

    def close(self) -> None:
        """Send the second reading: all calls of the window were sent."""
        self._send(self._touch).add_done_callback(self._read_again)

    def hold(self, reply: FsyncReply) -> None:
        """Hold a reply back until the second reading is there."""
        self._answered.append(reply)

    def _read_again(self, reading: asyncio.Future[Any]) -> None:
        after = said(reading)
        synced = after is not None and said(self._before) == after and said(self._synced) == b"OK"
        answered, self._answered = self._answered, []  # each of them holds this window
        for reply in answered:
            if synced:
                reply.confirmed()
            else:
                self._commit.add(self._ground, reply)

    def _send(self, packed: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(ignore_errors)
        self._link.send(packed, future)
        return future


class FsyncReply:
    """Gets the reply to a call of a window, and passes it to ``receiver`` once it is on disk."""

    __slots__ = ("_receiver", "_reply", "_window", "done")

    def __init__(self, window: FsyncWindow, receiver: ReplySink) -> None:
        self._window = window
        self._receiver = receiver
        self._reply: Any = None
        self.done = receiver.done

    def set_result(self, reply: Any, /) -> None:
        """Note the reply, although it is not known yet whether the write lasts."""
        self._reply = reply
        self._window.hold(self)

    def set_exception(self, error: BaseException, /) -> None:
        """Pass the error on: the call was refused, or its outcome is unknown."""
        fail_reply(self._receiver, error)

    def confirmed(self) -> None:
        """See :class:`tidewarden.store.durability.held_answers.HeldAnswer`."""
        if not self._receiver.done():
            self._receiver.set_result(self._reply)

    def missed(self, error: NoQuorum, /) -> None:
        """See :class:`tidewarden.store.durability.held_answers.HeldAnswer`."""
        fail_reply(self._receiver, error)


def said(reply: asyncio.Future[Any]) -> Any:
    """Return the answer to a command; None: there is none, or it is an error."""
    return None if reply.cancelled() or reply.exception() is not None else reply.result()
