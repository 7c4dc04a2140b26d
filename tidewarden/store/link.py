"""A pipelined connection to the store: many calls under way at once, reconnected in one place, nothing repeated."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hiredis

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, Full, StoreDown, from_wire
from tidewarden.store.connect import open_transport, options_of, redact

log = logging.getLogger("tidewarden.store")

Arg = str | bytes | int


class Receiver(Protocol):
    """
    Who gets a reply: a future, or anything else with these three methods of one.

    A future's listeners run in a later turn of the loop; what acts at once in ``set_result`` saves those turns. It must not raise.
    """

    def done(self) -> bool:
        """Whether it wants nothing any more."""

    def set_result(self, result: Any, /) -> None:
        """The reply."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Why there is none."""


PATIENCE_S = 5.0  # a call made while the link is down waits so long for it; it was never sent, so that is safe
STALL_S = 10.0  # a link that owes an answer for so long is cut
BACKLOG_MAX = 100_000
RETRY_FIRST_S, RETRY_LAST_S = 0.05, 1.0
# The store's own words for "not now", which a caller should read as such.
AWAY = (
    "LOADING",
    "BUSY",
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "UNBLOCKED",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
)


ReplyError = hiredis.ReplyError


def error_of(message: str) -> Error:
    """What an error reply of the store means to our callers."""
    word = message.partition(" ")[0]
    if word == "OOM":
        return Full("the store's memory is full; take and acknowledge tasks, or raise its maxmemory")
    if word in AWAY:
        return StoreDown(f"the store refuses: {message}")
    return from_wire(message)


class Link(asyncio.Protocol):
    """
    One connection to the store. :meth:`call` returns a future at once; calls made in one turn of the loop go out together.

    ``on_up`` gives the commands that are sent after every connect, before anything else; ``on_ready`` is called once they
    are answered. A reply that nobody waits for goes to ``on_message``.
    """

    def __init__(
        self,
        url: str,
        name: str,
        clock: Clock,
        *,
        on_up: Callable[[Link], Sequence[Sequence[Arg]]] | None = None,
        on_ready: Callable[[], None] | None = None,
        on_message: Callable[[Any], None] | None = None,
    ) -> None:
        self.url = url
        self._name = name
        self._clock = clock
        self._on_up = on_up
        self._on_ready = on_ready
        self._on_message = on_message
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[Receiver] = deque()
        self._backlog: deque[tuple[bytes, Receiver]] = deque()
        self._unsent: set[Receiver] = set()
        self._lost: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop = asyncio.get_event_loop()
        self._answered_at = 0.0
        self._kept: object = None
        self._stopped = False
        self._why = ""  # what the latest attempt to connect met with
        self.calls = 0
        self.reconnects = 0

    @property
    def up(self) -> bool:
        """Whether the link is connected."""
        return self._transport is not None

    async def start(self, *, wait_s: float = PATIENCE_S) -> None:
        """
        Connect, and stay connected until :meth:`stop`.

        Raises: BadArg: the URL is none; StoreDown: not connected within ``wait_s`` seconds; the link goes on trying.
        """
        options_of(self.url)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._keep(), name=f"link {self._name}")
        until = self._clock.monotonic() + wait_s
        while True:
            try:
                async with asyncio.timeout(max(0.1, until - self._clock.monotonic())):
                    await self.call("PING")
                return
            except (TimeoutError, StoreDown):
                if self._clock.monotonic() >= until:
                    why = self._why or f"the store at {redact(self.url)} does not answer"
                    raise StoreDown(f"no connection within {wait_s:g} s: {why}") from None
                await sleep(self._clock, RETRY_FIRST_S)  # connected, but refused: it may be loading

    async def stop(self) -> None:
        """Close the connection. Calls under way fail with StoreDown."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
        self._fail("the link was closed")
        self._fail_backlog("the link was closed")

    def call(self, *args: Arg) -> asyncio.Future[Any]:
        """
        Send one command.

        Returns: a future of the reply: int, bytes, list or None.
        Raises (in the future): StoreDown: not sent, or sent and unanswered: it may or may not have happened; Full; another
        :class:`~tidewarden.errors.Error` for an error reply, by its first word.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send(pack(args), future)
        return future

    def send(self, packed: bytes, receiver: Receiver) -> None:
        """Send one packed command for ``receiver``; what :meth:`call` raises is its exception."""
        self.calls += 1
        if self._transport is not None:
            self._send(packed, receiver)
        elif len(self._backlog) >= BACKLOG_MAX:
            receiver.set_exception(
                StoreDown(f"the store at {redact(self.url)} is away and {BACKLOG_MAX} calls wait for it")
            )
        else:
            self._backlog.append((packed, receiver))
            self._unsent.add(receiver)
            self._loop.call_later(PATIENCE_S, self._give_up, receiver)

    def _give_up(self, receiver: Receiver) -> None:
        if receiver in self._unsent and not receiver.done():
            receiver.set_exception(StoreDown(f"the store at {redact(self.url)} is away; nothing was sent"))
        self._unsent.discard(receiver)
        while self._backlog and self._backlog[0][1].done():
            self._backlog.popleft()  # what it would have said need not be kept until the store is back

    def _send(self, packed: bytes, receiver: Receiver) -> None:
        if not self._waiting:
            self._answered_at = self._loop.time()
        self._waiting.append(receiver)
        transport = self._transport
        assert transport is not None
        if not transport.is_closing():  # else its end, which is about to be told, is the answer
            transport.write(packed)  # uvloop gathers what is written in one turn

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
            if isinstance(reply, hiredis.ReplyError):
                receiver.set_exception(error_of(str(reply)))
            else:
                receiver.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        self._fail(str(exc) if exc else "closed by the store")

    def _fail(self, why: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        lost = f"the connection to the store was lost ({why}); what was sent may or may not have happened"
        for receiver in waiting:
            refuse(receiver, StoreDown(lost))

    def _fail_backlog(self, why: str) -> None:
        while self._backlog:
            refuse(self._backlog.popleft()[1], StoreDown(f"nothing was sent: {why}"))

    async def _keep(self) -> None:
        """Connect, watch, connect again, until stopped."""
        pause_s = RETRY_FIRST_S
        said = False
        while not self._stopped:
            try:
                self._lost.clear()
                self._reader = hiredis.Reader()
                transport, self._kept = await open_transport(self.url, self._name, self)
            except Exception as error:
                self._why = str(error)
                if not isinstance(error, StoreDown):  # a link that ends here in silence would be down for ever
                    log.exception("connecting to the store failed for a reason of ours; trying again")
                elif not said:
                    log.warning("%s; trying again", error)
                    said = True
                await sleep(self._clock, pause_s)
                pause_s = min(pause_s * 2, RETRY_LAST_S)
                continue
            if self._stopped:  # redis-py may swallow a cancellation that comes while it connects
                transport.close()
                return
            if said or self.reconnects:
                log.info("connected to the store again")
            self.reconnects += 1
            said, pause_s = False, RETRY_FIRST_S
            self._begin(transport)
            await self._watch(transport)
            log.warning("the connection to the store at %s was lost", redact(self.url))

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
        self._unsent.clear()
        while self._backlog:
            packed, receiver = self._backlog.popleft()
            if not receiver.done():
                self._send(packed, receiver)

    def _begun(self, transport: asyncio.Transport) -> None:
        """The last of the first commands was answered."""
        if self._transport is transport and self._on_ready is not None:
            self._on_ready()

    async def _watch(self, transport: asyncio.Transport) -> None:
        """Return when the connection is lost; cut it when it owes an answer for too long, and ask for one when it is silent."""
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(STALL_S / 4):
                    await self._lost.wait()
            except TimeoutError:
                silent_s = self._loop.time() - self._answered_at
                if self._waiting and silent_s > STALL_S:
                    log.warning("the store owes an answer for %g s; cutting the connection", STALL_S)
                    transport.abort()
                elif not self._waiting and silent_s > STALL_S / 2 and not self._lost.is_set():
                    # One that only listens would never learn that its peer has gone without a word.
                    alive: asyncio.Future[Any] = self._loop.create_future()
                    self._send(pack(("PING",)), alive)


def pack(args: Sequence[Arg]) -> bytes:
    """A command as it is sent. Raises: UnicodeEncodeError: a text is none."""
    packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]  # a tuple is invariant in its items
    return packed


def refuse(receiver: Receiver, error: BaseException) -> None:
    """There will be no reply; a caller that has gone leaves no warning."""
    if not receiver.done():
        receiver.set_exception(error)
        if isinstance(receiver, asyncio.Future):
            _ = receiver.exception()


def _refused(done: asyncio.Future[Any]) -> None:
    """One of the first commands was answered; a connection that was lost meanwhile is reported as such."""
    error = None if done.cancelled() else done.exception()
    if (
        error is not None and not isinstance(error, StoreDown) and "already exists" not in str(error)
    ):  # a library of scripts
        log.warning("the store refused what every connection begins with: %s", error)


def _is_message(reply: Any) -> bool:
    return isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message"
