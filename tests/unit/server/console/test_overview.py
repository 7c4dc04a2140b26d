"""What the console's overview tells of a node's warnings."""

from __future__ import annotations

import pytest
from support.doors.doubles import Door
from support.doors.http_site import FixedNode

from tidewarden.clock import ManualClock
from tidewarden.config.rights import ALL
from tidewarden.server.console.overview import AGE_S, OverviewPage
from tidewarden.server.console.recorder import FigureRecorder


async def test_each_warning_is_one_problem_that_lasts_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door, clock, node = Door(), ManualClock(), FixedNode()
    recorder = FigureRecorder("n0", clock, node, door.server.stats, door.queues, None)
    page, began_ms = OverviewPage("t", node, recorder, clock), clock.unix_ms()

    async def problems(**warnings: str) -> list[tuple[str, int]]:
        monkeypatch.setattr(FixedNode, "warnings", lambda _: warnings)
        found = [(one.what, one.since_ms) for one in (await page.of(ALL)).problems]
        await clock.advance(AGE_S)
        return found

    assert await problems(
        durability="writes wait (not confirmed by n1; for 1.9 s)", certificate="it ends soon"
    ) == [("Writes wait (not confirmed by n1; for 1.9 s).", began_ms), ("It ends soon.", began_ms)]
    assert await problems(durability="no write is confirmed") == [
        ("No write is confirmed.", began_ms)
    ]
    assert await problems() == []
    assert await problems(durability="writes wait") == [("Writes wait.", began_ms + 3000)]
