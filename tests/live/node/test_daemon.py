"""A whole node, in this process: what must go on while it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.store.servers import StoreServer

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.node import daemon as module
from tidewarden.node.daemon import Daemon
from tidewarden.os_process import raise_file_limit


def node(store: StoreServer, folder: Path, role: str = "member") -> Any:
    """One that is not started yet."""
    flags = {
        "node.role": role, "node.base_port": str(free_ports(4)), "node.data_dir": str(folder), "store.url": store.url,
    }  # fmt: skip
    config = load(None, {}, flags)
    return Daemon(config, SystemClock(), raise_file_limit(config.limits))


async def until(condition: Callable[[], object], run: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            assert not run.done()
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    # of this process, which is more than a node
    monkeypatch.setattr(module, "calm_collector", lambda: None)


async def test_a_worker_lives_until_its_doors_are_closed(
    valkey: StoreServer, tmp_path: Path
) -> None:
    """
    Nobody hears it by Raft: silent for two seconds while it drains, it would be dead, and what its
    consumers hold another's.
    """
    worker = node(valkey, tmp_path, "worker")
    drained = asyncio.Event()
    close = worker._close_doors

    async def close_doors(resp: Any) -> None:
        before = worker.nodes.beat_at
        await until(lambda: worker.nodes.beat_at > before, run)
        drained.set()
        await close(resp)

    worker._close_doors = close_doors
    run = asyncio.create_task(worker.run())
    await until(lambda: worker.resp is not None, run)
    worker.stopping.set()
    await run
    assert drained.is_set()
