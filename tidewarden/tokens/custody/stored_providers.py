"""
Keeps the providers that were put while nodes ran in force on this node, as on all others.

Each node looks every second whether the version in the store is another than its own. Where a
configuration file has a provider of the same name, the file's is in force on that node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.clock import Clock, in_turns
from tidewarden.config.egress import Reach
from tidewarden.config.load import Provider
from tidewarden.config.provider import queue_of
from tidewarden.config.stored_provider import provider_from, settings_of, shown
from tidewarden.queue.catalog import Catalog
from tidewarden.tokens.vault.provider_records import ProviderRecord, ProviderRecords

from .repeat import repeat_for_ever

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 1.0
IN_FILE = "it is in the configuration file of this node, which counts here"
TakeOver = Callable[[Mapping[str, Provider]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """Holds one stored provider as this node has it."""

    record: ProviderRecord
    settings: dict[str, Any]
    """The settings without their secrets."""
    provider: Provider | None
    fault: str = ""
    """Why the provider is not in force; empty: it is."""


class StoredProviders:
    """
    Puts, shows and removes providers while nodes run, and follows what other nodes do.

    Args:
        records: as they are in the store.
        configured: those of the configuration file.
        reach: what others may reach, by the configuration file of this node.
        catalog: makes the queues of their clients.
    """

    def __init__(
        self,
        records: ProviderRecords,
        configured: Mapping[str, Provider],
        clock: Clock,
        reach: Reach,
        catalog: Catalog,
    ) -> None:
        self._records = records
        self._catalog = catalog
        self._configured = configured
        self._clock = clock
        self._reach = reach
        self._stored: Mapping[str, _Stored] = {}
        self._version = 0
        self._faults: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()
        self._take_over: TakeOver | None = None

    @property
    def in_force(self) -> Mapping[str, Provider]:
        """Return the providers of the file, and those that were put and are not in the file."""
        put = {name: one.provider for name, one in self._stored.items() if one.provider is not None}
        return {**put, **self._configured}

    def follow(self, take_over: TakeOver) -> None:
        """Have ``take_over`` bring changed providers into force from now on."""
        self._take_over = take_over

    def configure(self, configured: Mapping[str, Provider]) -> Mapping[str, Provider]:
        """Use these providers of the configuration file; returns :attr:`in_force` since then."""
        self._configured = configured
        self._say_faults()
        return self.in_force

    # --- verbs

    async def put(self, name: str, document: bytes) -> dict[str, Any]:
        """
        Put a provider, or replace one that was put; it is in force here at once. Returns it, shown.

        Raises: BadArg, TooBig: what is wrong with its settings. Exists: the configuration file has
        it. Full: there are as many as may be, of providers or of queues, or the user who acts has
        its share of them, or the store has no room.
        """
        settings = settings_of(document)
        provider = provider_from(name, settings, self._reach)
        if name in self._configured:
            raise errors.Exists(
                f"the provider {name!r} is in the configuration file: change it there"
            )
        maker = self._catalog.maker
        await self._records.check_room(name, maker)
        await self._catalog.make(queue_of(name, provider.client_id))
        await self._records.put(name, msgspec.json.encode(settings), maker)
        return await self.one(name)

    async def remove(self, name: str) -> bool:
        """Remove a provider that was put, not its accounts; False: there is none."""
        found = await self._records.remove(name)
        await self.look()
        return found

    async def one(self, name: str) -> dict[str, Any]:
        """Return a provider that was put, without its secrets. Raises: NotFound."""
        await self.look()
        if name not in self._stored:
            why = (
                "it is in the configuration file"
                if name in self._configured
                else "nobody put one of that name"
            )
            raise errors.NotFound(f"there is no provider {name[:60]!r} that was put: {why}")
        return self._told(name)

    async def all(self) -> list[dict[str, Any]]:
        """List the providers that were put, without their secrets, in the order of their names."""
        await self.look()
        return [self._told(name) for name in sorted(self._stored)]

    def _told(self, name: str) -> dict[str, Any]:
        one = self._stored[name]
        return {
            "provider": name,
            "put_ms": one.record.put_ms,
            "fault": IN_FILE if name in self._configured else one.fault,
            "settings": one.settings,
        }

    # --- following the store

    async def run(self) -> None:
        """Call :meth:`look` every second, for ever; an error is logged once."""
        complaint = "what became of providers that were put is not known here"
        await repeat_for_ever(self.look, self._clock, LOOK_S, complaint)

    async def look(self) -> None:
        """Take over the providers that other nodes put or removed. Raises what the store raises."""
        async with self._turn:
            version, records = await self._records.read(self._version)
            if records is None:
                return
            before = self._stored
            stored: dict[str, _Stored] = {}
            async for name, record in in_turns(records.items(), 1):
                one = before.get(name)
                if one is None or one.record is not record:
                    one = _read(name, record, self._reach)
                stored[name] = one
            self._stored = stored
            if self._take_over is not None:
                try:
                    await self._take_over(self.in_force)
                except BaseException:
                    self._stored = before
                    raise
            self._version = version
            self._say(before, stored)

    def _say(self, before: Mapping[str, _Stored], now: Mapping[str, _Stored]) -> None:
        for name in sorted(before.keys() | now.keys()):
            old, new = before.get(name), now.get(name)
            if old is None or new is None or old.provider != new.provider:
                what = "added" if old is None else "removed" if new is None else "changed"
                log.info("provider %s: %s while running", name, what)
        self._say_faults()

    def _say_faults(self) -> None:
        """Log each provider that is not in force, once for as long as it is not."""
        told = (self._told(name) for name in self._stored)
        faults = frozenset(f"{one['provider']}: {one['fault']}" for one in told if one["fault"])
        for fault in sorted(faults - self._faults):
            log.warning("a provider that was put is not in force here: %s", fault)
        self._faults = faults


def _read(name: str, record: ProviderRecord, reach: Reach) -> _Stored:
    if record.fault:
        return _Stored(record, {}, None, record.fault)
    try:
        settings = settings_of(record.document)
    except errors.Error as error:
        return _Stored(record, {}, None, str(error))
    try:
        provider = provider_from(name, settings, reach)
    except errors.Error as error:  # of another version, or of one that lets it reach more
        return _Stored(record, shown(settings), None, str(error))
    return _Stored(record, shown(settings), provider)
