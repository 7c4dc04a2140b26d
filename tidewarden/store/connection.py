"""
Keeps a pipelined connection to the store, with many calls under way at once.

It is reconnected in one place, and repeats nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from tidewarden.clock import Clock, shared_turn, sleep
from tidewarden.errors import Full, StoreDown

from .connect import redact
from .endpoint import Endpoint, PrimaryFinder, server_of
from .link_log import LinkLog
from .reply_errors import (
    NoMajority,
    NotSent,
    ReadOnlyServer,
    error_of,
    known_already,
    unanswered,
)
from .reply_sink import ReplySink, fail_reply, ignore_errors

__all__ = ["Arg", "ReplyError", "ReplySink", "StoreConnection", "fail_reply", "pack"]

Arg = str | bytes | int
log = logging.getLogger("tidewarden.store")

PATIENCE_S = 5.0
"""
How long a call waits for a link that is down, or for a server that refuses it for now; that is
safe, because nothing was done.
"""
HOPELESS_S = 0.5
"""
How long a call waits at least while no server can take writes; the time for which the link was down
before counts as waited.
"""
LOOK_S = 0.1
"""
While calls wait, the link asks so often whether it is known by now that no server can take writes.
"""
AGAIN_S = 0.05
"""The pause before a call that a server refused for now is tried again."""
STALL_S = 10.0  # a link that owes an answer for so long is cut
BACKLOG_MAX = 100_000
RETRY_FIRST_S, RETRY_LAST_S = 0.05, 1.0
RETRY_NEXT_S = 0.25  # at most, where another server may have taken over meanwhile

ReplyError = hiredis.ReplyError


class UnsentCall(NamedTuple):
    """Holds packed commands that wait for the link ``since`` then (the loop's time)."""

    packed: bytes
    receiver: ReplySink
    replies: int
    since: float


class StoreConnection(asyncio.Protocol):
    """
    Keeps one pipelined connection to the store, and connects again when it breaks.

    :meth:`call` returns a future at once, and each call is one write to the socket.

    ``on_up`` gives the commands that are sent after every connect, before anything else;
    ``on_ready`` is called once they are answered. ``on_message`` gets replies that no call waits
    for. With a ``finder`` the URL is only the name for messages; each connect asks the finder where
    to, and a connection to a server that takes no writes any more is cut. ``called`` names the
    other end in messages. A connection that is not ``patient`` lets no call wait longer than for an
    attempt to connect; its callers are told why, so the log is not. ``told`` logs its ends, for
    several connections together. Where no majority of the nodes is in reach, calls wait for
    ``limit_s`` from the end of the connection, and one that owes an answer for so long is cut.
    """

    clustered = False

    def __init__(
        self,
        url: str,
        name: str,
        clock: Clock,
        *,
        on_up: Callable[[StoreConnection], Sequence[Sequence[Arg]]] | None = None,
        on_ready: Callable[[], None] | None = None,
        on_message: Callable[[Any], None] | None = None,
        finder: PrimaryFinder | None = None,
        called: str = "store",
        patient: bool = True,
        told: LinkLog | None = None,
        limit_s: float = PATIENCE_S,
    ) -> None:
        self.url = url
        self._limit_s = limit_s
        self._told = told or LinkLog()
        self._patient = patient
        self._way = Endpoint(url, finder, called)
        self._name = name
        self._clock = clock
        self._on_up = on_up
        self._on_ready = on_ready
        self._on_message = on_message
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[ReplySink] = deque()
        self._backlog: deque[UnsentCall] = deque()
        self._look: asyncio.TimerHandle | None = None  # at the backlog
        self._lost: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._rest: asyncio.Task[None] | None = None  # until the next attempt to connect
        self._hurries = False  # the finder has said where to go since the latest attempt began
        self._loop: asyncio.AbstractEventLoop = asyncio.get_event_loop()
        self._answered_at = 0.0
        self._down_at = self._loop.time()  # since when there is no connection, if there is none
        self._kept: object = None
        self._stopped = False
        self._cut = ""  # why we cut the connection
        self.why = ""  # what the latest attempt to connect met with, "" while it is connected
        self.calls = 0
        self.reconnects = 0

    @property
    def up(self) -> bool:
        """Return whether the connection is open."""
        return self._transport is not None

    @property
    def at(self) -> str:
        """Return the address of the connection, or of the last attempt, without a password."""
        return self._way.at

    @property
    def fault(self) -> str:
        """
        Say why no server can take the writes before an operator acts; empty: one may at any time.
        """
        return self._way.fault

    @property
    def owes_s(self) -> float:
        """Return for how many seconds calls have been under way without an answer; 0: none is."""
        return self._loop.time() - self._answered_at if self._waiting else 0.0

    @property
    def ended(self) -> bool:
        """Return whether the connection was stopped for good."""
        return self._stopped

    def link_of(self, _key: str) -> StoreConnection:
        """
        Return this connection, because all keys lie here.

        See :class:`tidewarden.store.client.StoreClient`.
        """
        return self

    def each(self) -> list[StoreConnection]:
        """Return this connection, the only one."""
        return [self]

    def warning(self) -> str:
        """Return "", because there are no parts that could be away."""
        return ""

    def launch(self) -> None:
        """
        Begin to connect, and stay connected until :meth:`stop`; :meth:`start` waits for it, too.
        """
        self._loop = asyncio.get_running_loop()
        if self._way.finder is not None:
            self._way.finder.follow(self._moved)
        self._task = self._loop.create_task(self._keep(), name=f"link {self._name}")

    async def start(self, *, wait_s: float = PATIENCE_S) -> None:
        """
        Connect, and stay connected until :meth:`stop`.

        Raises: BadArg: the URL is none; StoreDown: not connected within ``wait_s`` seconds; the
        link goes on trying.
        """
        self._way.check()
        self.launch()
        until = self._clock.monotonic() + wait_s
        while True:
            try:
                async with asyncio.timeout(max(0.1, until - self._clock.monotonic())):
                    await self.call("PING")
                return
            except (TimeoutError, StoreDown):
                if self._clock.monotonic() >= until:
                    why = self.why or f"{self._way.place} does not answer"
                    raise StoreDown(f"no connection within {wait_s:g} s: {why}") from None
                await sleep(self._clock, RETRY_FIRST_S)  # connected, but refused: it may be loading

    async def stop(self) -> None:
        """Close the connection. Calls under way fail with StoreDown."""
        self._stopped = True
        self._told.forget(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._way.finder is not None:
            await self._way.finder.forget(self._moved)
        if self._transport is not None:
            self._cut = self._cut or "the link was closed"
            self._transport.close()
            # a loop that ends now would leave the socket to the collector
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._lost.wait()
        self._fail("the link was closed")
        self._fail_backlog("the link was closed")

    def call(self, *args: Arg) -> asyncio.Future[Any]:
        """
        Send one command.

        Returns: a future of the reply: int, bytes, list or None. Raises (in the future): StoreDown:
        not sent, or sent and unanswered: it may or may not have happened; Full; another
        :class:`~tidewarden.errors.Error` for an error reply, by its first word.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send(pack(args), future)
        return future

    def send(self, packed: bytes, receiver: ReplySink, _key: Arg = "", /) -> None:
        """
        Send one packed command for ``receiver``, which gets the reply in a later turn of the loop.

        What :meth:`call` raises is its exception.
        """
        self.send_together(packed, receiver, 1)

    def send_together(self, packed: bytes, receiver: ReplySink, replies: int) -> None:
        """
        Send packed commands in one write, as :meth:`send` does one.

        ``receiver`` gets each of their ``replies``, until it is done.
        """
        self.calls += replies
        if self._transport is not None:
            self._send(packed, receiver, replies)
        elif len(self._backlog) >= BACKLOG_MAX:
            away = NotSent(f"{self._way.place} is away and {BACKLOG_MAX} calls wait for it")
            self._loop.call_soon(fail_reply, receiver, away)
        else:
            self._backlog.append(UnsentCall(packed, receiver, replies, self._loop.time()))
            if self._look is None:
                self._look_later()

    def _until(self, since: float) -> float:
        """Return until when a call that has waited since ``since`` goes on waiting."""
        if not self._way.fault:
            return since + PATIENCE_S
        limit_s = self._limit_s if self._way.alone else PATIENCE_S
        return max(since + HOPELESS_S, self._down_at + limit_s)

    def _look_later(self) -> None:
        until = min(self._until(self._backlog[0].since), self._loop.time() + LOOK_S)
        self._look = self._loop.call_at(until, self._give_up_late)

    def _give_up_late(self) -> None:
        """Fail the calls that have waited for long enough; the oldest stand first."""
        self._look, now = None, self._loop.time()
        while self._backlog:
            first = self._backlog[0]
            if not first.receiver.done() and now < self._until(first.since):
                self._look_later()
                return
            self._backlog.popleft()
            fail_reply(first.receiver, self._unsent())

    def _unsent(self) -> NotSent:
        told = self._way.away or self.why
        kind = NoMajority if self._way.alone else NotSent
        return kind(f"{self._way.place} is away; nothing was sent{f': {told}' if told else ''}")

    def _send(self, packed: bytes, receiver: ReplySink, replies: int = 1) -> None:
        if not self._waiting:
            self._answered_at = self._loop.time()
        if replies == 1:
            self._waiting.append(receiver)
        else:
            self._waiting.extend((receiver,) * replies)
        transport = self._transport
        assert transport is not None
        if not transport.is_closing():  # else its end, which is about to be told, is the answer
            transport.write(packed)

    def data_received(self, data: bytes) -> None:
        self._answered_at = self._loop.time()
        self._reader.feed(data)
        waiting = self._waiting
        while True:
            reply = self._reader.gets()
            if reply is False:
                return
            if not waiting or (self._on_message is not None and _is_message(reply)):
                if self._on_message is not None:
                    self._on_message(reply)
                continue
            receiver = waiting.popleft()
            if receiver.done():
                continue
            if isinstance(reply, ReplyError):
                self.refused(str(reply))
                receiver.set_exception(error_of(str(reply)))
            else:
                receiver.set_result(reply)

    def refused(self, message: str) -> None:
        """
        Note an error reply, or one of several in a reply.

        The connection is cut if the server takes no writes any more, because no other answer is to
        be had from it.
        """
        if self._way.finder is not None and isinstance(error_of(message), ReadOnlyServer):
            self._leave("it takes no writes any more")

    def _moved(self, url: str) -> None:
        """Connect to ``url``, which takes the writes now; at once, if there is no connection."""
        self._hurries = self._transport is None
        if self._rest is not None:
            self._rest.cancel()
        same = server_of(url) == self.at
        if not self._way.leads_to(url):
            place = redact(url).partition("?")[0]
            self._leave("it is reached another way now" if same else f"{place} is the primary now")

    def _leave(self, why: str) -> None:
        """
        Cut the connection.

        :meth:`connection_lost` answers the calls under way: whether they happened is not known.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._told.left(self, self._way.called, self.at, why)
            self._cut = why
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._down_at = None, self._loop.time()
        self._lost.set()
        why, self._cut = self._cut or (str(exc) if exc else f"closed by the {self._way.called}"), ""
        self._fail(why)

    def _fail(self, why: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        lost = (
            f"the connection to the {self._way.called} was lost ({why}); what was sent may or may"
            " not have happened"
        )
        for receiver in waiting:
            try:
                fail_reply(receiver, StoreDown(lost))
            except Exception:  # those behind it would wait for ever
                log.exception("a call's end could not be told")

    def _fail_backlog(self, why: str) -> None:
        while self._backlog:
            fail_reply(self._backlog.popleft().receiver, NotSent(f"nothing was sent: {why}"))

    async def _keep(self) -> None:
        """Connect, watch and connect again, until stopped."""
        pause_s = RETRY_FIRST_S
        pause_s_max = RETRY_LAST_S if self._way.finder is None else RETRY_NEXT_S
        while not self._stopped:
            try:
                self._lost.clear()
                self._hurries = False
                self._reader = hiredis.Reader()
                transport, self._kept = await self._way.open(self._name, self)
            except Exception as error:
                self.why = str(error)
                # a link that ends here in silence would be down for ever
                if not isinstance(error, StoreDown):
                    log.exception(
                        "connecting to the %s failed for a reason of ours; trying again",
                        self._way.called,
                    )
                elif not self._patient:
                    self._fail_backlog(self.why)
                else:
                    self._told.refused(self, self.why)
                if self._hurries:
                    pause_s = RETRY_FIRST_S
                else:
                    await self._pause(pause_s)
                    pause_s = min(pause_s * 2, pause_s_max)
                continue
            if self._stopped:  # redis-py may swallow a cancellation that comes while it connects
                transport.close()
                return
            self._told.back(self, self._way.called, self.at)
            self.reconnects += 1
            pause_s, self.why = RETRY_FIRST_S, ""
            self._begin(transport)
            await self._watch(transport)
            if self._patient:
                self._told.lost(self, self._way.called, self.at)

    async def _pause(self, pause_s: float) -> None:
        """Sleep for ``seconds``, or until the finder says where to connect."""
        rest = self._rest = self._loop.create_task(sleep(self._clock, pause_s))
        try:
            await asyncio.wait({rest})
        finally:
            self._rest = None
            rest.cancel()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._answered_at = self._loop.time()
        first: asyncio.Future[Any] | None = None
        for args in self._on_up(self) if self._on_up is not None else ():
            first = self._loop.create_future()
            first.add_done_callback(_refused)
            self._send(pack(args), first)
        if first is None:
            self._begun(transport)
        else:
            first.add_done_callback(lambda _: self._begun(transport))
        while self._backlog:
            packed, receiver, replies, _ = self._backlog.popleft()
            if not receiver.done():
                self._send(packed, receiver, replies)

    def _begun(self, transport: asyncio.Transport) -> None:
        """Note that the last of the first commands was answered."""
        if self._transport is transport and self._on_ready is not None:
            self._on_ready()

    async def _watch(self, transport: asyncio.Transport) -> None:
        """
        Return when the connection is lost.

        Close it when an answer is overdue for too long, and ask for one when it is silent.
        """
        while not self._lost.is_set():
            try:
                turn_s = STALL_S / (10 if self._waiting else 4)
                limit_s = shared_turn(self._clock, turn_s) - self._clock.monotonic()
                async with asyncio.timeout(limit_s):
                    await self._lost.wait()
            except TimeoutError:
                silent_s = self._loop.time() - self._answered_at
                owed_s = min(STALL_S, self._limit_s) if self._way.alone else STALL_S
                if self._waiting and silent_s > owed_s:
                    log.warning(
                        "the %s owes an answer for %g s; cutting the connection",
                        self._way.called,
                        owed_s,
                    )
                    self._cut = f"it owed an answer for {owed_s:g} s"
                    transport.abort()
                elif not self._waiting and silent_s > STALL_S / 2 and not self._lost.is_set():
                    # One that only listens would never learn that its peer has gone without a word.
                    alive: asyncio.Future[Any] = self._loop.create_future()
                    alive.add_done_callback(ignore_errors)  # any answer will do
                    self._send(pack(("PING",)), alive)


def pack(args: Sequence[Arg]) -> bytes:
    """Encode a command for the wire. Raises: UnicodeEncodeError: a text is none."""
    packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]  # a tuple is invariant in its items
    return packed


def _refused(done: asyncio.Future[Any]) -> None:
    """
    Log the refusal of one of the first commands.

    A connection that was lost meanwhile is reported as such.
    """
    error = None if done.cancelled() else done.exception()
    of_memory = isinstance(error, Full)  # that it is full is said once a second
    if error is not None and not unanswered(error) and not of_memory and not known_already(error):
        log.warning("the store refused what every connection begins with: %s", error)


def _is_message(reply: Any) -> bool:
    return (
        isinstance(reply, list)
        and len(reply) == 3
        and reply[0] in (b"message", b"smessage", b"sunsubscribe")
    )
