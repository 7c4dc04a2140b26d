"""
Two nodes that were given one name: they are told so, and neither ends the other's leases for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.cluster.registrations import MakeNodes
from support.inspect import clock_of, link_of, say_stale
from support.manual_clock import ManualClock

from tidewarden.cluster import registration as module
from tidewarden.errors import ConfigError, Stale


async def test_two_of_one_name_are_told_so(
    nodes: MakeNodes,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    n0, _ = await nodes()
    other, _ = await nodes()
    await n0.register()
    await other.register()
    task = asyncio.create_task(n0.run())
    await eventually(lambda: n0.boot > other.boot)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "another process has registered as n0 (or an answer to this one was lost)" in caplog.text
    caplog.clear()
    say_stale(n0, Stale(f"{n0.holder} is not registered any more; stored is {n0.boot - 1}"))
    assert "another process" not in caplog.text, (
        "a store that was restored from an older copy knows an older boot"
    )


async def test_two_nodes_of_one_name_do_not_take_it_from_each_other(
    nodes: MakeNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A configuration that was copied to another host, node.name and all: the one that runs goes on,
    the other is told.
    """
    monkeypatch.setattr(module, "DEAD_MS", 10**9)  # nobody is gone for having been slow
    (n0, holders), (copy, _) = await nodes(), await nodes()
    n0.folder, copy.folder, n0.address = "a", "b", "10.0.0.5:7420"
    await n0.register_first()
    coming = asyncio.create_task(copy.register_first())
    clock: ManualClock = clock_of(copy)
    while not coming.done():
        await clock.advance(module.BEAT_S)
        await link_of(copy).call("PING")
    with pytest.raises(
        ConfigError, match=r"found 'n0', and another node of this name lives, at 10\.0\.0\.5:7420"
    ):
        await coming
    await n0.beat()
    assert holders == [n0.holder]
    again, _ = await nodes()
    again.folder = "a"  # the same folder: this host, started again
    await again.register_first()
    older = f"{again.boot} {again.boot - 2 * 10**9}"
    await link_of(n0).call("HSET", "{tw}:nodes", "n0", older)
    await copy.register_first()  # it went: another folder has its name now
    with pytest.raises(ConfigError, match="another node of this name lives"):
        await again.run()  # it was but paused
    await copy.beat()
