"""
Rotations: everything stays readable at every step, whoever dies in the middle, and old keys go at
last.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import answer_within, config_of, key_store_of, keyring_of, session_of
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.config.key_file import prepend_key
from tidewarden.tokens.custody import key_sync, rotation
from tidewarden.tokens.vault.provider_records import QUEUE

ACCOUNTS = 40


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sync, "LOOK_S", 0.02)
    monkeypatch.setattr(rotation, "PAGE", 1)


@contextlib.asynccontextmanager
async def two_nodes(valkey: Any, folder: Path) -> AsyncIterator[list[harness.Side]]:
    """Two nodes with a key file each, and accounts whose tokens are far from due."""
    key = base64.b64encode(os.urandom(32)).decode()
    chosen = harness.provider("http://127.0.0.1:9/token")
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for name in ("n0", "n1"):
            (folder / name / "secrets").mkdir(parents=True)
            (folder / name / "secrets" / "vault.key").write_text(key)
            sides.append(
                await stack.enter_async_context(harness.node(valkey, folder / name, chosen, name))
            )
            answer_within(sides[-1].tokens.custody.rotator, 1.0)
        for i in range(ACCOUNTS):
            await sides[0].tokens.put(
                f"p/a{i}",
                {"refresh_token": f"a{i}.0", "access_token": f"at{i}", "expires_in": 3600},
            )
        yield sides


async def readable(side: harness.Side) -> None:
    for i in range(ACCOUNTS):
        assert (await side.tokens.get(f"p/a{i}")).access_token == f"at{i}"


async def done(side: harness.Side) -> dict[str, Any]:
    async def ended() -> Any:
        found = (await side.tokens.custody.status())["rotation"]
        return found if found["state"] in ("done", "refused") else None

    found: dict[str, Any] = await eventually(ended)
    return found


async def test_to_another_key_with_a_node_dying_in_the_middle(valkey: Any, tmp_path: Path) -> None:
    async with two_nodes(valkey, tmp_path) as (one, two):
        before = await one.tokens.custody.status()
        files = [tmp_path / name / "secrets" / "vault.key" for name in ("n0", "n1")]
        made = prepend_key(files[0])
        files[1].write_text(files[0].read_text())
        await one.tokens.custody.rotate()
        worker, other = one, two

        async def under_way() -> bool:
            nonlocal worker, other
            found = (await one.tokens.custody.status())["rotation"]
            if found["node"] == "n1":
                worker, other = two, one
            return bool(found["state"] == "sealing" and found["seen"] > 3)

        await eventually(under_way)
        assert worker.running is not None
        # It dies between two scripts, as far as the store can tell; its lease is given back as by a
        # node's death.
        worker.running.cancel()
        await worker.queues.close_session(session_of(worker.tokens.custody.rotator))
        await readable(other)
        await readable(worker)
        found = await done(other)
        assert (found["state"], found["unreadable"], found["kek"]) == ("done", 0, made.hex())
        assert found["seen"] >= ACCOUNTS
        assert found["node"] == config_of(other.tokens).node.name
        after = await other.tokens.custody.status()
        assert (after["kek"], after["wrapped_otherwise"]) == (made.hex(), 0)
        assert after["data_key"] > before["data_key"]
        # The old key may go now, without a restart, and nothing misses it.
        for path in files:
            path.write_text(path.read_text().splitlines()[0])
        await keyring_of(other.tokens).read()
        await readable(other)
        rows = await other.link.call("EVAL", _ROWS, 0)
        assert len(rows) == ACCOUNTS
        new = int(after["data_key"]).to_bytes(4, "big")
        assert all(row[44:].count(b"\x01" + new) >= 2 for row in rows)


async def test_a_key_that_a_node_lacks_is_refused_and_old_data_keys_go(
    valkey: Any, tmp_path: Path
) -> None:
    async with two_nodes(valkey, tmp_path) as (one, two):
        files = [tmp_path / name / "secrets" / "vault.key" for name in ("n0", "n1")]
        kek = (await one.tokens.custody.status())["kek"]
        made = prepend_key(files[0])
        await one.tokens.custody.rotate()
        found = await done(one)
        assert found["state"] == "refused"
        assert (
            found["message"]
            == f"key-encryption key {made.hex()} is not at n1: give it to every node"
        )
        assert (await two.tokens.custody.status())["kek"] == kek
        files[1].write_text(files[0].read_text())
        await one.tokens.custody.rotate()
        assert (await done(one))["state"] == "done"
        assert (await one.tokens.custody.status())["data_keys"] == 2
        # The next one drops what was superseded by the one before it.
        await two.tokens.custody.rotate()
        found = await done(two)
        assert (found["state"], found["dropped"], found["sealed"]) == ("done", 1, ACCOUNTS)
        assert (await two.tokens.custody.status())["data_keys"] == 2
        await readable(one)


async def test_a_node_that_does_not_answer_is_waited_for_unless_forced(
    valkey: Any, tmp_path: Path
) -> None:
    chosen = harness.provider("http://127.0.0.1:9/token")
    async with harness.node(valkey, tmp_path, chosen) as side:
        rotator = side.tokens.custody.rotator
        answer_within(rotator, 0.2)
        await side.link.call("HSET", "{t}:vault_nodes", "n9", '{"change": 0}')
        prepend_key(tmp_path / "secrets" / "vault.key")
        await side.tokens.custody.rotate()
        assert (await done(side))["message"].startswith(
            "n9 do not answer, and may lack key-encryption key "
        )
        await side.tokens.custody.rotate(force=True)
        assert (await done(side))["state"] == "done"
        assert list((await side.tokens.custody.status())["nodes"]) == ["n0"]


_ROWS = """
local rows = {}
for _, name in ipairs(redis.call('KEYS', '*:accounts')) do
  for _, row in ipairs(redis.call('HVALS', name)) do rows[#rows + 1] = row end
end
return rows
"""


async def test_two_that_are_asked_for_at_once_are_one(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The later takes the place of the one under way, which ends where it is: never do two nodes work
    at both.
    """
    async with two_nodes(valkey, tmp_path) as (one, two):
        await one.tokens.custody.rotate()

        async def under_way() -> bool:
            found = (await one.tokens.custody.status())["rotation"]
            return bool(found["state"] == "sealing" and found["seen"] > 3)

        await eventually(under_way)
        key_store = key_store_of(two.tokens.custody.rotator)
        read, stale = key_store.rotation, [None]

        async def late() -> Any:
            return stale.pop() if stale else await read()

        # It looked just before the other wrote down that it begins.
        monkeypatch.setattr(key_store, "rotation", late)
        asked = (await two.tokens.custody.rotate())["rotation"]
        found = await done(one)
        assert (found["state"], found["started_ms"], found["unreadable"]) == (
            "done",
            asked["started_ms"],
            0,
        )

        async def nothing_left() -> bool:
            return (await one.queues.admin.stats(QUEUE))["total"] == 0

        await eventually(nothing_left)
        await readable(one)
        await readable(two)
