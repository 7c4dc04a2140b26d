"""What the vault keeps in the store."""

from __future__ import annotations

from typing import Any

from tidewarden.tokens.vault.key_store import KeyStore, NodeKeys, Rotation


async def test_keys_rotation_and_nodes(node: Any) -> None:
    made = await node()
    shelf = KeyStore(made.link.call, "t")
    assert (
        await shelf.keys(),
        await shelf.rotation(),
        await shelf.nodes(),
        await shelf.change(),
    ) == ({}, None, {}, 0)
    assert await shelf.add(7, b"one") == b"one"
    assert await shelf.add(7, b"two") == b"one"
    await shelf.rewrap(7, b"three")
    assert (await shelf.keys(), await shelf.has(7), await shelf.has(8)) == (
        {7: b"three"},
        True,
        False,
    )
    await shelf.drop([])
    await shelf.drop([7])
    assert await shelf.keys() == {}
    await shelf.note(Rotation(state="done", sealed=3))
    found = await shelf.rotation()
    assert found is not None
    assert (found.ended, found.sealed) == (True, 3)
    assert [await shelf.tell(), await shelf.tell(), await shelf.change()] == [1, 2, 2]
    await shelf.say("n0", NodeKeys(change=2, keks=["aa"], newest=5))
    assert (await shelf.nodes())["n0"].keks == ["aa"]
    await shelf.forget(["n0"])
    assert await shelf.nodes() == {}
