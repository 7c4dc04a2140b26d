"""A whole node, in this process: what must go on while it ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
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
from tidewarden.node.doors import Doors
from tidewarden.node.os_process import raise_file_limit


def node(store: StoreServer, folder: Path, role: str = "member") -> Any:
    """One that is not started yet."""
    flags = {
        "node.role": role, "node.base_port": str(free_ports(4)), "node.data_dir": str(folder), "store.url": store.url,
    }  # fmt: skip
    config = load(None, {}, flags)
    return Daemon(config, SystemClock(), raise_file_limit(config.limits))


FAILING = """
from tidewarden import cli, duties
from tidewarden.server.traffic.node_traffic import NodeTraffic

async def run(_):
    raise RuntimeError("the figures cannot be counted")

duties.PAUSE_S_FIRST = duties.PAUSE_S_MAX = 0.01
NodeTraffic.run = run
cli.main()
"""


def test_a_node_whose_duty_fails_again_and_again_ends_with_an_error(
    valkey: StoreServer, tmp_path: Path
) -> None:
    settings = {
        "node.base_port": str(free_ports(4)), "node.data_dir": str(tmp_path), "store.url": valkey.url,
        "log.format": "json",
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    argv = [sys.executable, "-c", FAILING, "node", *flags]
    done = subprocess.run(argv, check=False, timeout=100, capture_output=True, text=True)
    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    told = [one["message"] for one in records if one["level"] == "critical"]
    assert told == [
        "traffic failed for the 11. time in a row: the process ends",
        "uncaught RuntimeError",
    ]
    assert records[-2]["message"] == "ended", "in order"
    assert done.returncode == 1
    made = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert "raft.journal" in made
    assert not any(made.values()), "other users of the host can read none of its files"


async def until(condition: Callable[[], object], run: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            assert not run.done()
            await asyncio.sleep(0.02)


async def test_a_worker_lives_until_its_doors_are_closed(
    valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nobody hears it by Raft: silent for two seconds while it drains, it would be dead, and what its
    consumers hold another's.
    """
    worker = node(valkey, tmp_path, "worker")
    opened, drained = asyncio.Event(), asyncio.Event()
    close = Doors.close

    async def close_doors(doors: Doors, refreshing: set[asyncio.Task[None]]) -> None:
        nodes = doors.status.nodes
        before = nodes.beat_at
        await until(lambda: nodes.beat_at > before, run)
        drained.set()
        await close(doors, refreshing)

    monkeypatch.setattr(Doors, "close", close_doors)
    monkeypatch.setattr(module, "calm_collector", opened.set)
    run = asyncio.create_task(worker.run())
    await until(opened.is_set, run)
    worker.stopping.set()
    await run
    assert drained.is_set()
