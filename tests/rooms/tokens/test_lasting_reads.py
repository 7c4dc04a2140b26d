"""A reader is shown what the store has once that lasts: see ``ShardScripts.shown_on``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness

from tidewarden.errors import NoQuorum
from tidewarden.queue.shards.shard_scripts import READS_MAX
from tidewarden.store.durability.held_answers import Moved
from tidewarden.tokens import Tokens

TROUBLE = "no member acknowledges"


@contextlib.asynccontextmanager
async def reading(
    valkey: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    firm: Callable[[], Awaitable[None]],
    refused: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Tokens]:
    """
    The tokens of a node that refreshes none, with an account whose token is ``first``.

    ``firm``: returns when what was read may be shown; ``refused``: that is known to be in vain.
    """

    def begun(_link: Any) -> Callable[[], Awaitable[None]]:
        if refused():
            raise NoQuorum(TROUBLE)
        return firm

    def shown(*words: Any) -> Awaitable[Any]:
        return side.queues.scripts.shown_on(side.link, *words)

    unused = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, folder, unused, go=False, shown=shown) as side:
        monkeypatch.setattr(side.queues.catalog.durability, "shown", begun)
        await put(side.tokens, "first")
        yield side.tokens


async def put(tokens: Tokens, access: str) -> None:
    """Another token of the account."""
    grant = {"refresh_token": f"r-{access}", "access_token": access, "expires_in": 3600}
    await tokens.put("p/a", grant)


async def test_a_token_is_held_back_until_it_lasts(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, lasts = asyncio.Event(), asyncio.Event()

    async def firm() -> None:
        answered.set()
        await lasts.wait()

    async with reading(valkey, tmp_path, monkeypatch, firm) as tokens:
        asked = asyncio.create_task(tokens.get("p/a"))
        await answered.wait()
        assert not asked.done(), "only the primary may have it yet"
        lasts.set()
        assert (await asked).access_token == "first"


async def test_it_is_read_again_where_another_server_took_over(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def firm() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await put(tokens, "of the next primary")
            raise Moved("another server has taken over")

    async with reading(valkey, tmp_path, monkeypatch, firm) as tokens:
        assert (await tokens.get("p/a")).access_token == "of the next primary"


async def test_it_is_not_read_again_and_again(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def firm() -> None:
        nonlocal asked
        asked += 1
        raise Moved("another server has taken over")

    async with reading(valkey, tmp_path, monkeypatch, firm) as tokens:
        with pytest.raises(NoQuorum, match="another server has taken over; no living token"):
            await tokens.get("p/a")
        assert asked == READS_MAX


@pytest.mark.parametrize("at_once", [True, False])
async def test_while_nothing_is_known_to_last_what_was_shown_before_is_stale(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    troubled = True

    async def firm() -> None:
        if troubled:
            raise NoQuorum(TROUBLE)

    async def states() -> list[str]:
        return [(await tokens.get("p/a")).state for _ in range(2)]

    def refused() -> bool:
        return at_once and troubled

    async with reading(valkey, tmp_path, monkeypatch, firm, refused) as tokens:
        with pytest.raises(NoQuorum, match=f"{TROUBLE}; no living token of p/a"):
            await tokens.get("p/a")
        troubled = False
        assert await states() == ["fresh"] * 2
        troubled = True
        assert await states() == ["stale"] * 2
        troubled = False
        assert await states() == ["fresh"] * 2
