"""Providers, webhooks and companions that change while a node runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.inspect import pools_of
from support.providers.scripted_provider import ScriptedProvider, scripted_provider
from support.providers.webhook_receiver import SECRETS, receiver
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.config.load import Companion, Config, Secret, Webhook
from tidewarden.errors import NotFound

DUE = {"refresh_token": "a.0", "access_token": "old", "expires_in": 1}


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedProvider]:
    async with scripted_provider() as made:
        yield made


async def change(side: Any, *providers: Any, **more: Any) -> None:
    chosen = {one.name: one for one in providers}
    await side.tokens.prepare(chosen)
    side.tokens.change(Config(providers=chosen, **more))


async def test_a_provider_that_is_added_is_refreshed_and_others_go_on(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    one = harness.provider(endpoint.url)
    two = replace(one, name="q", client_id="c1")
    async with harness.node(valkey, tmp_path, one) as side:
        pool = pools_of(side.tokens)["p"]
        with pytest.raises(NotFound, match="there is no provider 'q'; configured: p"):
            await side.tokens.put("q/a", DUE)
        await change(side, one, two)
        await side.tokens.put("q/a", DUE)
        await eventually(lambda: endpoint.requests["a.0"])
        assert (await side.tokens.get("q/a", wait_ms=20_000, newer=1)).generation >= 2
        assert pools_of(side.tokens)["p"] is pool
        assert set(await side.tokens.stats()) == {"p", "q"}


@pytest.mark.usefixtures("short_lives")
@pytest.mark.thorough
async def test_a_changed_provider_goes_on_when_what_was_under_way_has_ended(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    """One request at a time, with the settings of when it began; what was learnt stays."""
    endpoint.delay_s, endpoint.life_s = 0.3, 1
    one = harness.provider(endpoint.url, refreshers=3)
    other = replace(one, client_secret=Secret("another"), refreshers=3, margin_s=7.0)
    async with harness.node(valkey, tmp_path, one) as side:
        await side.tokens.put("p/a", DUE)
        await eventually(lambda: endpoint.open)
        former = pools_of(side.tokens)["p"]
        await change(side, other)
        pool = pools_of(side.tokens)["p"]
        assert pool is not former
        assert pool.limits.breaker is former.limits.breaker
        assert pool.limits.concurrency is former.limits.concurrency
        assert pool.limits.provider is other
        await eventually(lambda: endpoint.requests["a.2"], 30)
        assert all(count == 1 for count in endpoint.requests.values())
        assert endpoint.most_open == 1


@pytest.mark.parametrize("between", ["changed", "removed"])
async def test_one_that_changes_twice_waits_for_all_of_its_former_selves(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider, between: str
) -> None:
    """The end of the first drops the connections, by which the last would have asked meanwhile."""
    endpoint.hold = True
    one = harness.provider(endpoint.url, rotation="single_use")
    async with harness.node(valkey, tmp_path, one) as side:
        await side.tokens.put("p/a", DUE)
        await eventually(lambda: endpoint.held == 1)
        await change(side, *([replace(one, timeout_s=21.0)] if between == "changed" else []))
        await asyncio.sleep(0.1)  # The end of the first has begun.
        await change(side, replace(one, timeout_s=22.0))
        await side.tokens.put("p/b", DUE | {"refresh_token": "b.0"})
        for _ in range(200):  # While the first is under way nothing else is asked.
            await asyncio.sleep(0.01)
            assert endpoint.held == 1
        endpoint.hold = False
        for account in ("p/a", "p/b"):
            assert (await side.tokens.get(account, wait_ms=20_000, newer=1)).generation == 2
        assert (endpoint.requests["a.0"], endpoint.requests["b.0"]) == (1, 1)


async def test_accounts_of_a_removed_provider_are_kept_and_not_refreshed(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    one = harness.provider(endpoint.url)
    async with harness.node(valkey, tmp_path, one) as side:
        await side.tokens.put("p/a", DUE | {"expires_in": 3600})
        await change(side)
        for ask in (side.tokens.get("p/a"), side.tokens.why("p"), side.tokens.put("p/b", DUE)):
            with pytest.raises(NotFound, match="its accounts are kept, and not refreshed until"):
                await ask
        assert await side.tokens.stats() == {}
        with pytest.raises(NotFound, match="no provider is configured"):
            await side.tokens.list()
        assert not pools_of(side.tokens)
        await change(side, one)
        assert (await side.tokens.get("p/a")).access_token == "old"
        assert await side.tokens.refresh("p/a") == "queued"
        await eventually(lambda: endpoint.requests["a.0"])


async def test_another_client_of_a_provider_has_accounts_of_its_own(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    one = harness.provider(endpoint.url)
    other = replace(one, client_id="c9")
    async with harness.node(valkey, tmp_path, one) as side:
        await side.tokens.put("p/a", DUE | {"expires_in": 3600})
        await change(side, other)
        with pytest.raises(NotFound, match="there is no account p/a"):
            await side.tokens.get("p/a")
        await change(side, one)
        assert (await side.tokens.get("p/a")).access_token == "old"


async def test_webhooks_and_companions_that_are_added_changed_and_removed(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    one = harness.provider(endpoint.url)
    async with receiver() as received, harness.node(valkey, tmp_path, one) as side:
        hook = Webhook("w", received.url, ("account.*",), tuple(map(Secret, SECRETS)))
        queue = Companion("c", (), "work", 3600)
        await change(side, one, webhooks={"w": hook}, companions={"c": queue})
        await side.tokens.put("p/a", DUE | {"expires_in": 3600})
        await harness.tell(side.tokens.events, "account.dead", "p", "x")
        await eventually(lambda: received.got)

        async def tasks(name: str) -> int:
            if name not in await side.queues.catalog.names():
                return 0
            return int((await side.queues.admin.stats(name))["total"])

        async def one_in_work() -> bool:
            return await tasks("work") == 1

        async def one_elsewhere() -> bool:
            return await tasks("elsewhere") == 1

        await eventually(one_in_work)
        moved = replace(queue, queue="elsewhere")
        await change(side, one, companions={"c": moved})
        await side.tokens.put("p/b", DUE | {"refresh_token": "b.0", "expires_in": 3600})
        await eventually(one_elsewhere)
        before = len(received.got)
        await change(side, one)
        await harness.tell(side.tokens.events, "account.dead", "p", "y")
        await side.tokens.put("p/c", DUE | {"refresh_token": "c.0", "expires_in": 3600})
        assert await tasks("elsewhere") == 1
        assert len(received.got) == before
        assert (await side.queues.admin.stats("_webhooks"))["total"] == 0
