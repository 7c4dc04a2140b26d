"""A whole node, in this process: what must go on while it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from store_servers import StoreServer

from benchmarks.ports import free_ports
from tidewarden import daemon as module
from tidewarden.clock import SystemClock
from tidewarden.config import load
from tidewarden.daemon import Daemon
from tidewarden.process import raise_file_limit

pytestmark = pytest.mark.live


async def test_a_worker_lives_until_its_doors_are_closed(
    valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears it by Raft: silent for two seconds while it drains, it would be dead, and what its consumers hold another's."""
    monkeypatch.setattr(module, "calm_collector", lambda: None)
    flags = {
        "node.role": "worker", "node.base_port": str(free_ports(4)), "node.data_dir": str(tmp_path), "store.url": valkey.url,
    }  # fmt: skip
    config = load(None, {}, flags)
    worker: Any = Daemon(config, SystemClock(), raise_file_limit(config.limits))
    drained = asyncio.Event()
    close = worker._close_doors

    async def close_doors(resp: Any) -> None:
        before = worker.nodes.beat_at
        async with asyncio.timeout(60):
            while worker.nodes.beat_at == before:
                await asyncio.sleep(0.02)
        drained.set()
        await close(resp)

    worker._close_doors = close_doors
    run = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while not run.done() and worker.resp is None:
            await asyncio.sleep(0.02)
        worker.stopping.set()
        await run
    assert drained.is_set()
