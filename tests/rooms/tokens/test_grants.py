"""Putting grants: once, again, at once, and after a deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.inspect import accounts_of
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.errors import BadArg, Full, Internal
from tidewarden.tokens.accounts.account_record import RefreshTroubles

FAR_MS = 4_000_000_000_000


async def test_the_same_refresh_token_again_changes_nothing(still: Any) -> None:
    async with still as side:
        fields = {"refresh_token": "r", "access_token": "a", "expires_at_ms": FAR_MS}
        assert [await side.tokens.put("p/a", fields) for _ in range(3)] == [1, 1, 1]
        assert await side.tokens.put("p/a", {"refresh_token": "other"}) == 2
        # The same token in another account is that one's own.
        assert await side.tokens.put("p/b", fields) == 1


async def test_a_single_use_token_that_another_account_has_is_refused(still: Any) -> None:
    """A refresh of either would end the other's grant."""
    async with still as side:
        await side.tokens.put("p/a", {"refresh_token": "r"})
        with pytest.raises(BadArg, match="refresh_token is that of p/a; each would end the other"):
            await side.tokens.put("p/b", {"refresh_token": "r"})
        assert await side.tokens.put("p/a", {"refresh_token": "r"}) == 1
        await side.tokens.delete("p/a")
        assert await side.tokens.put("p/b", {"refresh_token": "r"}) >= 1


@pytest.mark.thorough
async def test_what_came_of_a_put_is_told_and_the_living_are_kept_when_wanted(
    valkey: Any, tmp_path: Path
) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url), confirm_s=0.005) as side,
    ):
        tokens = side.tokens

        async def told(account: str, token: str, *, keep: bool = False) -> tuple[int, str, str]:
            put = await tokens.put_told(account, {"refresh_token": token}, keep=keep)
            return put.generation, put.change, put.state

        assert await told("p/a", "a.0") == (1, "new", "expiring")
        assert (await tokens.get("p/a", wait_ms=60_000)).generation == 2
        assert await told("p/a", "a.0") == (2, "same", "fresh")
        assert await told("p/a", "b.0", keep=True) == (2, "same", "fresh")
        assert await told("p/a", "a.9") == (3, "renewed", "expiring")

        async def dead() -> bool:
            return (await told("p/a", "a.9"))[1:] == ("same", "dead")

        await eventually(dead)
        assert await told("p/a", "a.1", keep=True) == (4, "renewed", "expiring")


async def test_an_import_of_the_first_token_does_not_undo_a_rotation(
    valkey: Any, tmp_path: Path
) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        await side.tokens.put("p/a", {"refresh_token": "a.0"})
        assert (await side.tokens.get("p/a", wait_ms=60_000)).generation == 2
        for known in ("a.0", "a.1"):  # The one it began with, and the one it holds.
            assert await side.tokens.put("p/a", {"refresh_token": known}) == 2
        assert await side.tokens.put("p/a", {"refresh_token": "a.7"}) == 3


async def test_a_consent_for_more_that_keeps_the_refresh_token_is_stored(still: Any) -> None:
    """The user allows more: the refresh token stays, and the access token is of a wider scope."""
    async with still as side:
        first = {
            "refresh_token": "r",
            "access_token": "a",
            "expires_at_ms": FAR_MS,
            "scope": "mail",
        }
        wider = first | {
            "access_token": "b",
            "expires_at_ms": FAR_MS - 5_000,
            "scope": "mail calendar",
        }
        assert await side.tokens.put("p/a", first) == 1
        assert await side.tokens.put("p/a", wider) == 2
        assert (await side.tokens.get("p/a")).access_token == "b"
        assert await side.tokens.put("p/a", wider) == 2
        assert await side.tokens.put("p/a", first) == 2  # An older file, imported again.
        # Dead.
        assert (
            await side.tokens.put(
                "p/a", wider | {"scope": "mail calendar x", "expires_at_ms": 1000}
            )
            == 2
        )


async def test_a_consent_mends_an_access_token_that_opens_no_more(still: Any) -> None:
    """
    Whoever brings one that lives cannot be told that the stored one is damaged: that is why he
    brings it.
    """
    async with still as side:
        first = {"refresh_token": "r", "access_token": "a", "expires_at_ms": FAR_MS}
        await side.tokens.put("p/a", first)
        ledger, queue = accounts_of(side.tokens), "_tokens:p:c0"
        row = (await ledger.get(queue, "a")).row
        damaged = replace(row, access=row.access[:-1] + bytes([row.access[-1] ^ 1]))
        (key,) = await side.link.call("KEYS", "*:accounts")
        await side.link.call("HSET", key, "a", damaged.pack())
        with pytest.raises(Internal):
            await side.tokens.get("p/a")
        assert (
            await side.tokens.put(
                "p/a", first | {"access_token": "b", "expires_at_ms": FAR_MS + 5000}
            )
            == 2
        )
        assert (await side.tokens.get("p/a")).access_token == "b"


async def test_a_consent_for_less_brings_a_dead_account_back(still: Any) -> None:
    """The user has taken away all, and allows less now; the refresh token stays."""
    async with still as side:
        first = {
            "refresh_token": "r",
            "access_token": "a",
            "expires_at_ms": FAR_MS,
            "scope": "mail calendar",
        }
        await side.tokens.put("p/a", first)
        less = first | {"access_token": "b", "expires_at_ms": FAR_MS + 5000, "scope": "mail"}
        assert await side.tokens.put("p/a", less) == 1, "while it lives, that may be an older file"
        (key,) = await side.link.call("KEYS", "*:accounts")
        prefix = key.decode().removesuffix("accounts")
        await side.link.call(
            "HSET",
            f"{prefix}account_troubles",
            "a",
            RefreshTroubles(dead=True, outcome="invalid_grant").pack(),
        )
        await side.link.call("ZADD", f"{prefix}account_dead", 1, "a")
        assert await side.tokens.put("p/a", less) == 2
        assert (await side.tokens.get("p/a")).access_token == "b"


@pytest.mark.thorough
async def test_a_new_consent_that_brings_the_same_refresh_token_brings_a_dead_account_back(
    valkey: Any, tmp_path: Path
) -> None:
    """As providers do whose refresh tokens stay. The same file imported again is no new consent."""
    async with scripted_provider() as endpoint:
        endpoint.current["a"] = 9
        chosen = harness.provider(endpoint.url, rotation="none")
        async with harness.node(valkey, tmp_path, chosen, confirm_s=0.0) as side:
            fields = {"refresh_token": "a.0", "access_token": "old", "expires_at_ms": 1000}
            await side.tokens.put("p/a", fields)

            async def dead() -> bool:
                return bool((await side.tokens.stats())["p"]["dead"])

            await eventually(dead)
            assert await side.tokens.put("p/a", fields) == 1
            assert await side.tokens.put("p/a", {"refresh_token": "a.0"}) == 1
            assert (
                await side.tokens.put(
                    "p/a", fields | {"access_token": "new", "expires_at_ms": FAR_MS}
                )
                == 2
            )
            assert (await side.tokens.get("p/a")).access_token == "new"
            again = {"access_token": "new", "expires_at_ms": FAR_MS + 1}
            # It lives, and this is what it has.
            assert await side.tokens.put("p/a", fields | again) == 2


async def test_puts_at_once_leave_one_winner_and_no_number_twice(still: Any) -> None:
    async with still as side:
        puts = (side.tokens.put("p/a", {"refresh_token": f"r{n}"}) for n in range(8))
        assert sorted(await asyncio.gather(*puts)) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.thorough
async def test_an_account_deleted_and_put_again_is_another(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        gate = asyncio.Event()

        async def slow(_request: Any, made: Any, token: str) -> Any:
            await gate.wait()
            return made.rotate(token)

        endpoint.faults.append(slow)
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.requests["a.0"])
            await side.tokens.delete("p/a")
            await side.tokens.put("p/a", {"refresh_token": "b.0"})
            gate.set()
            token = await side.tokens.get("p/a", wait_ms=60_000)
            assert token.access_token == "secret-access-b-1"


async def test_lives_and_due_times_of_what_was_put(still: Any) -> None:
    async with still as side:
        put = side.tokens.put
        await put("p/told", {"refresh_token": "r-told", "access_token": "a", "expires_in": 3600})
        # The provider's default life: an hour.
        await put("p/untold", {"refresh_token": "r-untold", "access_token": "a"})
        # No access token: nothing that expires.
        await put("p/none", {"refresh_token": "r-none", "expires_at_ms": FAR_MS})
        await put("p/past", {"refresh_token": "r-past", "access_token": "a", "expires_at_ms": 1000})
        entries, _ = await side.tokens.list()
        found = {entry["account"]: entry for entry in entries}
        now_ms = found["p/told"]["stored_ms"]
        for name in ("p/told", "p/untold"):
            assert abs(found[name]["expires_at_ms"] - now_ms - 3_600_000) < 2_000
            # Five minutes before, and the jitter.
            assert 3_268_000 <= found[name]["due_ms"] - now_ms <= 3_302_000
        assert (found["p/none"]["expires_at_ms"], found["p/none"]["state"]) == (0, "expiring")
        assert found["p/none"]["due_ms"] <= now_ms + 2_000
        assert found["p/past"]["state"] == "late"
        await put(
            "p/2099", {"refresh_token": "r-2099", "access_token": "a", "expires_at_ms": FAR_MS}
        )
        told = next(
            entry for entry in (await side.tokens.list())[0] if entry["account"] == "p/2099"
        )
        assert told["expires_at_ms"] == FAR_MS
        # life_s_max, the longest that is believed
        assert told["due_ms"] <= now_ms + 366 * 86_400_000


async def test_a_full_store_refuses_new_grants_and_refreshes_go_on(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            try:
                await side.link.call("CONFIG", "SET", "maxmemory", "1000000")
                with pytest.raises(Full):
                    await side.tokens.put("p/b", {"refresh_token": "b.0"})
                side.go()
                token = await side.tokens.get("p/a", wait_ms=10_000)
                assert token.access_token == "secret-access-a-1"
                assert await side.tokens.delete("p/a")
            finally:
                await side.link.call("CONFIG", "SET", "maxmemory", "0")
