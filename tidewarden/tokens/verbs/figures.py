"""Puts the figures of every provider together, once for all requests that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock

Stats = dict[str, dict[str, Any]]
# Providers that are asked for together: more would keep others' requests waiting for the store.
AT_ONCE = 32
AGE_S = 60.0
"""Figures that are older than that are not shown."""


class Figures:
    """
    Reads the figures of ``providers`` for one node, which it looks up anew for each reading.

    ``one`` puts the figures of a provider together.

    Each caller gets figures that were read after it asked, and shares them with all who have asked
    by then: to read thousands of providers takes a while, and many callers together would give the
    store as many times the work.
    """

    def __init__(
        self,
        providers: Collection[str],
        one: Callable[[str], Awaitable[dict[str, Any]]],
        clock: Clock,
    ) -> None:
        self._providers = providers
        self._one = one
        self._clock = clock
        self._under_way: asyncio.Task[Stats] | None = None
        self._next: asyncio.Task[Stats] | None = None
        self._found: Stats = {}
        self._found_at = float("-inf")

    async def all(self) -> Stats:
        """Read the figures now. Raises what the store raises."""
        if self._next is None:
            self._next = asyncio.create_task(
                self._read_after(self._under_way), name="figures of the providers"
            )
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)

    async def latest(self, wait_s: float) -> tuple[Stats, float] | None:
        """
        Return the figures read within ``wait_s``, else the last ones, and their age in seconds.

        None: there are none. The reading goes on for the next caller.
        """
        try:
            async with asyncio.timeout(wait_s):
                await self.all()
        except TimeoutError:
            pass  # What was read before tells its age.
        except errors.Error:
            return None
        age_s = self._clock.monotonic() - self._found_at
        return (self._found, age_s) if age_s < AGE_S else None

    async def stop(self) -> None:
        """Cancel the readings; no caller may ask after that."""
        tasks = [task for task in (self._under_way, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_after(self, former: asyncio.Task[Stats] | None) -> Stats:
        if former is not None:
            await asyncio.wait([former])
        # Who asks from here on is told what is read later.
        self._under_way, self._next = self._next, None
        began = self._clock.monotonic()
        names = sorted(self._providers)
        left, found = iter(names), Stats()

        async def read() -> None:
            for name in left:
                found[name] = await self._one(name)

        readers = [asyncio.ensure_future(read()) for _ in range(min(AT_ONCE, len(names)))]
        try:
            await asyncio.gather(*readers)
        finally:
            for reader in readers:
                reader.cancel()
        self._found, self._found_at = {name: found[name] for name in names}, began
        return self._found


def _heard(task: asyncio.Task[Stats]) -> None:
    """
    Take the error of a reading whose callers have all gone; callers that wait get it themselves.
    """
    if not task.cancelled():
        task.exception()
