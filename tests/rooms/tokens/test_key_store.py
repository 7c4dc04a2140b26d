"""What the vault keeps in the store."""

from __future__ import annotations

from typing import Any

from tidewarden.tokens.vault.key_store import KeyStore, NodeKeys, Rotation


async def test_keys_rotation_and_nodes(node: Any) -> None:
    made = await node()
    key_store = KeyStore(made.link.call, "t")
    assert (
        await key_store.keys(),
        await key_store.rotation(),
        await key_store.nodes(),
        await key_store.change(),
    ) == ({}, None, {}, 0)
    assert await key_store.add(7, b"one") == b"one"
    assert await key_store.add(7, b"two") == b"one"
    await key_store.rewrap(7, b"three")
    assert (await key_store.keys(), await key_store.has(7), await key_store.has(8)) == (
        {7: b"three"},
        True,
        False,
    )
    await key_store.drop([])
    await key_store.drop([7])
    assert await key_store.keys() == {}
    await key_store.note(Rotation(state="done", sealed=3))
    found = await key_store.rotation()
    assert found is not None
    assert (found.ended, found.sealed) == (True, 3)
    assert [await key_store.tell(), await key_store.tell(), await key_store.change()] == [1, 2, 2]
    await key_store.say("n0", NodeKeys(change=2, keks=["aa"], newest=5))
    assert (await key_store.nodes())["n0"].keks == ["aa"]
    await key_store.forget(["n0"])
    assert await key_store.nodes() == {}
