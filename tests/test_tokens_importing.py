"""Imports: good rows are kept, bad ones named, twice changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tokens_harness as harness

from tidewarden.errors import NotFound, StoreDown
from tidewarden.tokens.importing import Imported, Problem, import_rows


@pytest.fixture
def still(valkey: Any, tmp_path: Path) -> Any:
    return harness.node(valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False)


async def all_of(steps: AsyncIterator[Imported]) -> tuple[int, int, list[Problem]]:
    problems: list[Problem] = []
    last = Imported()
    async for last in steps:
        problems += last.problems
    return last.added, last.unchanged, problems


async def test_good_rows_are_kept_and_bad_ones_named(still: Any) -> None:
    rows = [
        {"account": "alice@example.org", "refresh_token": "r1"},
        {"account": "bad name", "refresh_token": "r2"},
        {"account": "bob", "refresh_token": ""},
        {"account": "p/carol", "refresh_token": "r4", "access_token": "", "expires_at_ms": "", "client": "c0"},
        {"account": "dave", "refresh_token": "r5", "client": "c9"},
        {"account": "alice@example.org", "refresh_token": "r6"},
        {"refresh_token": "r7"},
    ]
    async with still as side:
        added, unchanged, problems = await all_of(side.tokens.import_rows("p", rows))
        assert (added, unchanged) == (2, 0)
        assert [(problem.line, problem.account) for problem in problems] == [
            (2, "bad name"), (3, "bob"), (5, "dave"), (6, "alice@example.org"), (7, ""),
        ]  # fmt: skip
        assert "contains ' '" in problems[0].reason
        assert problems[1].reason.startswith("refresh_token is missing")
        assert problems[3].reason == "account stands on line 1 already"
        assert (await all_of(side.tokens.import_rows("p", rows)))[:2] == (0, 2)
        assert (await side.tokens.stats())["p"]["total"] == 2


async def test_many_rows_come_in_steps(still: Any) -> None:
    async def rows() -> AsyncIterator[dict[str, str]]:
        for number in range(1200):
            yield {"account": f"a{number}", "refresh_token": f"r{number}"}

    async with still as side:
        seen = [step.seen async for step in side.tokens.import_rows("p", rows())]
        assert seen == [500, 1000, 1200]
        assert (await side.tokens.stats())["p"]["total"] == 1200
        with pytest.raises(NotFound, match="there is no provider 'q'"):
            side.tokens.import_rows("q", [])


async def test_a_store_that_is_away_ends_the_import() -> None:
    async def put(_provider: str, name: str, _fields: Any) -> bool:
        if name == "a1":
            raise StoreDown("the store is away")
        return True

    with pytest.raises(StoreDown):
        await all_of(import_rows(put, "p", [{"account": f"a{n}"} for n in range(3)]))
