"""Accounts leave a cluster sealed, and come into another whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from msgspec.structs import replace
from support.inspect import accounts_of, vault_of
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness

from tidewarden.config.sealed_file import open_line
from tidewarden.errors import BadArg, NotFound
from tidewarden.tokens.vault.vault import Place

KEY, FILE = os.urandom(32), os.urandom(16)


async def test_out_and_in_again(valkey: Any, tmp_path: Path) -> None:
    chosen = harness.provider("http://127.0.0.1:9/token")
    async with harness.node(valkey, tmp_path / "one", chosen, go=False) as side:
        for i in range(40):  # HSCAN may return nine in one page, by the chance of the hash seed.
            fields: dict[str, Any] = {"refresh_token": f"s3cret-{i}", "scope": "mail read"}
            if i:
                fields |= {"access_token": f"s3cret-at-{i}", "expires_at_ms": 4_000_000_000_000 + i}
            await side.tokens.put(f"p/a{i}", fields)
        lines: list[bytes] = []
        after, pages = "", 0
        while pages == 0 or after:
            more, after, unreadable = await side.tokens.custody.export(
                (KEY, FILE, len(lines) + 1), "", 4, after
            )
            assert not unreadable
            lines += more
            pages += 1
        assert pages > 1
        assert b"s3cret" not in b"".join(lines)
        assert b'"client":"c0"' in open_line(KEY, FILE, 1, lines[0])
        for wrong in ((KEY[:-1], FILE, 1), (KEY, FILE[:-1], 1), (KEY, FILE, 0)):
            with pytest.raises(BadArg, match="a sealed file has a key of 32 bytes"):
                await side.tokens.custody.export(wrong)
        with pytest.raises(NotFound, match="no provider 'q'"):
            await side.tokens.custody.export((KEY, FILE, 1), "q")
    assert await _flushed(valkey)
    async with harness.node(valkey, tmp_path / "two", chosen, go=False) as side:
        results = await side.tokens.custody.import_sealed((KEY, FILE, 1), lines)
        assert results == [1] * len(lines)
        assert await side.tokens.custody.import_sealed((KEY, FILE, 1), lines) == [0] * len(lines)
        token = await side.tokens.get("p/a3")
        assert (token.access_token, token.expires_at_ms, token.scope) == (
            "s3cret-at-3",
            4_000_000_000_003,
            "mail read",
        )
        with pytest.raises(BadArg, match="line 2 does not open"):
            await side.tokens.custody.import_sealed((KEY, FILE, 1), lines[1:])
    other = harness.provider("http://127.0.0.1:9/token", client_id="c1")
    async with harness.node(valkey, tmp_path / "two", other, go=False) as side:
        (fault,) = await side.tokens.custody.import_sealed((KEY, FILE, 1), lines[:1])
        assert "client is 'c0'; the provider's client is 'c1'" in str(fault)


async def test_a_spare_goes_with_its_account_and_is_tried_before_that_is_given_up(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.current = {"b": 1}
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path / "one", chosen, go=False) as side:
            await side.tokens.put("p/a", {"refresh_token": "old.5"})
            ledger, queue, seal = (
                accounts_of(side.tokens),
                "_tokens:p:c0",
                vault_of(side.tokens).seal,
            )
            row = (await ledger.get(queue, "a")).row
            late = replace(
                row,
                grant=9,
                current=b"another!",
                refresh=seal(b"a.0", Place("p", "a", "refresh", 9, 1)),
            )
            assert await ledger.stored(queue, "a", (9, 0), late.pack(), 1, 1) == "SPARE"
            # What came before the pair works within its grace alone: it stays.
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            row = (await ledger.get(queue, "b")).row
            new = replace(row, generation=2, refresh=seal(b"b.1", Place("p", "b", "refresh", 1, 2)))
            assert await ledger.stored(queue, "b", (1, 1), new.pack(), 1, 1, row.pack()) == "STORED"
            assert (await side.tokens.stats())["p"]["spares"] == 2
            lines, _, unreadable = await side.tokens.custody.export((KEY, FILE, 1))
            plain = sorted(open_line(KEY, FILE, at, line) for at, line in enumerate(lines, 1))
            assert not unreadable
            assert b'"spare_refresh_token":"a.0"' in plain[0]
            assert b"spare" not in plain[1]
        assert await _flushed(valkey)
        async with harness.node(valkey, tmp_path / "two", chosen, confirm_s=60) as side:
            assert await side.tokens.custody.import_sealed((KEY, FILE, 1), lines) == [1, 1]
            assert (await harness.in_state(side, "fresh"))["generation"] == 2
            assert (await side.tokens.get("p/a")).access_token == "secret-access-a-1"
            # Again: its own token has worked since.
            assert await side.tokens.custody.import_sealed((KEY, FILE, 1), lines) == [0, 0]
            assert (await side.tokens.stats())["p"]["spares"] == 0
        assert (endpoint.requests["old.5"], endpoint.requests["a.0"]) == (1, 1)


async def test_into_the_cluster_that_it_came_from(valkey: Any, tmp_path: Path) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        custody = side.tokens.custody
        await side.tokens.put("p/a", {"refresh_token": "a.0"})
        assert (await side.tokens.get("p/a", wait_ms=20_000)).generation == 2
        lines, _, _ = await custody.export((KEY, FILE, 1))
        await side.tokens.refresh("p/a")

        async def again() -> bool:
            return bool((await harness.described(side))["generation"] == 3)

        await harness.eventually(again)
        assert await custody.import_sealed((KEY, FILE, 1), lines) == [0], (
            "a.1 was used: a second use ends the grant"
        )
        assert (await harness.described(side))["generation"] == 3
        await side.tokens.delete("p/a")
        assert await custody.import_sealed((KEY, FILE, 1), lines) == [1]


async def _flushed(valkey: Any) -> bool:
    async with redis.asyncio.Redis(unix_socket_path=valkey.path) as client:
        return bool(await client.flushall())
