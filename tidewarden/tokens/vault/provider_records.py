"""
Keeps the providers that were put while nodes ran, sealed in the store as a whole.

A record is ``put_ms 8 | sealed`` (bytes, big-endian): unix milliseconds of the node that put it,
and the settings as JSON, sealed for that name and time. See ``tokens/lua/provider_list.lua``.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock, in_turns

from .vault import Place, Vault

RunScript = Callable[[str, str, int, Sequence[str | bytes | int]], Awaitable[Any]]
"""Runs a script by its name on a shard of a queue, with arguments; returns its items."""
QUEUE = "_vault"
"""The queue in whose only shard the records lie."""
RECORDS_MAX = 1000
_TIME = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """Holds a provider's settings as they were put."""

    document: bytes = field(repr=False)
    """The settings as JSON, with their secrets; empty: the record does not open."""
    put_ms: int
    fault: str = ""
    """Why the record does not open; empty: it does."""


class ProviderRecords:
    """Reads and writes the records. Every method raises what the store raises."""

    def __init__(self, script: RunScript, vault: Vault, clock: Clock) -> None:
        self._script = script
        self._vault = vault
        self._clock = clock
        self._read: dict[str, tuple[bytes, ProviderRecord]] = {}
        """The records as they were read last, and the sealed bytes of each."""

    async def read(self, known: int = 0) -> tuple[int, Mapping[str, ProviderRecord] | None]:
        """
        Return the version and the records by name; None: the version is the one that is known.

        One that is as it was is the same object as before.
        """
        version, sealed = await self._sealed(known)
        if version == known:
            return version, None
        found: dict[str, tuple[bytes, ProviderRecord]] = {}
        async for name, raw in in_turns(sealed.items(), 1):
            kept = self._read.get(name)
            if kept is None or kept[0] != raw or kept[1].fault:
                kept = raw, await self._opened(name, raw)
            found[name] = kept
        self._read = found
        return version, {name: record for name, (_, record) in found.items()}

    async def check_room(self, name: str, maker: tuple[str, int]) -> None:
        """Check that :meth:`put` has room. Raises: Full."""
        await self._put(name, b"", maker)

    async def put(self, name: str, document: bytes, maker: tuple[str, int]) -> None:
        """
        Put a provider, or replace it.

        ``maker``: the user who puts it, and the part of all that one may put, in thousandths.

        Raises: Full: there are as many as may be, or the user has its share of them.
        """
        await self._vault.ready()
        put_ms = self._clock.unix_ms()
        record = _TIME.pack(put_ms) + self._vault.seal(document, _place(name, put_ms))
        await self._put(name, record, maker)

    async def _put(self, name: str, record: bytes, maker: tuple[str, int]) -> None:
        await self._script("tokens.provider_put", QUEUE, 0, (name, record, RECORDS_MAX, *maker))

    async def remove(self, name: str) -> bool:
        """Remove a provider; False: there is none of that name."""
        return bool(await self._script("tokens.provider_change", QUEUE, 0, (name, b"", b"")))

    async def reseal(self) -> tuple[int, int]:
        """
        Seal under the newest data key what is sealed under another; one put meanwhile is let be.

        Returns: how many were sealed anew, and how many do not open and stay as they are.
        """
        changed = unreadable = 0
        _, sealed = await self._sealed(0)
        for name, raw in sealed.items():
            place, body = _place(name, _time_of(raw)), raw[_TIME.size :]
            try:
                anew = await self._vault.reseal(body, place)
            except errors.Internal:
                unreadable += 1
                continue
            if anew is not body:
                args = (name, raw, raw[: _TIME.size] + anew)
                changed += await self._script("tokens.provider_change", QUEUE, 0, args)
        return changed, unreadable

    async def _sealed(self, known: int) -> tuple[int, Mapping[str, bytes]]:
        version, *found = await self._script("tokens.provider_list", QUEUE, 0, (str(known),))
        names = (name.decode() for name in found[::2])
        return int(version), dict(zip(names, map(bytes, found[1::2]), strict=True))

    async def _opened(self, name: str, raw: bytes) -> ProviderRecord:
        put_ms = _time_of(raw)
        try:
            document = await self._vault.unseal(raw[_TIME.size :], _place(name, put_ms))
        except errors.Internal as error:
            return ProviderRecord(b"", put_ms, str(error))
        return ProviderRecord(document, put_ms)


def _time_of(raw: bytes) -> int:
    return int(_TIME.unpack_from(raw)[0]) if len(raw) >= _TIME.size else 0


def _place(name: str, put_ms: int) -> Place:
    return Place(name, "", "provider", put_ms, 0)
