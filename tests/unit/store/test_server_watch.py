"""When a server that ended is started again."""

from __future__ import annotations

import asyncio

import pytest
from support.manual_clock import ManualClock

from tidewarden.store.embedded.server_watch import ServerWatch


@pytest.mark.parametrize(
    ("ran_s", "pauses"),
    [(20.0, ["0.1", "0.1", "0.1"]), (1.0, ["0.1", "0.2", "0.4"])],
    ids=["one that ran for a while", "one that ends at once"],
)
async def test_only_what_ends_soon_is_started_later_each_time(
    ran_s: float, pauses: list[str]
) -> None:
    clock, told = ManualClock(), list[str]()
    over = asyncio.Event()

    async def ended() -> str:
        await over.wait()
        over.clear()
        return "killed"

    async def launch() -> str:
        return "runs again"

    watch = ServerWatch(clock, 0.1, told.append)
    running = asyncio.create_task(watch.run(ended, launch))
    for restarts in range(1, 4):
        await clock.advance(ran_s)
        over.set()
        while watch.restarts < restarts:
            await asyncio.sleep(0)
            await clock.advance(0.05)
    running.cancel()
    assert [text.split()[-2] for text in told if text.startswith("killed")] == pauses
