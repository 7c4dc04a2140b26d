"""
Reads in a node's own copy of the data, and knows how old that is.

The copy is a replica of the primary, or is the primary itself. It is logged in to as a user who may
only read. Its age is told without any clock but this process's own: the primary is asked how far
its stream of changes has come, then the copy how much of it it has. If it has all of that, it lacks
nothing that the primary had when the question was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, StoreDown
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg, StoreConnection
from tidewarden.store.reply_errors import unanswered
from tidewarden.store.scripts.loader import Scripts

log = logging.getLogger("tidewarden.store")

ANSWER_S = 0.5
"""A copy that has not answered for so long is of no use to a reader."""
CATCH_UP_S = (0.001, 0.003, 0.01)
"""The pauses after which a copy that is behind the primary is looked at again."""
LOOKS_APART_S = 0.02
"""The primary is asked no more often than that, however young the copy is wanted."""
UNASKED_S = 5.0
"""Seconds between two looks while no reader asks for the age."""
_HISTORY = re.compile(rb"master_replid:(\w+)")
_APPLIED = re.compile(rb"slave_repl_offset:(\d+)")
_WRITTEN = re.compile(rb"master_repl_offset:(\d+)")


class NearCopy:
    """
    Runs scripts that only read in the node's own store, whatever role that has now.

    ``url``: of its Unix socket and the user who reads. ``name``: of the connection. ``alone`` tells
    whether no majority of the nodes is in reach, as far as is known. Built in the event loop that
    uses it.
    """

    def __init__(
        self,
        url: str,
        name: str,
        scripts: Scripts,
        clock: Clock,
        alone: Callable[[], bool] = bool,
    ) -> None:
        self.alone = alone
        self._scripts = scripts
        self._link = StoreConnection(url, name, clock, called="store of this node", patient=False)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[NearCopy]:
        """Keep a connection to the store, which need not be there yet."""
        self._link.launch()
        try:
            yield self
        finally:
            await self._link.stop()

    @property
    def up(self) -> bool:
        """Return whether the store is connected now."""
        return self._link.up

    @property
    def connections(self) -> int:
        """Return how many connections were made; another may lead to another start of the store."""
        return self._link.reconnects

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """
        Run the script ``name``, whose header says READS, and return its reply.

        Raises: StoreDown: the copy does not answer, or is loading; the script's own refusals.
        """
        script = self._scripts[name]
        assert script.reads, name
        said = (len(keys), *keys, *args)
        ways: list[tuple[Arg, Arg]] = [("EVALSHA_RO", script.sha), ("EVAL_RO", script.source)]
        if script.function:
            ways.insert(0, ("FCALL_RO", script.function))
        for way in ways:
            try:
                return await self.ask(*way, *said)
            except Error as error:
                if way is ways[-1] or unanswered(error) or not _unknown(error):
                    raise
        raise AssertionError("the last way returns or raises")

    async def ask(self, *command: Arg) -> Any:
        """
        Return the answer to one command.

        Raises: StoreDown: none in time; what the store raises.
        """
        if not self._link.up:
            raise StoreDown(f"this node's own store is away: {self._link.why or 'not connected'}")
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._link.call(*command)
        except TimeoutError:
            raise StoreDown(f"this node's own store has not answered for {ANSWER_S:g} s") from None


class CopyAge:
    """
    Knows since when, at most, a copy lacks something of the primary.

    It asks beside the readers, and only while a reader wants to know; none of them waits for it.
    """

    def __init__(
        self,
        copy: NearCopy,
        primary: StoreClient,
        clock: Clock,
        confirm: Callable[[], Callable[[], Awaitable[None]]],
    ) -> None:
        """
        Ask by ``primary``, the connection by which the node reads otherwise.

        ``confirm`` is called before the primary is asked; what it returns is awaited behind the
        answer, and returns if no other store can have taken over by then. A primary that is cut off
        knows nothing of what another has written since.
        """
        self._copy = copy
        self._primary = primary
        self._confirm = confirm
        self._clock = clock
        self._whole_at = float("-inf")
        """
        The time, by the monotonic clock, of which the copy has everything that the primary had.
        """
        self._connection = 0
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def within(self, ms: int) -> bool:
        """
        Return whether the copy is known to have everything that is older than ``ms``.

        If it is not known now, it may be soon.
        """
        now = self._clock.monotonic()
        fresh = self._connection == self._copy.connections and (now - self._whole_at) * 1000 <= ms
        wanted = not fresh or (now - self._whole_at) * 2000 > ms
        if wanted and self._look is None and now - self._looked_at >= LOOKS_APART_S:
            self._looked_at = now
            self._look = asyncio.create_task(self._compare(), name="age of the near copy")
            self._look.add_done_callback(self._compared)
        return fresh

    def known_ms(self) -> int:
        """Return how long ago, at most, the copy had everything; -1: that is not known."""
        if self._connection != self._copy.connections or not math.isfinite(self._whole_at):
            return -1
        return math.ceil((self._clock.monotonic() - self._whole_at) * 1000)

    def start(self) -> None:
        """
        Look now and then though no reader asks, until :meth:`stop`.

        When the primary is lost, it is known how old the copy is from then on.
        """
        self._watching = asyncio.create_task(self._watch(), name="watch of the near copy's age")

    async def _watch(self) -> None:
        while True:
            known = self.within(round(UNASKED_S * 2000))
            await sleep(self._clock, UNASKED_S if known else UNASKED_S / 10)

    async def stop(self) -> None:
        """End the readings that are under way."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])

    def _compared(self, look: asyncio.Task[None]) -> None:
        self._look = None
        if not look.cancelled() and (error := look.exception()) is not None:
            log.error("the age of this node's copy could not be told", exc_info=error)

    async def _compare(self) -> None:
        began, connection = self._clock.monotonic(), self._copy.connections
        try:
            async with asyncio.timeout(ANSWER_S):
                confirmed = self._confirm()
                history, written = _written(await self._primary.call("INFO", "replication"))
                await confirmed()
            for pause_s in (*CATCH_UP_S, 0.0):
                followed, applied = _applied(await self._copy.ask("INFO", "replication"))
                if followed != history:
                    return
                if applied >= written:
                    break
                if not pause_s:
                    return
                await sleep(self._clock, pause_s)
        except (Error, TimeoutError) as error:
            log.debug("how old the copy of this node is cannot be told: %s", error)
            return
        if connection == self._copy.connections:
            self._whole_at, self._connection = began, connection


def reader_url(socket_path: str, user: str, password: str) -> str:
    """Return the URL of a store's Unix socket for this user. A secret: keep it out of logs."""
    return f"unix://{quote(user, safe='')}:{quote(password, safe='')}@{quote(socket_path)}"


def _unknown(error: Error) -> bool:
    """Return whether the server knows no script by that name or hash."""
    return "unction not found" in str(error) or str(error).startswith("NOSCRIPT")


def _written(said: bytes) -> tuple[bytes, int]:
    """Return the history that a server writes or follows, and how far it has come there."""
    return _HISTORY.findall(said)[0], int(_WRITTEN.findall(said)[0])


def _applied(said: bytes) -> tuple[bytes, int]:
    """Return the same of a copy; if it is a replica, how far it has applied the history."""
    history, written = _written(said)
    applied = _APPLIED.findall(said)
    return history, int(applied[0]) if applied else written
