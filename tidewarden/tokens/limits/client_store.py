"""
Reads a client's record in the store, and changes it by compare-and-swap.

Its token bucket is asked there, too: see ``tokens/lua/client.lua``.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidewarden.config.error_classes import ERROR_CLASSES, Kind
from tidewarden.queue import Taken

from .client_record import ClientRecord, parse_record
from .judgement import ClientEvent

RunScript = Callable[[str, str, int, Sequence[str | bytes | int]], Awaitable[Any]]
"""``Queues.script``: name, queue, shard, arguments; returns the script's items."""
MILLI = 1000
ROUSED_MAX = 500  # Accounts that one script looks at.


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds the store's reply. Times are milliseconds of the leases' clock."""

    granted: int
    wait_ms: int
    version: int
    clock_ms: int
    lag_ms: int
    """How far unix time, as the store has it, is ahead of that clock."""
    raw: bytes | None
    """The record; None: it is of the version that was known."""


class ClientStore:
    """Runs the scripts of one client's record. Every method raises what the store raises."""

    def __init__(self, queue: str, script: RunScript) -> None:
        self._queue = queue
        self._script = script

    async def ask(self, known: int, wanted: int, per_second: float) -> Reply:
        """
        Grant as many requests as the rate allows, all if there is no rate.

        ``per_second``: of the settings, 0: any.
        """
        return self._reply(await self._run("ask", known, wanted, _thousandths(per_second)))

    async def give_back(self, known: int, requests: int, per_second: float) -> Reply:
        """So many that were granted are not sent."""
        return self._reply(await self._run("back", known, requests, _thousandths(per_second)))

    async def write(self, known: int, record: ClientRecord, events: Sequence[ClientEvent]) -> Reply:
        """
        Replace the version of the record that was read, with its events.

        ``granted`` 0: it was another by now.
        """
        hold, rate = record.hold, record.rate
        until_ms = max(record.rest_ms, hold.until_ms if hold is not None else 0)
        told = [part for event in events for part in event]
        per_second = _thousandths(rate.per_second) if rate is not None else 0
        return self._reply(
            await self._run(
                "write", known, record.pack(), per_second, until_ms, int(hold is not None), *told
            )
        )

    async def probe(
        self, shard: int, lease_ms: int, *, level: int, saving: bool, drawn: int
    ) -> Taken | None:
        """
        Lease a ready account although its queue is paused.

        Args:
            level: 0: one that was refreshed well last time; 1: also one that was never tried; 2:
                also one that fails.
            saving: those that can be saved now alone go first.
            drawn: a number by chance, by which one is chosen that was never tried.
        """
        args = (lease_ms, level, int(saving), drawn)
        found = await self._script("tokens.probe", self._queue, shard, args)
        if not found:
            return None
        name, lease, payload, attempt, deadline_ms, lease_end_ms = found[0]
        return Taken(self._queue, name.decode(), lease, payload, attempt, deadline_ms, lease_end_ms)

    async def rouse(
        self, shard: int, spread_ms: int, moves: int = sys.maxsize, kinds: Sequence[Kind] = ()
    ) -> int:
        """
        Have at most so many failing accounts of a shard tried anew soon, and return how many were.

        One that the provider said is not to be asked before a time stays. ``kinds``: those alone
        that failed by these; none: all.
        """
        names = [name for name, row in ERROR_CLASSES.items() if row.kind in kinds]
        classes = f" {' '.join(names)} " if kinds else ""
        moved, stay, more = 0, 0, 1
        while more and moved < moves:
            args = (spread_ms, ROUSED_MAX, stay, min(ROUSED_MAX, moves - moved), classes)
            found = await self._script("tokens.rouse", self._queue, shard, args)
            moved, stay, more = moved + found[0], stay + found[1], found[2]
        return moved

    async def _run(self, *args: str | bytes | int) -> Any:
        return await self._script("tokens.client", self._queue, 0, args)

    def _reply(self, found: Any) -> Reply:
        granted, wait_ms, version, clock_ms, lag_ms, raw = found
        return Reply(granted, wait_ms, version, clock_ms, lag_ms, bytes(raw) if raw else None)


async def read_client(queue: str, script: RunScript) -> tuple[ClientRecord, Reply]:
    """The record as it is now, and the clock that its times are of."""
    reply = await ClientStore(queue, script).ask(0, 0, 0.0)
    return parse_record(reply.raw or b""), reply


def _thousandths(per_second: float) -> int:
    return max(1, round(per_second * MILLI)) if per_second else 0
