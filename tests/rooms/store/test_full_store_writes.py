"""Small writes that a full store takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidewarden.errors import Full
from tidewarden.store import StoreConnection
from tidewarden.store.full_store_writes import full_store_write, small_writes
from tidewarden.store.preflight import FORMATS, check_store
from tidewarden.tokens.vault.key_store import KeyStore, NodeKeys, Rotation


@pytest.fixture
async def full(node: Any) -> AsyncIterator[StoreConnection]:
    """A link to a store that is full."""
    link: StoreConnection = (await node()).link
    await link.call("CONFIG", "SET", "maxmemory", "1")
    yield link
    await link.call("CONFIG", "SET", "maxmemory", "0")


async def test_they_are_answered_as_ever_and_leave_nothing_beside(full: StoreConnection) -> None:
    with pytest.raises(Full):
        await full.call("SET", "{t}:k", "1")
    assert await full.call(*full_store_write("SET", "{t}:k", "1", "PX", 60_000)) == b"OK"
    assert await full.call(*full_store_write("SET", "{t}:k", "2", "NX")) is None
    assert await full.call("GET", "{t}:k") == b"1"
    assert await full.call("PTTL", "{t}:k") > 0
    write = small_writes(full.call)
    assert [await write("HSETNX", "{t}:h", "f", value) for value in ("1", "2")] == [1, 0]
    assert [await write("HINCRBY", "{t}:h", "n", 1) for _ in range(2)] == [1, 2]
    assert await write("HGETALL", "{t}:h") == [b"f", b"1", b"n", b"2"]
    assert sorted(await full.call("KEYS", "{t}*")) == [b"{t}:h", b"{t}:k"]


async def test_what_grows_is_refused_as_ever(full: StoreConnection) -> None:
    with pytest.raises(Full):
        await small_writes(full.call)("XADD", "{t}:events", "*", "event", "x")


async def test_the_format_and_the_vaults_keys_are_written_at_a_full_store(
    full: StoreConnection,
) -> None:
    await full.call("DEL", "{tw}:format")
    assert (await check_store(full, "tw")).empty
    assert await full.call("GET", "{tw}:format") == FORMATS[-1].encode()
    await full.call(*full_store_write("SET", "{tw}:format", "1"))
    assert not (await check_store(full, "tw")).empty
    assert await full.call("GET", "{tw}:format") == FORMATS[-1].encode()
    key_store = KeyStore(small_writes(full.call), "tw")
    assert await key_store.add(1, b"wrapped") == b"wrapped"
    await key_store.rewrap(1, b"otherwise")
    await key_store.note(Rotation())
    await key_store.say("n0", NodeKeys())
    assert await key_store.tell() == 1
