"""The tokens' verbs on a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.errors import BadArg, ConfigError, NotFound

FAR_MS = 4_000_000_000_000


async def test_what_was_put_is_got(still: Any) -> None:
    async with still as side:
        fields = {
            "refresh_token": "r",
            "access_token": "a",
            "token_type": "DPoP",
            "scope": "x y",
            "expires_at_ms": FAR_MS,
        }
        assert await side.tokens.put("p/alice+1@example.org", fields) == 1
        token = await side.tokens.get("p/alice+1@example.org", min_ttl_ms=60_000)
        assert (token.access_token, token.token_type, token.scope) == ("a", "DPoP", "x y")
        assert (token.expires_at_ms, token.generation, token.state) == (FAR_MS, 1, "fresh")


async def test_refresh_and_delete(valkey: Any, tmp_path: Path) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        await side.tokens.put(
            "p/a", {"refresh_token": "a.0", "access_token": "x", "expires_in": 3600}
        )
        assert await side.tokens.refresh("p/a") == "queued"
        await eventually(lambda: endpoint.requests["a.0"] == 1)
        assert await side.tokens.delete("p/a") is True
        assert await side.tokens.delete("p/a") is False
        for verb in (side.tokens.get, side.tokens.refresh):
            with pytest.raises(NotFound, match="there is no account p/a"):
                await verb("p/a")
        assert (await side.tokens.stats())["p"]["total"] == 0


async def test_nobody_waits_longer_than_the_limit(still: Any) -> None:
    async with still as side:
        await side.tokens.put("p/a", {"refresh_token": "r"})
        with pytest.raises(BadArg, match="WAIT is 3600001; allowed is 0 to 3600000"):
            await side.tokens.get("p/a", wait_ms=3_600_001)
        [one] = await side.tokens.get_many(["p/a"], wait_ms=1 << 60)
        assert isinstance(one, BadArg)


async def test_wrong_names_are_told(still: Any) -> None:
    async with still as side:
        for verb in (side.tokens.get, side.tokens.refresh, side.tokens.delete):
            with pytest.raises(BadArg, match="not of the form provider/account"):
                await verb("alice")
            with pytest.raises(NotFound, match="there is no provider 'q'; configured: p"):
                await verb("q/alice")
        with pytest.raises(BadArg, match="unknown field 'x'"):
            await side.tokens.put("p/a", {"refresh_token": "r", "x": 1})


async def test_another_vault_key_refuses_the_start(still: Any, valkey: Any, tmp_path: Path) -> None:
    async with still:
        pass
    chosen = harness.provider("http://127.0.0.1:9/")
    with pytest.raises(ConfigError, match="the store holds data sealed with a vault key"):
        async with harness.node(valkey, tmp_path / "elsewhere", chosen):
            pass


async def test_nodes_that_start_together_agree_on_the_shards(valkey: Any, tmp_path: Path) -> None:
    chosen = harness.provider("http://127.0.0.1:9/")
    folders = []
    async with harness.node(
        valkey, tmp_path / "n", harness.provider("http://x/", client_id="other"), go=False
    ):
        pass  # Makes the vault key.
    for number in range(3):
        folder = tmp_path / f"n{number}"
        folder.mkdir()
        (folder / "secrets").symlink_to(tmp_path / "n" / "secrets")
        folders.append(folder)

    async def start(folder: Path) -> dict[str, Any]:
        async with harness.node(valkey, folder, chosen, folder.name, go=False) as side:
            await side.tokens.put(f"p/{folder.name}", {"refresh_token": "r"})
            return await side.queues.admin.settings("_tokens:p:c0")

    settings = await asyncio.gather(*(start(folder) for folder in folders))
    assert {(found["shards"], found["losses_max"]) for found in settings} == {(1, 0)}
