"""
Refresh tokens of deleted accounts are revoked where the provider's settings say so, and only once
the account is gone.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from support.inspect import revoker_of
from support.providers.scripted_provider import ScriptedProvider, answers, scripted_provider
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.events import revocation
from tidewarden.tokens.events.revocation import QUEUE, Revocation
from tidewarden.tokens.provider.revocation_response import judge_revocation
from tidewarden.tokens.provider.token_response import HttpAnswer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "DELAY_MS", 50)
    monkeypatch.setattr(revocation, "BACKOFF_MS", 50)


def revocations(
    *said: tuple[int, dict[str, Any]],
) -> contextlib.AbstractAsyncContextManager[ScriptedProvider]:
    """A revocation endpoint with these answers, then 200."""
    waits = {"Retry_After": "0.1"}
    faults = [answers(status, body, **(waits if status == 503 else {})) for status, body in said]
    return scripted_provider(faults=deque(faults), script=answers(200, {}))


def done(side: harness.Side) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in side.tokens.metrics()["revocations"].items()}


async def test_a_deleted_accounts_token_is_revoked_again_and_again_until_it_is(
    valkey: Any, tmp_path: Path
) -> None:
    unwilling = (503, {}), (401, {"error": "invalid_client"}), (500, {})
    async with scripted_provider() as endpoint, revocations(*unwilling) as there:
        chosen = harness.provider(endpoint.url, on_delete="revoke", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "secret-r", "access_token": "x", "expires_in": 3600}
            )
            await side.tokens.put(
                "p/b", {"refresh_token": "secret-b", "access_token": "x", "expires_in": 3600}
            )
            assert await side.tokens.delete("p/a")
            assert not await side.tokens.delete("p/a")
            await eventually(lambda: done(side) == {"failed": 3, "revoked": 1})
            assert {one["token"] for one in there.forms} == {"secret-r"}
            assert there.forms[0]["token_type_hint"] == "refresh_token"
            assert there.headers[0]["Authorization"].startswith("Basic ")
            assert (await side.queues.admin.stats(QUEUE))["total"] == 0
            assert (await side.tokens.get("p/b")).access_token == "x"


async def test_an_account_that_is_there_keeps_its_token(valkey: Any, tmp_path: Path) -> None:
    """
    Its node was killed before it deleted it, or the account was put anew: one token may end all of
    a user's grants.
    """
    async with scripted_provider() as endpoint, revocations() as there:
        chosen = harness.provider(endpoint.url, on_delete="revoke", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            for name in "ab":
                await side.tokens.put(
                    f"p/{name}", {"refresh_token": name, "access_token": "x", "expires_in": 3600}
                )
            await revoker_of(side.tokens).deleting("p", "a")
            await side.tokens.delete("p/b")
            await side.tokens.put(
                "p/b", {"refresh_token": "b2", "access_token": "x", "expires_in": 3600}
            )
            side.go()
            await eventually(lambda: done(side) == {"kept": 2})
            # Deleted in the end: what was kept before is no matter.
            await side.tokens.delete("p/a")
            await eventually(lambda: done(side) == {"kept": 2, "revoked": 1})
    assert [one["token"] for one in there.forms] == ["a"]


async def test_a_pair_that_came_for_a_deleted_account_is_revoked_too(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(delay_s=0.5) as endpoint, revocations() as there:
        chosen = harness.provider(endpoint.url, on_delete="revoke", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.open == 1)
            await side.tokens.delete("p/a")
            await eventually(lambda: done(side) == {"revoked": 2})
    assert {one["token"] for one in there.forms} == {"a.0", "a.1"}


async def test_a_spare_pairs_token_is_revoked_too(valkey: Any, tmp_path: Path) -> None:
    """
    An account with a pair that came when it had moved on: to revoke the one token leaves the
    other's grant alive.
    """
    async with scripted_provider(delay_s=0.5) as endpoint, revocations() as there:
        chosen = harness.provider(endpoint.url, on_delete="revoke", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.open == 1)
            await side.tokens.put(
                "p/a", {"refresh_token": "new", "access_token": "x", "expires_in": 3600}
            )

            async def spare() -> bool:
                return bool((await side.tokens.stats())["p"]["spares"])

            await eventually(spare)
            assert await side.tokens.delete("p/a")
            await eventually(lambda: done(side) == {"revoked": 2})
    assert {one["token"] for one in there.forms} == {"new", "a.1"}


async def test_a_pair_that_came_just_before_its_account_was_deleted_is_revoked(
    valkey: Any, tmp_path: Path
) -> None:
    """Its token was noted, then it was refreshed and a spare came, then it was deleted."""
    async with scripted_provider() as endpoint, revocations() as there:
        chosen = harness.provider(endpoint.url, on_delete="revoke", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "a.0", "access_token": "x", "expires_in": 3600}
            )
            noting = revoker_of(side.tokens).deleting

            async def slow(provider: str, account: str) -> list[AccountRow]:
                noted = await noting(provider, account)
                await side.tokens.put(
                    "p/a", {"refresh_token": "a.1", "access_token": "y", "expires_in": 3600}
                )
                return noted

            revoker_of(side.tokens).deleting = slow  # type: ignore[method-assign]
            assert await side.tokens.delete("p/a")
            side.go()
            await eventually(lambda: done(side) == {"revoked": 2})
    assert {one["token"] for one in there.forms} == {"a.0", "a.1"}


async def test_what_cannot_be_revoked_is_put_aside(
    valkey: Any, tmp_path: Path, caplog: Any
) -> None:
    refuses = (400, {"error": "unsupported_token_type"})
    async with scripted_provider() as endpoint, revocations(refuses) as there:
        chosen = harness.provider(endpoint.url, on_delete="revoke", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "secret-r", "access_token": "x", "expires_in": 3600}
            )
            await side.tokens.delete("p/a")
            await eventually(lambda: done(side) == {"unsupported": 1})

            async def buried() -> bool:
                return (await side.queues.admin.stats(QUEUE))["buried"] == 1

            await eventually(buried)
    assert "is not revoked: HTTP 400 unsupported_token_type" in caplog.text
    assert "secret-r" not in caplog.text


async def test_by_default_nothing_is_said_to_the_provider(valkey: Any, tmp_path: Path) -> None:
    async with revocations() as there:
        chosen = harness.provider("http://127.0.0.1:9/token", revocation_url=there.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "r", "access_token": "x", "expires_in": 3600}
            )
            await side.tokens.delete("p/a")
            assert QUEUE not in await side.queues.catalog.names()
    assert not there.forms


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b"", "revoked"),
        (204, b"", "revoked"),
        (400, b'{"error": "invalid_token"}', "revoked"),
        (400, b'{"error": "unsupported_token_type"}', "unsupported"),
        (200, b'{"error": "server_error"}', "failed"),
        (302, b"", "failed"),
        (405, b"<html>", "failed"),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, outcome: str) -> None:
    assert judge_revocation(HttpAnswer(status, {}, body), 0).outcome == outcome


def test_it_shows_no_secret() -> None:
    row = AccountRow(1, 2, 0, 0, 0, b"o" * 8, b"c" * 8, refresh=b"sealed")
    assert "sealed" not in repr(Revocation("p", "a", row.grant, row.generation, row.refresh))
