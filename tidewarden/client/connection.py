"""
One pipelined connection to a node: answers come in the order of requests, and nothing is repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from .address import Address

Arg = str | bytes | int
Replies = list[Any]
Orphan = Callable[[Replies], None]


class Broken(Exception):
    """
    The connection was lost before the answer came.

    ``sent``: the request, or a part of it, may have reached the node, and it may or may not have
    happened.
    """

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class _Batch:
    """Holds the requests of one piece: their answers, and the future that waits for them."""

    __slots__ = ("count", "future", "orphan", "replies")

    def __init__(self, count: int, future: asyncio.Future[Replies], orphan: Orphan | None) -> None:
        self.count = count
        self.future = future
        self.orphan = orphan
        self.replies: Replies = []


class ClientConnection(asyncio.Protocol):
    """
    Sends the requests of one turn of the loop as one piece, and reads their answers.

    ``on_lost`` is called once, when the connection has gone.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[_Batch] = deque()
        self._out: list[bytes] = []
        self._gone = self._loop.create_future()
        self._why = ""
        # no more is asked here, and the node is to be told when one answer is owed
        self._leaving = False
        self.on_lost: Callable[[ClientConnection], None] | None = None
        self.answered_at = self._loop.time()  # when bytes came last, in seconds of the loop

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.answered_at = self._loop.time()
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while waiting:
                batch = waiting[0]
                replies = batch.replies
                while len(replies) < batch.count:
                    reply = reader.gets()
                    if reply is False:
                        return
                    replies.append(reply)
                waiting.popleft()
                if not batch.future.done():
                    batch.future.set_result(replies)
                elif batch.orphan is not None:
                    batch.orphan(replies)
                if self._leaving and len(waiting) <= 1:
                    self._say_end()
        except hiredis.ProtocolError as error:
            self.abort(f"what came is no RESP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        why = self._why or self._last_word() or (str(exc) if exc else "closed by the node")
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            if not batch.future.done():
                batch.future.set_exception(Broken(why, sent=True))
                _ = batch.future.exception()  # a caller that has gone must not leave a warning
        if not self._gone.done():
            self._gone.set_result(None)
        if self.on_lost is not None:
            self.on_lost(self)

    def _last_word(self) -> str:
        """Return the error with which the node hung up, or ""."""
        said = list(self._waiting[0].replies) if self._waiting else []
        try:
            while (reply := self._reader.gets()) is not False:
                said.append(reply)
        except hiredis.ProtocolError:
            return ""
        return str(said[-1]) if said and isinstance(said[-1], hiredis.ReplyError) else ""

    # What we call.

    @property
    def up(self) -> bool:
        """Tell whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def busy(self) -> bool:
        """Tell whether an answer is outstanding."""
        return bool(self._waiting)

    async def request(
        self, packed: Sequence[bytes], limit_s: float, orphan: Orphan | None = None
    ) -> Replies:
        """
        Send requests as one piece and return their replies.

        A ``hiredis.ReplyError`` stands for a refusal.

        A connection that owes the answers for ``limit_s`` seconds is cut. ``orphan`` gets the
        replies when the caller was cancelled meanwhile and they came all the same.

        Raises: Broken.
        """
        future = self.post(packed, limit_s, orphan)
        try:
            return await future
        except asyncio.CancelledError:
            if (
                orphan is not None
                and future.done()
                and not future.cancelled()
                and future.exception() is None
            ):
                # the answer and the cancellation came in one turn of the loop
                orphan(future.result())
            raise

    def post(
        self, packed: Sequence[bytes], limit_s: float, orphan: Orphan | None = None
    ) -> asyncio.Future[Replies]:
        """Queue requests for the next piece of this turn, and return a future of their replies."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Broken(self._why or "the connection is closed", sent=False)
        future: asyncio.Future[Replies] = self._loop.create_future()
        self._waiting.append(_Batch(len(packed), future, orphan))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += packed
        timer = self._loop.call_later(limit_s, self.abort, f"no answer within {limit_s:g} s")
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def abandon(self) -> None:
        """
        Send nothing more and let the node hang up.

        It ends a take that waits here, and what it had sent before still arrives.

        Only the last request may be one that waits: answers that are owed to others come before the
        node is told.
        """
        self._leaving = True
        if len(self._waiting) <= 1:
            self._say_end()

    def _say_end(self) -> None:
        self._leaving = False
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def abort(self, why: str) -> None:
        """Close the connection at once; outstanding requests fail with ``why``."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    async def close(self, limit_s: float = 1.0) -> None:
        """Close the connection and wait for its end, at most ``limit_s`` seconds."""
        if self._transport is None:
            return
        self._why = self._why or "the client was closed"
        self._flush()
        self._transport.close()
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self.abort(self._why)


def pack(*args: Arg) -> bytes:
    """Encode one request."""
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # a tuple is invariant in its items
    return packed
