"""
Keeps the vault's part in the store: the wrapped data keys, the rotation, and what each node knows.

Three hashes: ``{cluster}:data_keys`` (key id -> wrapped key), ``{cluster}:vault`` (``change``, a
number that grows with whatever nodes have to look at, and ``rotation``), ``{cluster}:vault_nodes``
(node -> what it said last).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

Call = Callable[..., Awaitable[Any]]
"""Sends one command to the store; returns its reply."""

ENDED = ("done", "refused")


class Rotation(msgspec.Struct, kw_only=True):
    """
    Holds the last rotation that was asked for.

    All times are unix milliseconds of the node that wrote them.

    ``state``: ``asked``, ``wrapping`` (the data keys are wrapped by the new key-encryption key),
    ``sealing`` (rows are sealed anew), ``done``, or ``refused`` with the reason in ``message``.
    """

    state: str = "asked"
    node: str = ""
    """The node that works at the rotation, or did last."""
    force: bool = False
    """Whether nodes that do not answer are left behind."""
    started_ms: int = 0
    updated_ms: int = 0
    kek: str = ""
    """The id of the key-encryption key that the rotation goes to, in hexadecimal."""
    key: int = 0
    """The data key that the rotation goes to."""
    previous: int = 0
    """The data key that the rotation before this one went to: older ones are dropped at the end."""
    queue: str = ""
    shard: int = 0
    cursor: int = 0
    """The position of the rotation: everything before it has been sealed anew."""
    total: int = 0
    """The number of accounts when the rotation began."""
    seen: int = 0
    sealed: int = 0
    """Pairs that were sealed anew."""
    unreadable: int = 0
    """Pairs that do not open and were left as they are."""
    dropped: int = 0
    """Data keys that were dropped, because nothing is sealed under them any more."""
    message: str = ""

    @property
    def ended(self) -> bool:
        """Return whether nothing more will happen."""
        return self.state in ENDED


class NodeKeys(msgspec.Struct, kw_only=True):
    """Holds a node's report: the change it has seen, its key-encryption keys, its data key."""

    change: int = 0
    keks: list[str] = []
    newest: int = 0
    said_ms: int = 0
    """The time of the report, by that node's clock."""
    address: str = ""
    """Where the node listens, ``host:base_port``; empty: it does not know its host's addresses."""


class KeyStore:
    """Reads and writes these hashes. Every method raises what the store raises."""

    def __init__(self, call: Call, cluster: str) -> None:
        self._call = call
        self._keys, self._vault, self._nodes = (
            f"{{{cluster}}}:{name}" for name in ("data_keys", "vault", "vault_nodes")
        )

    async def keys(self) -> dict[int, bytes]:
        """Return every wrapped data key by its id."""
        return {
            int(key_id): wrapped
            for key_id, wrapped in pairs(await self._call("HGETALL", self._keys))
        }

    async def add(self, key_id: int, wrapped: bytes) -> bytes:
        """
        Store a wrapped key under a free id, and return the stored one, ours or an earlier one.
        """
        await self._call("HSETNX", self._keys, key_id, wrapped)
        stored: bytes = await self._call("HGET", self._keys, key_id)
        return stored

    async def has(self, key_id: int) -> bool:
        """Return whether the store has that data key."""
        return bool(await self._call("HEXISTS", self._keys, key_id))

    async def rewrap(self, key_id: int, wrapped: bytes) -> None:
        """
        Replace a wrapped key by the same key wrapped otherwise.

        One write does it, so that there always is one.
        """
        await self._call("HSET", self._keys, key_id, wrapped)

    async def drop(self, key_ids: Iterable[int]) -> None:
        """Forget data keys. Records that are sealed under them open no more."""
        ids = list(key_ids)
        if ids:
            await self._call("HDEL", self._keys, *ids)

    async def change(self) -> int:
        """Return the change counter, which grows whenever nodes have to read the keys again."""
        return int(await self._call("HGET", self._vault, "change") or 0)

    async def tell(self) -> int:
        """
        Raise the change counter, so that every node reads the keys again; returns its new value.
        """
        return int(await self._call("HINCRBY", self._vault, "change", 1))

    async def rotation(self) -> Rotation | None:
        """Return the rotation that was asked for last."""
        raw = await self._call("HGET", self._vault, "rotation")
        return msgspec.json.decode(raw, type=Rotation) if raw else None

    async def note(self, rotation: Rotation) -> None:
        """Write down how far a rotation is."""
        await self._call("HSET", self._vault, "rotation", msgspec.json.encode(rotation))

    async def say(self, node: str, known: NodeKeys) -> None:
        """Write down a node's report."""
        await self._call("HSET", self._nodes, node, msgspec.json.encode(known))

    async def nodes(self) -> dict[str, NodeKeys]:
        """Return each node's last report, by its name."""
        found = pairs(await self._call("HGETALL", self._nodes))
        return {name.decode(): msgspec.json.decode(raw, type=NodeKeys) for name, raw in found}

    async def address_of(self, node: str) -> str:
        """Return the address that a node reported; empty: it reported none."""
        raw = await self._call("HGET", self._nodes, node)
        return msgspec.json.decode(raw, type=NodeKeys).address if raw else ""

    async def forget(self, nodes: Iterable[str]) -> None:
        """Forget these nodes; a rotation no longer waits for them."""
        names = list(nodes)
        if names:
            await self._call("HDEL", self._nodes, *names)


def pairs(flat: Any) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, as RESP2 and RESP3 have them."""
    if isinstance(flat, Mapping):
        return list(flat.items())
    return list(zip(flat[::2], flat[1::2], strict=True))
