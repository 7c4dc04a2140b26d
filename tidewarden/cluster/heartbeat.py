"""
Sends the heartbeat of a node, which a long turn of the event loop does not stop.

A thread sends it, with a loop and a connection of its own. A worker is known to live by its beats
at the store alone, and dead after two seconds without; a member has Raft's thread as a second
witness. The thread beats only while :meth:`Registration.run` is late, and only as long as the event
loop has turned within ``HUNG_S``: a process that hangs is to be found. A pause of all threads (a
paused process or machine) stops it, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error
from tidewarden.store.client import StoreClient

from .registration import BEAT_S, Registration

log = logging.getLogger("tidewarden.cluster")

LATE_S = 1.5 * BEAT_S
HUNG_S = 10.0

Connect = Callable[[], AbstractAsyncContextManager[StoreClient]]


class Heartbeat:
    """
    Keeps the registration of ``nodes`` alive.

    ``connect`` makes a connection to the store, in whichever loop it is called.

    :meth:`run` beside everything else, in the process's event loop.
    """

    def __init__(self, nodes: Registration, connect: Connect, clock: Clock) -> None:
        self._nodes = nodes
        self._connect = connect
        self._clock = clock
        self._stopping = threading.Event()
        self._hung = False
        self.turned_at = clock.monotonic()
        """
        When the event loop last turned (monotonic seconds). The loop writes it, the thread judges
        by it.
        """
        self.beats = 0

    async def run(self) -> None:
        """Run the thread until cancelled, and show it that this loop turns."""
        self._stopping = threading.Event()
        thread = threading.Thread(target=self._in_thread, name="tidewarden-heartbeat", daemon=True)
        thread.start()
        try:
            while True:
                self.turned_at = self._clock.monotonic()
                await sleep(self._clock, BEAT_S / 2)
        finally:
            self._stopping.set()
            await asyncio.to_thread(thread.join)

    def _in_thread(self) -> None:
        try:
            asyncio.run(self._beat_on())
        except Exception:  # its node goes on, as known by its own beats as without this thread
            log.exception("the heartbeat's thread has ended")

    async def _beat_on(self) -> None:
        async with self._connect() as link:
            while not self._stopping.is_set():
                if self._is_wanted():
                    await self._beat(link)
                await sleep(self._clock, BEAT_S / 2)

    def _is_wanted(self) -> bool:
        """Return whether the loop's own beats are late, and the loop does not hang."""
        now = self._clock.monotonic()
        hung = now - self.turned_at > HUNG_S
        if hung and not self._hung:
            log.error(
                "the event loop has not turned for %g s: this process is no longer said to live",
                HUNG_S,
            )
        self._hung = hung
        return not hung and now - self._nodes.beat_at > LATE_S

    async def _beat(self, link: StoreClient) -> None:
        try:
            async with asyncio.timeout(BEAT_S):
                await self._nodes.say_alive(link)
        except (Error, TimeoutError) as error:
            # the loop's own beats say what is wrong, and register anew
            log.debug("no heartbeat by the thread: %s", error)
        else:
            self.beats += 1
