"""A reader is shown what the store has once that lasts: see ``Durability.shows``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness

from tidewarden.errors import NoQuorum
from tidewarden.tokens import Tokens
from tidewarden.tokens.verbs.reader import READS_MAX, Shows


@contextlib.asynccontextmanager
async def reading(valkey: Any, folder: Path, shows: Shows) -> AsyncIterator[Tokens]:
    """The tokens of a node that refreshes none, with an account whose token is ``first``."""
    unused = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, folder, unused, go=False, shows=shows) as side:
        await put(side.tokens, "first")
        yield side.tokens


async def put(tokens: Tokens, access: str) -> None:
    """Another token of the account."""
    grant = {"refresh_token": f"r-{access}", "access_token": access, "expires_in": 3600}
    await tokens.put("p/a", grant)


async def test_a_token_is_held_back_until_it_lasts(valkey: Any, tmp_path: Path) -> None:
    answered, lasts = asyncio.Event(), asyncio.Event()

    async def shown() -> bool:
        answered.set()
        await lasts.wait()
        return True

    async with reading(valkey, tmp_path, lambda: shown) as tokens:
        asked = asyncio.create_task(tokens.get("p/a"))
        await answered.wait()
        assert not asked.done(), "only the primary may have it yet"
        lasts.set()
        assert (await asked).access_token == "first"


async def test_it_is_read_again_where_another_server_took_over(valkey: Any, tmp_path: Path) -> None:
    asked = 0

    async def shown() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            await put(tokens, "of the next primary")
        return asked > 1

    async with reading(valkey, tmp_path, lambda: shown) as tokens:
        assert (await tokens.get("p/a")).access_token == "of the next primary"


async def test_it_is_not_read_again_and_again(valkey: Any, tmp_path: Path) -> None:
    asked = 0

    async def shown() -> bool:
        nonlocal asked
        asked += 1
        return False

    async with reading(valkey, tmp_path, lambda: shown) as tokens:
        with pytest.raises(NoQuorum, match=r"one server after the other took over.* p/a is known"):
            await tokens.get("p/a")
        assert asked == READS_MAX


@pytest.mark.parametrize("at_once", [True, False])
async def test_while_nothing_is_known_to_last_what_was_shown_before_is_stale(
    valkey: Any, tmp_path: Path, at_once: bool
) -> None:
    trouble = ""

    async def shown() -> bool:
        if trouble:
            raise NoQuorum(trouble)
        return True

    def shows() -> Any:
        if trouble and at_once:
            raise NoQuorum(trouble)
        return shown

    async def states() -> list[str]:
        return [(await tokens.get("p/a")).state for _ in range(2)]

    async with reading(valkey, tmp_path, shows) as tokens:
        trouble = "no member acknowledges"
        with pytest.raises(NoQuorum, match="no member acknowledges; no living token of p/a"):
            await tokens.get("p/a")
        trouble = ""
        assert await states() == ["fresh"] * 2
        trouble = "no member acknowledges"
        assert await states() == ["stale"] * 2
        trouble = ""
        assert await states() == ["fresh"] * 2
