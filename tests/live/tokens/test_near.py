"""Tokens from the node's own copy: while the primary is away, and where the reader allows it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.inspect import cache_of, reader_of, say_connected
from support.providers.scripted_provider import scripted_provider
from support.store.near_pair import NearPair, near_pair
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.config.load import Tokens
from tidewarden.errors import NoQuorum, NotFound, StoreDown
from tidewarden.store import Scripts
from tidewarden.store import connection as store_link
from tidewarden.store.near_copy import NearCopy

AGE_MS = 600_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[NearPair]:
    (tmp_path / "stores").mkdir()
    with near_pair(tmp_path / "stores") as made:
        yield made


@contextlib.asynccontextmanager
async def node(
    pair: NearPair,
    folder: Path,
    url: str,
    sections: Any = None,
    alone: Callable[[], bool] = bool,
    **settings: Any,
) -> AsyncIterator[harness.Side]:
    chosen = harness.provider(url, timeout_s=20.0, **settings)

    def near(scripts: Scripts) -> NearCopy:
        copy = pair.near(scripts)
        copy.alone = alone
        return copy

    async with harness.node(
        pair.store, folder, chosen, go=False, sections=sections, near=near
    ) as side:
        say_connected(reader_of(side.tokens), lambda: side.link.up)
        yield side


async def put(side: harness.Side, *names: str, life_s: int = 3600) -> None:
    for name in names:
        grant = {
            "refresh_token": f"{name}.0",
            "access_token": f"secret-{name}",
            "expires_in": life_s,
        }
        await side.tokens.put(f"p/{name}", grant)


@pytest.mark.parametrize("cache_max", [1000, 0])
async def test_every_account_is_served_while_the_primary_is_away(
    pair: NearPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_max: int
) -> None:
    """Also one that this node never read, whatever its memory may keep."""
    monkeypatch.setattr(store_link, "PATIENCE_S", 0.3)
    kept = {"tokens": Tokens(cache_max=cache_max)}
    async with node(pair, tmp_path, "http://127.0.0.1:9/", sections=kept) as side:
        await put(side, "a", "b", "gone")
        await side.tokens.delete("p/gone")
        pair.caught_up()
        pair.primary_process.send_signal(signal.SIGSTOP)
        token = await side.tokens.get("p/a")
        assert (token.access_token, token.state) == ("secret-a", "stale"), "connected, but silent"
        pair.kill_primary()
        await eventually(lambda: not side.link.up)
        found = await side.tokens.get_many(["p/a", "p/b", "p/gone"])
        assert [getattr(one, "access_token", "") for one in found] == ["secret-a", "secret-b", ""]
        assert isinstance(found[2], StoreDown)
        assert "no living token of p/gone is known here" in str(found[2])
        with pytest.raises(StoreDown):
            await side.tokens.get("p/a", newer=1)


async def test_what_was_refreshed_here_is_newer_than_the_copy(
    pair: NearPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_link, "PATIENCE_S", 0.3)
    async with (
        scripted_provider() as endpoint,
        node(pair, tmp_path, endpoint.url) as side,
    ):
        await put(side, "a", "b")
        await side.tokens.get("p/a")
        pair.caught_up()
        pair.freeze()
        side.go()
        await side.tokens.refresh("p/a")
        await eventually(lambda: getattr(cache_of(side.tokens).find("p/a"), "generation", 0) == 2)
        pair.kill_primary()
        await eventually(lambda: not side.link.up)
        assert (await side.tokens.get("p/a")).access_token == "secret-access-a-1"
        assert (await side.tokens.get("p/b")).access_token == "secret-b"


async def test_an_orphan_refreshes_what_it_never_read(
    pair: NearPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the provider's policy lets it; what comes of it has the copy's row as its base."""
    monkeypatch.setattr(store_link, "PATIENCE_S", 0.3)
    async with scripted_provider() as endpoint:

        def rotate(token: str) -> web.Response:
            body = {"access_token": f"fresh-{token}", "expires_in": 3600, "token_type": "Bearer"}
            return web.json_response(body)

        endpoint.rotate = rotate  # type: ignore[method-assign]
        async with node(pair, tmp_path, endpoint.url, rotation="none", orphan="refresh") as side:
            await put(side, "a", life_s=60)
            pair.caught_up()
            pair.kill_primary()
            await eventually(lambda: not side.link.up)
            token = await side.tokens.get("p/a", min_ttl_ms=600_000, wait_ms=20_000)
            assert (token.access_token, token.state) == ("fresh-a.0", "stale")
            assert (token.grant, token.generation) == (1, 2)
            again = await side.tokens.get("p/a")
            assert again.access_token == "fresh-a.0", "the copy's older one does not come back"
    assert endpoint.requests == {"a.0": 1}


async def test_a_reader_who_allows_an_old_token_gets_it_near(
    pair: NearPair, tmp_path: Path
) -> None:
    async with node(pair, tmp_path, "http://127.0.0.1:9/") as side:
        near = side.queues.near
        assert near is not None
        await put(side, "a", "b")
        pair.caught_up()
        await eventually(lambda: near.age.within(AGE_MS))
        pair.freeze()
        await side.tokens.put(
            "p/a", {"refresh_token": "n.0", "access_token": "newer", "expires_in": 3600}
        )
        await put(side, "c")
        old = await side.tokens.get("p/a", max_stale_ms=AGE_MS)
        assert (old.access_token, old.state != "stale") == ("secret-a", True)
        (old_too,) = await side.tokens.get_many(["p/a"], max_stale_ms=AGE_MS)
        assert getattr(old_too, "access_token", "") == "secret-a"
        assert (await side.tokens.get("p/a")).access_token == "newer"
        late = await side.tokens.get("p/a", newer=old.generation, max_stale_ms=AGE_MS)
        assert late.access_token == "newer", "the copy's is not new enough"
        assert (await side.tokens.get("p/c", max_stale_ms=AGE_MS)).access_token == "secret-c"
        with pytest.raises(NotFound):
            await side.tokens.get("p/none", max_stale_ms=AGE_MS)


def unconfirmed(*_: object) -> Any:
    """A write of which nobody says that it lasts."""
    raise NoQuorum("too few have it")


@pytest.mark.parametrize("is_primary", [True, False])
async def test_where_no_majority_is_in_reach_nothing_is_served_as_if_it_were_current(
    pair: NearPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_primary: bool
) -> None:
    """Though its own store be the primary: another may have been elected, and have a newer pair."""
    known = False
    async with node(pair, tmp_path, "http://127.0.0.1:9/", alone=lambda: known) as side:
        await put(side, "a", "b")
        pair.caught_up()
        known = True
        assert (await side.tokens.get("p/a")).state == "fresh", "a primary that is confirmed"
        assert "stale_ms" not in (await side.tokens.stats())["p"] | await side.tokens.peek("p/a")
        assert "stale_ms" not in await side.tokens.why("p/a") | await side.tokens.why("p")
        assert (await side.tokens.due("p", 60_000, 2))[1] == {}
        if is_primary:
            monkeypatch.setattr(side.queues.catalog.durability, "firm", unconfirmed)
        else:
            pair.kill_primary()
            await eventually(lambda: not side.link.up)
        for name in ("a", "b"):
            token = await side.tokens.get(f"p/{name}")
            assert (token.access_token, token.state) == (f"secret-{name}", "stale")
        stats = (await side.tokens.stats())["p"]
        assert (stats["total"], "stale_ms" in stats) == (2, True)
        account = await side.tokens.peek("p/a")
        assert (account["state"], account["generation"], "stale_ms" in account) == (
            "fresh",
            1,
            True,
        )
        page, after = await side.tokens.list()
        assert ({one["account"] for one in page}, after) == ({"p/a", "p/b"}, "")
        assert all("stale_ms" in one for one in page)
        for subject in ("p/a", "p"):
            story = await side.tokens.why(subject)
            assert (story["state"] != "unknown", "stale_ms" in story) == (True, True)
        due, mark = await side.tokens.due("p", 3_600_000 * 24, 2)
        assert (sum(due), "stale_ms" in mark) == (2, True)
        with pytest.raises(NoQuorum, match="this node's copy has no such account"):
            await side.tokens.list(state="dead")
        with pytest.raises(NoQuorum, match="this node's copy has no p/none"):
            await side.tokens.peek("p/none")
        for refused in (side.tokens.get("p/none"), side.tokens.get("p/a", newer=1)):
            with pytest.raises(NoQuorum, match=r"in reach; no living token of p/.* is known here"):
                await refused


async def test_a_node_without_a_copy_accepts_the_option(valkey: Any, tmp_path: Path) -> None:
    chosen = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, tmp_path, chosen, go=False) as side:
        await put(side, "a")
        token = await side.tokens.get("p/a", max_stale_ms=AGE_MS)
        assert token.access_token == "secret-a"
        (queue,) = (name for name in side.queues.catalog.shards if name.startswith("_tokens:"))
        assert (await side.queues.admin.stats(queue, max_stale_ms=AGE_MS))["total"] == 1
