"""
Refreshers whose store is away, whose node dies, or whose process is paused in the midst of a
refresh.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from support.inspect import accounts_of, token_endpoint_of
from support.providers.scripted_provider import rotate_and_cut, scripted_provider
from support.tokens import harness
from support.tokens.harness import described, in_state

from tidewarden.tokens.refresh import pool as pool_module
from tidewarden.tokens.refresh import refresher as refresher_module
from tidewarden.tokens.refresh import token_request as token_request_module

# Longest of a refresh where its lease is waited for: short, but a starved machine has to keep it.
REQUEST_S = 2.0


async def test_an_answer_outlives_a_store_that_is_away(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the journal and the store; another start brings the answer there."""
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            gone = asyncio.Event()

            async def away(*_args: Any) -> str:
                gone.set()
                await asyncio.get_running_loop().create_future()
                return ""

            monkeypatch.setattr(pool_module, "STOP_S", 0.1)
            accounts_of(side.tokens).stored = away
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await asyncio.wait_for(gone.wait(), 60)
        async with harness.node(valkey, tmp_path, chosen, boot=2, go=False) as again:
            assert again.tokens.metrics()["replayed"] == 1
            assert (await described(again))["generation"] == 2
            assert (await again.tokens.get("p/a")).access_token == "secret-access-a-1"
            assert again.tokens.metrics()["journal_pending"] == 0
    assert endpoint.requests == {"a.0": 1}


async def test_the_intent_of_a_node_that_died_is_resolved_by_its_journal(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its lease lasts on; meanwhile its next start stores the answer, and nobody asks the provider
    twice.
    """
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url)
        monkeypatch.setattr(pool_module, "STOP_S", 0.1)
        monkeypatch.setattr(refresher_module, "LEASE_SLACK_S", 60.0)
        async with harness.node(valkey, tmp_path / "a", chosen, "n0") as one:
            held = asyncio.Event()

            async def away(*_args: Any) -> str:
                held.set()
                await asyncio.get_running_loop().create_future()
                return ""

            accounts_of(one.tokens).stored = away
            await one.tokens.put("p/a", {"refresh_token": "a.0"})
            await asyncio.wait_for(held.wait(), 60)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "secrets").symlink_to(tmp_path / "a" / "secrets")
        async with harness.node(valkey, tmp_path / "b", chosen, "n1") as two:
            assert (await described(two))["generation"] == 1
            await asyncio.sleep(0.5)
            assert endpoint.requests == {"a.0": 1}  # The other node waits for the intent's lease.
            async with harness.node(valkey, tmp_path / "a", chosen, "n0", boot=2, go=False):
                assert (await described(two))["generation"] == 2
            assert (await two.tokens.get("p/a")).access_token == "secret-access-a-1"
    assert endpoint.requests == {"a.0": 1}


async def test_without_that_journal_the_old_token_is_replayed_after_the_lease(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scripted_provider() as endpoint:
        endpoint.faults.append(rotate_and_cut)
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S)
        monkeypatch.setattr(refresher_module, "LEASE_SLACK_S", 0.9)
        monkeypatch.setattr(token_request_module, "SEND_SLACK_S", 0.3)
        monkeypatch.setattr(pool_module, "STOP_S", 0.0)
        async with harness.node(valkey, tmp_path / "a", chosen, "n0") as one:
            died = asyncio.Event()

            async def dies(*_args: Any) -> bool:
                died.set()
                await asyncio.get_running_loop().create_future()
                return False

            accounts_of(one.tokens).failed = dies
            await one.tokens.put("p/a", {"refresh_token": "a.0"})
            await asyncio.wait_for(died.wait(), 60)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "secrets").symlink_to(tmp_path / "a" / "secrets")
        async with harness.node(valkey, tmp_path / "b", chosen, "n1", confirm_s=0.005) as two:
            dead = await in_state(two, "lost_rotation")
            assert dead["error"] == "lost_rotation"
    assert endpoint.requests["a.0"] >= 4
    assert "an intent of n0.1 was left open" in caplog.text


async def test_a_pause_past_the_lease_sends_nothing(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The process stops between its last look at the clock and the first byte; meanwhile the lease has
    ended.
    """
    monkeypatch.setattr(refresher_module, "LEASE_SLACK_S", 0.9)
    monkeypatch.setattr(token_request_module, "SEND_SLACK_S", 0.3)
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=2)
        async with harness.node(valkey, tmp_path, chosen) as side:
            refresh = token_endpoint_of(side.tokens).refresh
            outcomes = []

            async def late(*args: Any) -> Any:
                token_endpoint_of(side.tokens).refresh = refresh
                await asyncio.sleep(REQUEST_S + 1.2)
                outcomes.append(await refresh(*args))
                return outcomes[0]

            token_endpoint_of(side.tokens).refresh = late
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            found = await in_state(side, "fresh")
            assert (found["generation"], found["tries"]) == (2, 0)
            assert [outcome.reason for outcome in outcomes] == ["late"]
            assert side.tokens.metrics()["refreshes"] == {("p", "ok"): 1}
    assert endpoint.requests == {"a.0": 1}


async def test_a_process_that_was_paused_past_a_lease_does_not_ask_beside_itself(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its answer is on its way through it when it takes the same account again: a second request would
    end the grant.
    """
    monkeypatch.setattr(refresher_module, "LEASE_SLACK_S", 0.9)
    monkeypatch.setattr(token_request_module, "SEND_SLACK_S", 0.3)
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=2)
        async with harness.node(valkey, tmp_path, chosen) as side:
            refresh = token_endpoint_of(side.tokens).refresh

            async def paused(*args: Any) -> Any:
                outcome = await refresh(*args)
                # Its lease has ended, and the account is taken again.
                await asyncio.sleep(REQUEST_S + 2)
                return outcome

            token_endpoint_of(side.tokens).refresh = paused
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            assert (await in_state(side, "fresh"))["generation"] == 2
    assert endpoint.requests == {"a.0": 1}
