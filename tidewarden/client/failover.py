"""
A connection that outlives nodes: it reconnects to the next node and repeats what may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

import hiredis

from tidewarden.clock import Clock, sleep
from tidewarden.errors import (
    Draining,
    Error,
    Full,
    Internal,
    NoLeader,
    NoQuorum,
    Stale,
    StoreDown,
    Unreachable,
    from_wire,
)

from .connection import Arg, Broken, ClientConnection, Orphan, Replies, pack
from .endpoints import Endpoints

log = logging.getLogger("tidewarden.client")

PAUSE_FIRST_S, PAUSE_LAST_S = 0.05, 1.0
# how often a connection that holds leases and is silent is asked whether it lives
HEARTBEAT_S = 1.5
ALIVE_S = 3.0  # and how long it may take to answer
NOT_DONE = (Draining, Stale, NoLeader)  # surely without effect: repeat anything, at another node
UNKNOWN = (StoreDown, NoQuorum)  # may or may not have happened: repeat what may be done twice
# a node that says so while we connect: try another
UNUSABLE = (Draining, Full, Internal, NoQuorum, Stale, StoreDown)


class PendingCall:
    """Holds one call under way: its answers so far, and the requests that have to be sent again."""

    __slots__ = ("_again", "_places", "answers", "packed", "repeated")

    def __init__(self, packed: list[bytes], again: bool) -> None:
        self.packed = packed  # still to be answered
        self.answers: list[Any] = []
        self.repeated = False
        self._again = again
        self._places: list[int] = []  # of ``packed`` in ``answers``

    def answered(self, replies: Replies) -> Error | None:
        """
        Note the replies.

        The fault for which some are to be sent again, which ``packed`` then is; ``None``: all is
        answered.
        """
        if any(type(reply) is hiredis.ReplyError for reply in replies):
            replies = [
                from_wire(str(reply)) if type(reply) is hiredis.ReplyError else reply
                for reply in replies
            ]
        if self._places:
            for place, reply in zip(self._places, replies, strict=True):
                self.answers[place] = reply
        else:
            self.answers, self._places = replies, list(range(len(replies)))
        left = [
            i
            for i, reply in enumerate(replies)
            if isinstance(reply, Error) and self._is_passing(reply)
        ]
        if not left:
            return None
        fault: Error = replies[left[0]]
        self.repeated = self.repeated or any(isinstance(replies[i], UNKNOWN) for i in left)
        self.packed = [self.packed[i] for i in left]
        self._places = [self._places[i] for i in left]
        return fault

    def _is_passing(self, error: Error) -> bool:
        return isinstance(error, NOT_DONE) or (self._again and isinstance(error, UNKNOWN))


class FailoverConnection:
    """
    Keeps at most one connection, opened when needed and replaced when it breaks.

    Any number of callers may use it at once.

    ``retry_s``: how long a call goes on over broken connections. ``answer_s``: how long a node may
    take to answer.
    """

    def __init__(
        self,
        nodes: Endpoints,
        clock: Clock,
        chance: random.Random,
        *,
        retry_s: float,
        answer_s: float,
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._random = chance
        self._retry_s = retry_s
        self._answer_s = answer_s
        self._connection: ClientConnection | None = None
        self._dialing = asyncio.Lock()
        self._pause_s = 0.0
        self._failures = 0  # dials in a row that failed
        self._why = ""
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._holds = False
        self._lost = asyncio.Event()

    @property
    def up(self) -> bool:
        """Tell whether a connection is open."""
        return self._connection is not None and self._connection.up

    async def run(
        self,
        commands: Sequence[tuple[Arg, ...]],
        *,
        again: bool,
        wait_s: float = 0.0,
        orphan: Orphan | None = None,
    ) -> tuple[list[Any], bool]:
        """
        Send commands as one piece, again at another node if they may be repeated.

        Args:
            again: they may be repeated also when they may have happened.
            wait_s: how long the answer may take because it waits for something.
            orphan: gets the replies when the caller is cancelled and they come all the same.

        Returns: a reply or an Error for each, and whether any was sent twice.
        Raises: Unreachable; WrongPass, NoAuth, Denied: no node lets us in.
        """
        until = self._clock.monotonic() + self._retry_s + wait_s
        asked = PendingCall([pack(*command) for command in commands], again)
        breaks = 0
        while True:
            connection = self._connection
            if connection is None or not connection.up:
                connection = await self._connected(until)
            try:
                replies = await connection.request(asked.packed, self._answer_s + wait_s, orphan)
            except Broken as broken:
                self._drop(connection)
                if broken.sent and not again:
                    why = (
                        f"the connection broke ({broken}); what was asked may or may not have"
                        " happened"
                    )
                    raise Unreachable(why) from None
                asked.repeated = asked.repeated or broken.sent
                self._why = f"{connection.address}: {broken}"
                if self._clock.monotonic() >= until:
                    raise self._unreachable() from None
                breaks += 1
                if breaks > 1:  # a node that lets us in and breaks each time
                    await self._pause(until)
                continue
            except asyncio.CancelledError:
                if wait_s and self._connection is connection:
                    connection.abandon()
                    self._connection = None
                raise
            fault = asked.answered(replies)
            if fault is None or self._clock.monotonic() >= until:
                return asked.answers, asked.repeated
            if isinstance(fault, NOT_DONE):
                self._drop(connection)
            await self._pause(until)

    def post(self, command: tuple[Arg, ...]) -> asyncio.Future[Replies] | None:
        """
        Send a request before those that :meth:`run` gets in this turn, in one piece with them.

        ``None``: there is no connection.

        It is not repeated; the future's exception is :class:`Broken`.
        """
        connection = self._connection
        if connection is None or not connection.up:
            return None
        return connection.post([pack(*command)], self._answer_s)

    # Connecting.

    async def _connected(self, until: float) -> ClientConnection:
        """
        Return the connection; open it if there is none.

        Raises: Unreachable: not by ``until``; what a node refused us with.
        """
        try:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                async with self._dialing:
                    while self._connection is None or not self._connection.up:
                        if self._closed:
                            raise Unreachable("this client was closed")
                        await self._dial()
                    return self._connection
        except TimeoutError:
            raise self._unreachable() from None

    async def _dial(self) -> None:
        if self._pause_s and self._failures % len(self._nodes.addresses) == 0:
            await sleep(self._clock, self._pause_s * self._random.uniform(0.5, 1.0))
        address = self._nodes.current()
        try:
            self._connection = await self._nodes.dial(address, self._on_lost)
        except (OSError, TimeoutError, Broken, *UNUSABLE) as error:
            self._why = f"{address}: {str(error) or type(error).__name__}"
            if self._failures == 0:
                log.warning("no connection to the node at %s; trying others", self._why)
            self._failures += 1
            self._pause_s = min(max(self._pause_s * 2, PAUSE_FIRST_S), PAUSE_LAST_S)
            self._nodes.failed(address)
            return
        if self._failures:
            log.info("connected to the node at %s", address)
        self._failures, self._pause_s = 0, 0.0

    async def _pause(self, until: float) -> None:
        self._pause_s = min(max(self._pause_s * 2, PAUSE_FIRST_S), PAUSE_LAST_S)
        left_s = until - self._clock.monotonic()
        await sleep(
            self._clock, max(0.0, min(self._pause_s * self._random.uniform(0.5, 1.0), left_s))
        )

    def _unreachable(self) -> Unreachable:
        shown = ", ".join(str(address) for address in self._nodes.addresses)
        return Unreachable(
            f"no node of {shown} could be used within {self._retry_s:g} s; last:"
            f" {self._why or 'no answer'}"
        )

    def _drop(self, connection: ClientConnection) -> None:
        """Give up this connection and choose the next node."""
        if self._connection is connection:
            self._connection = None
            self._nodes.failed(connection.address)
            self._lost.set()
        connection.abort("left for another node")

    def _on_lost(self, connection: ClientConnection) -> None:
        if self._connection is connection:
            self._lost.set()

    # A session without connections ends after its grace, so one that holds something is connected
    # again at once.

    def hold(self, holds: bool) -> None:
        """
        Tell whether leases depend on this connection.

        If so it reconnects unasked, and asks a silent node whether it lives.
        """
        self._holds = holds
        if holds and self._keeper is None and not self._closed:
            self._keeper = asyncio.get_running_loop().create_task(
                self._keep(), name="tidewarden client: keep the session"
            )

    async def _keep(self) -> None:
        while self._holds:
            self._lost.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._lost.wait()
            except TimeoutError:
                pass  # silence is what is looked into below
            if not self._holds:
                break
            try:
                connection = self._connection
                if connection is None or not connection.up:
                    if connection is not None:
                        self._drop(connection)
                    await self._connected(self._clock.monotonic() + self._retry_s)
                elif asyncio.get_running_loop().time() - connection.answered_at >= HEARTBEAT_S:
                    await connection.request([pack("PING")], ALIVE_S)
            except Broken:
                continue  # it was cut; the next turn connects again
            except Error as error:
                log.warning("the session cannot be kept: %s", error)
        self._keeper = None

    async def close(self) -> None:
        """Close the connection; calls under way raise Unreachable."""
        self._closed = True
        self._holds = False
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()


def only(found: tuple[Replies, bool]) -> tuple[Any, bool]:
    """
    Return the answer of one command, and whether it was sent twice. Raises: the Error that it is.
    """
    (answer,), repeated = found
    if isinstance(answer, Error):
        raise answer
    return answer, repeated
