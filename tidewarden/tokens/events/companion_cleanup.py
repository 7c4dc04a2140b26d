"""
Removes the tasks of companions that no node's configuration has any more.

Each node counts in ``{cluster}:companions`` (a hash: companion, queue and provider -> a number)
what it has, once a minute. A number that has stood still for ten minutes, by the clock of the node
that watches it, belongs to a companion that no node has. The node that finds it counts once itself,
so that the others wait again, and removes the companion's tasks page by page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Companion
from tidewarden.queue import Queues
from tidewarden.tokens.vault.key_store import pairs

from .events import Call

log = logging.getLogger("tidewarden.tokens")

BEAT_S = 60.0
GONE_S = 600.0
PAGE = 200
PAUSE_S = 0.05  # Between two pages: other work goes first.
STATES = ("delayed", "ready", "waiting", "buried", "leased")


class CompanionCleanup:
    """Counts this node's companions, and removes the tasks of those that no node has."""

    def __init__(
        self,
        companions: Mapping[str, Companion],
        providers: Iterable[str],
        queues: Queues,
        call: Call,
        cluster: str,
        clock: Clock,
    ) -> None:
        """
        Count these companions for ``providers``, the names of all that are configured.

        ``call`` sends one command to the store.
        """
        self._own: set[str] = set()
        self.change(companions, providers)
        self._queues = queues
        self._call = call
        self._key = f"{{{cluster}}}:companions"
        self._clock = clock
        self._still: dict[str, tuple[int, float]] = {}
        """
        The companions that this node does not have: each one's number, and since when (monotonic
        seconds) it has stood still.
        """

    def change(self, companions: Mapping[str, Companion], providers: Iterable[str]) -> None:
        """Use these companions and providers."""
        every = frozenset(providers)
        self._own = {
            f"{one.name}\t{one.queue}\t{provider}"
            for one in companions.values()
            for provider in one.providers or every
            if provider in every
        }

    async def run(self) -> None:
        """Count and watch, for ever."""
        while True:
            try:
                await self.look()
            except errors.Error as error:
                log.debug("companions are looked at later: %s", error)
            await sleep(self._clock, BEAT_S)

    async def look(self) -> None:
        """
        Count the companions that this node has, and end those that no node has.

        Raises: what the store raises.
        """
        await asyncio.gather(*(self._count(mark) for mark in sorted(self._own)))
        found = {
            name.decode(): int(number)
            for name, number in pairs(await self._call("HGETALL", self._key))
        }
        now, before = self._clock.monotonic(), self._still
        self._still = {}
        for mark, number in found.items():
            if mark not in self._own:
                known = before.get(mark)
                self._still[mark] = (
                    known if known is not None and known[0] == number else (number, now)
                )
        for mark, (number, since) in sorted(self._still.items()):
            if now - since >= GONE_S:
                await self._end(mark, number)

    async def _count(self, mark: str) -> int:
        return int(await self._call("HINCRBY", self._key, mark, 1))

    async def _end(self, mark: str, number: int) -> None:
        """
        Remove the companion's tasks that are not leased, for as long as no other node counts it.
        """
        name, queue, provider = mark.split("\t")
        removed = held = 0
        for state in STATES if queue in await self._queues.catalog.names() else ():
            after, more = "", True
            while more:
                number += 1
                if await self._count(mark) != number:
                    return  # It is configured again, or another node is at this.
                tasks, after = await self._queues.admin.page(queue, state, PAGE, after)
                ids = [
                    str(task["id"])
                    for task in tasks
                    if str(task["id"]).startswith(f"{name}:{provider}/")
                ]
                done = await asyncio.gather(
                    *(self._queues.admin.delete(queue, one) for one in ids), return_exceptions=True
                )
                for one in done:
                    if isinstance(one, errors.NotHeld):
                        held += 1
                    elif isinstance(one, BaseException):
                        raise one
                    else:
                        removed += one
                more = bool(after)
                if more:
                    await sleep(self._clock, PAUSE_S)
        if removed or held:
            log.info(
                "no node has the companion %s of %s any more: %d tasks removed from %s, %d are"
                " under way",
                name,
                provider,
                removed,
                queue,
                held,
            )
        if not held:
            await self._call("HDEL", self._key, mark)
