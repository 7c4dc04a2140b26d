"""
Providers in trouble: real authorization servers that slow down, fail, hang or go away, and what is
left of the grants.
"""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.providers.provider_settings import provider_of
from support.tokens import harness

pytestmark = pytest.mark.timeout(400)  # the first run may have to install oidc-provider


async def put(side: Any, server: Any, name: str = "p") -> None:
    await asyncio.gather(
        *(side.tokens.put(f"{name}/{who}", {"refresh_token": token}) for who, token in server.seeds)
    )


async def all_fresh(side: Any, count: int, name: str = "p", limit_s: float = 90) -> None:
    async def fresh() -> bool:
        return bool((await side.tokens.stats())[name]["fresh"] == count)

    await harness.eventually(fresh, limit_s)


async def test_retry_after_in_both_forms(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    server = oidc(accounts=8)
    async with harness.node(valkey, tmp_path, provider_of(server, refreshers=1)) as side:
        for done in (4, 8):
            begun = time.monotonic()
            date = email.utils.formatdate(time.time() + 3, usegmt=True)
            server.fault("status", status=429, retry_after=2 if done == 4 else date, times=1)
            for account, token in server.seeds[done - 4 : done]:
                await side.tokens.put(f"p/{account}", {"refresh_token": token})
            await all_fresh(side, done)
            # Nobody was asked for before, not the others either.
            assert time.monotonic() - begun >= 2
    stats = server.stats()
    assert (stats["live"], stats["reuse"], stats["faults"], stats["refreshes"]) == (8, 0, 2, 8)


async def test_a_provider_that_fails_each_request_is_probed_and_loses_nothing(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = oidc(accounts=30)
    server.fault("status", status=503)
    async with harness.node(valkey, tmp_path, provider_of(server, refreshers=10)) as side:
        await put(side, server)
        await harness.eventually(lambda: "fails each request" in caplog.text)
        await asyncio.sleep(1)
        # Ten in a row, and who was under way with them; then probes.
        assert server.stats()["faults"] <= 26
        assert side.tokens.metrics()["held"] == {"p": 1}
        server.fault()
        await all_fresh(side, 30)
        assert side.tokens.metrics()["held"] == {"p": 0}
    stats = server.stats()
    assert (stats["live"], stats["reuse"], stats["refreshes"]) == (30, 0, 30)


async def test_one_that_hangs_delays_nobody_else(
    dot: Callable[..., Any], oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    """
    Two providers of one node: one does not answer until it is told to, the other goes on as if it
    were alone.
    """
    slow, quick = dot(accounts=3), oidc(accounts=20)
    slow.fault("delay", delay_ms=100_000)
    chosen = provider_of(slow, "slow", refreshers=3, timeout_s=120.0)
    async with harness.node(valkey, tmp_path, chosen, more=[provider_of(quick, "quick")]) as side:
        await put(side, slow, "slow")
        await harness.eventually(lambda: side.tokens.metrics()["in_flight"]["slow"] == 3)
        await put(side, quick, "quick")
        await all_fresh(side, 20, "quick")
        assert side.tokens.metrics()["in_flight"]["slow"] == 3  # It still hangs.
        slow.fault()
        await all_fresh(side, 3, "slow")
    assert (slow.stats()["live"], quick.stats()["live"]) == (3, 20)


async def test_when_everything_is_away_nobody_is_blamed(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    """
    Both providers refuse connections: the fault is taken for our own; when they are back their
    accounts go on.
    """
    server = oidc(accounts=4)
    away = [provider_of(server, name, token_url="http://127.0.0.1:9/token") for name in ("p", "q")]
    async with harness.node(valkey, tmp_path, away[0], more=away[1:]) as side:
        await put(side, server, "p")
        await put(side, server, "q")

        async def failing() -> bool:
            stats = await side.tokens.stats()
            return stats["p"]["failing"] == stats["q"]["failing"] == 4

        await harness.eventually(failing)
        entries, _ = await side.tokens.list()
        assert {entry["error"] for entry in entries} == {"refused"}
        assert (
            max(entry["tries"] for entry in entries) <= 3
        )  # On a starved machine some are tried again before all were.
    async with harness.node(valkey, tmp_path, provider_of(server), boot=2) as side:
        for account, _ in server.seeds:
            await side.tokens.refresh(f"p/{account}")
        await all_fresh(side, 4)
    assert server.stats()["live"] == 4
