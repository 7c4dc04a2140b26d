"""
What a dead node had under way goes on within a grace that is shorter than its lease; else nothing
is sent twice.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.inspect import rescue_of
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness

from tidewarden.tokens.refresh import pool as pool_module

QUEUE = "_tokens:p:c0"


@pytest.mark.parametrize(("grace_s", "saved"), [(20.0, True), (0.0, False), (400.0, False)])
async def test_a_request_of_a_dead_node_is_made_again_within_the_grace(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace_s: float, saved: bool
) -> None:
    """
    It was processed, and its answer died with the node; a used refresh token works for a while
    more.
    """
    monkeypatch.setattr(pool_module, "STOP_S", 0.0)
    processed = asyncio.Event()

    async def never_answers(_request: Any, endpoint: Any, token: str) -> Any:
        endpoint.rotate(token)
        processed.set()
        await asyncio.get_running_loop().create_future()

    async def within_the_grace(_request: Any, endpoint: Any, token: str) -> Any:
        endpoint.current[token.rpartition(".")[0]] = int(token.rpartition(".")[2])
        return endpoint.rotate(token)

    async with scripted_provider() as endpoint:
        endpoint.faults.extend([never_answers, within_the_grace])
        chosen = harness.provider(endpoint.url, timeout_s=300.0, grace_s=grace_s)
        begun_s = time.monotonic()
        async with harness.node(valkey, tmp_path / "a", chosen, "n0") as one:
            await one.tokens.put("p/a", {"refresh_token": "a.0"})
            await asyncio.wait_for(processed.wait(), 60)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "secrets").symlink_to(tmp_path / "a" / "secrets")
        if saved:  # The next node starts, and looks, well within it, however slow that is here.
            grace_s = max(grace_s, 6 * (time.monotonic() - begun_s))
            chosen = harness.provider(endpoint.url, timeout_s=300.0, grace_s=grace_s)
        async with harness.node(valkey, tmp_path / "b", chosen, "n1") as two:
            assert await rescue_of(two.tokens).look() == 0  # Nobody says that it is dead.
            await two.queues.scripts.run("queue.reap", QUEUE, 0, [1, "n0", 1, 100])
            if saved:  # Not before half of the grace is over: its next start may bring the answer.

                async def looks() -> int:
                    return int(await rescue_of(two.tokens).look())

                assert not endpoint.requests["a.0"] > 1
                await harness.eventually(looks)
            assert await rescue_of(two.tokens).look() == 0
            if saved:
                await harness.in_state(two, "fresh")
                assert (await two.tokens.get("p/a")).access_token == "secret-access-a-1"
            assert endpoint.requests["a.0"] == 1 + saved
            assert (await harness.described(two))["tries"] == 0
