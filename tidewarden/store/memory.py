"""
Watches how full the store's memory is, once a second.

Calls that grow the store are refused before the store itself refuses.
"""

from __future__ import annotations

import asyncio
import logging

from tidewarden.clock import Clock, rest
from tidewarden.errors import Error, Full, StoreDown

from .client import StoreClient
from .connection import StoreConnection
from .preflight import parse_info, policy_fault

log = logging.getLogger("tidewarden.store")

LOOK_S = 1.0
MARGIN_SHARE = (
    # of the store's maxmemory is kept free for what has to be written also when nothing more is
    # taken in
    0.05
)
MARGIN_BYTES_MAX = 256 << 20


def margin_of(max_bytes: int) -> int:
    """Return how many bytes of the store's ``maxmemory`` are kept free."""
    return min(round(max_bytes * MARGIN_SHARE), MARGIN_BYTES_MAX)


class StoreMemory:
    """
    Watches the store's memory. ``full``: nothing that makes the store grow is to be sent.

    It begins when only the margin is free, and ends when a quarter of that is free beside it.

    ``max_bytes`` is 0 where the store has no limit: then it is never full by our word.
    """

    def __init__(self, what: str = "the store's memory") -> None:
        self._what = what
        self.full = False
        self.used_bytes = 0
        self.max_bytes = 0
        self.fills = 0
        self.refused = 0
        self.fault = ""  # why it should not be our store

    def told(self, policy: str) -> None:
        """Note what the store does when it is full: an operator may change that while it runs."""
        fault = policy_fault(policy)
        if fault:
            fault = f"the store should not be one: {fault}"
        if fault and fault != self.fault:
            log.critical("%s", fault)
        elif self.fault and not fault:
            log.warning("the store's maxmemory-policy is %s again", policy)
        self.fault = fault

    def heard(self, used_bytes: int, max_bytes: int) -> None:
        """Note how much memory is used of how much."""
        self.used_bytes, self.max_bytes = used_bytes, max_bytes
        margin = margin_of(max_bytes)
        limit = max_bytes - (margin + margin // 4 if self.full else margin)
        full = max_bytes > 0 and used_bytes >= limit
        if full and not self.full:
            self.fills += 1
            log.error(
                "%s; puts are refused until tasks are acknowledged, or its maxmemory is raised",
                self.warning(True),
            )
        elif self.full and not full:
            log.warning(
                "%s has room again: %d of %d bytes are used", self._what, used_bytes, max_bytes
            )
        self.full = full

    def check(self, _key: str) -> None:
        """Raise Full if the store is full; call it before writing what makes the store grow."""
        if self.full:
            self.refused += 1
            raise Full(
                f"{self._what} is full ({self.used_bytes:,} of {self.max_bytes:,} bytes);"
                " take and acknowledge tasks, or raise its maxmemory"
            )

    def warning(self, full: bool | None = None) -> str:
        """Return that the store is full, or ""."""
        if not (self.full if full is None else full):
            return ""
        return f"{self._what} is full: {self.used_bytes} of {self.max_bytes} bytes are used"

    async def look(self, link: StoreClient) -> None:
        """Ask the store once. Raises: StoreDown; Error: the store does not tell."""
        info = parse_info(await link.call("INFO", "memory"))
        # Buffers to replicas and of the log count for no limit
        # (https://redis.io/docs/latest/develop/reference/eviction).
        self.told(info.get("maxmemory_policy", "noeviction"))
        uncounted = int(info.get("mem_not_counted_for_evict", "0"))
        self.heard(int(info.get("used_memory", "0")) - uncounted, int(info.get("maxmemory", "0")))

    async def run(self, link: StoreClient, clock: Clock) -> None:
        """Ask until cancelled; a store that does not answer counts as full as it was last."""
        told = False
        while True:
            try:
                await self.look(link)
            except StoreDown:
                log.debug("the store is away; its memory is not known")
            except (Error, ValueError) as error:
                if not told:
                    log.warning(
                        "the store does not tell how full it is (%s); it refuses by itself then",
                        error,
                    )
                told = True
            await rest(clock, LOOK_S)

    def stats(self) -> dict[str, int]:
        """Return the numbers for /metrics."""
        return {
            "store_full": int(self.full),
            "store_used_bytes": self.used_bytes,
            "store_max_bytes": self.max_bytes,
            "store_fills_total": self.fills,
            "store_full_refused_total": self.refused,
        }


class ClusterMemory(StoreMemory):
    """
    Watches every primary of a cluster: what grows is refused where its own primary is full.

    ``full``: one of them is; the bytes are those of the fullest.
    """

    def __init__(self) -> None:
        super().__init__()
        self._route: StoreClient | None = None
        self._parts: dict[str, StoreMemory] = {}

    def check(self, key: str) -> None:
        """Raise Full if the primary that has the key is full."""
        if not self.full or self._route is None:
            return
        link = self._route.link_of(key)
        part = self._parts.get(link.at) if link is not None else None
        if part is not None:
            part.check(key)

    def warning(self, full: bool | None = None) -> str:
        """Return which primaries are full, or ""."""
        return "; ".join(filter(None, (part.warning(full) for part in self._parts.values())))

    async def look(self, link: StoreClient) -> None:
        """Ask each primary that is there. Raises: StoreDown; Error: one does not tell."""
        self._route = link
        links = [one for one in link.each() if one.up]
        self._parts = {one.at: self._parts.get(one.at) or _part_of(one) for one in links}
        looks = await asyncio.gather(
            *(self._parts[one.at].look(one) for one in links), return_exceptions=True
        )
        parts = list(self._parts.values())
        if parts:
            fullest = max(
                parts, key=lambda part: part.used_bytes / part.max_bytes if part.max_bytes else 0
            )
            self.used_bytes, self.max_bytes = fullest.used_bytes, fullest.max_bytes
        self.full = any(part.full for part in parts)
        self.fault = "; ".join(
            f"{place}: {part.fault}" for place, part in self._parts.items() if part.fault
        )
        for failed in looks:
            if failed is not None:  # the others are known all the same
                raise failed

    def stats(self) -> dict[str, int]:
        """Return the numbers for /metrics."""
        parts = list(self._parts.values())
        return super().stats() | {
            "store_fills_total": sum(part.fills for part in parts),
            "store_full_refused_total": sum(part.refused for part in parts),
        }


def _part_of(link: StoreConnection) -> StoreMemory:
    return StoreMemory(f"the memory of the store's server at {link.at}")
