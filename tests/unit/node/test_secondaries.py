"""A further process that cannot be started is tried again, for as long as the node runs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.inspect import LAUNCH, WATCH, keep_process
from support.manual_clock import ManualClock

from tidewarden.config.load import load
from tidewarden.node.secondaries import AGAIN_LAST_S, Secondaries
from tidewarden.server.traffic.node_traffic import NodeTraffic
from tidewarden.server.traffic.recorder import Recorder


async def test_what_keeps_a_process_from_starting_may_pass(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server: Any = SimpleNamespace(port=1)
    registered: list[str] = []

    async def register(name: str) -> None:
        registered.append(name)

    clock = ManualClock()
    traffic = NodeTraffic(Recorder(clock), clock)
    fronts = Secondaries(load(None, {}, {}), clock, register, traffic=traffic)
    tries = 0

    async def launch(_orders: object, _door: object) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(11, "Resource temporarily unavailable")
        return SimpleNamespace(
            process=SimpleNamespace(pid=1, returncode=0), stats={}, close=lambda: None
        )

    watched = asyncio.Event()

    async def watch(_front: object) -> None:
        watched.set()

    monkeypatch.setattr(fronts, LAUNCH, launch)
    monkeypatch.setattr(fronts, WATCH, watch)
    orders: Any = SimpleNamespace(number=1)
    keeper = asyncio.create_task(keep_process(fronts, orders, server))
    while not watched.is_set():
        await asyncio.sleep(0)
        await clock.advance(AGAIN_LAST_S)
    assert tries == 3
    assert caplog.text.count("cannot be started: [Errno 11]") == 2
    while not registered:
        await asyncio.sleep(0)
    assert registered[0].endswith("/1")
    keeper.cancel()
