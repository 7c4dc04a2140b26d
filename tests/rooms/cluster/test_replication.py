"""Three real stores that replicate: founding, failover, and how each comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cluster.replicating import ReplicatingNodes, replicating


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ReplicatingNodes]:
    async with replicating(tmp_path) as started:
        yield started


async def test_a_killed_store_is_replaced_and_comes_back(nodes: ReplicatingNodes) -> None:
    await nodes.write("a", "1")
    view, old = nodes.facts.view, nodes.primary
    old.kill_store()
    await nodes.until(lambda: nodes.is_open(view + 1))
    assert nodes.primary is not old
    await nodes.write("b", "2")
    assert await nodes.primary.call("MGET", "a", "b") == ["1", "2"]
    await nodes.in_sync(*nodes.nodes)
    assert await old.call("MGET", "a", "b") == ["1", "2"]
