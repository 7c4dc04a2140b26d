"""What the console's overview tells of a node's warnings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.doors.doubles import Door
from support.doors.http_site import FixedNode
from support.manual_clock import ManualClock

from tidewarden.config.rights import ALL, Rights
from tidewarden.errors import NotFound
from tidewarden.node.status import Status
from tidewarden.server.console.history import STEP_S
from tidewarden.server.console.overview import ACTION, ACTIONS, AGE_S, OverviewPage
from tidewarden.server.console.recorder import NAMES_MAX, NAMES_S, TOKENS_S, FigureRecorder


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
    monkeypatch.setattr(FixedNode, "warnings", lambda _: {"durability": "x", "duties": "y"})
    found = [one.action for one in (await page.of(ALL)).problems]
    assert found == ["A replica is away or slow: tidewarden cluster status.", ACTION]


async def test_providers_that_are_gone_leave_their_place_to_others() -> None:
    door, clock = Door(), ManualClock()
    there = [f"former{number}" for number in range(NAMES_MAX)]

    async def latest_stats(_: float) -> tuple[dict[str, dict[str, Any]], float]:
        return {name: {"dead": 1} for name in there}, 0.0

    async def no_names() -> list[str]:
        return []

    tokens: Any = SimpleNamespace(
        deliveries={}, unreadable=0, providers=lambda: (), latest_stats=latest_stats
    )
    queues: Any = SimpleNamespace(admin=SimpleNamespace(names=no_names))
    recorder = FigureRecorder("n0", clock, FixedNode(), door.server.stats, queues, tokens)
    for names in (list(there), ["shop"]):
        there[:] = names
        await recorder.turn()
        await clock.advance(TOKENS_S)
    assert set(recorder.accounts) == {"shop"}


async def test_buried_tasks_of_queues_beyond_those_that_are_kept_are_no_health() -> None:
    """They are counted in turn, named by an alert, and told of whom may see their queue."""
    door, clock, node = Door(), ManualClock(), FixedNode()
    buried = {f"q{number:03}": 700 * (number == 170) for number in range(180)}
    buried["_tokens:x"] = 0

    async def stats(name: str, *, marks: bool) -> dict[str, Any]:
        if name not in buried:
            raise NotFound(name)
        row = dict.fromkeys(("ready", "delayed", "leased", "waiting"), 0)
        return {**row, "buried": buried[name], "oldest_ready_deadline_ms": -1}

    async def names() -> list[str]:
        return list(buried)

    queues: Any = SimpleNamespace(admin=SimpleNamespace(names=names, stats=stats))
    recorder = FigureRecorder("n0", clock, node, door.server.stats, queues, None)
    page = OverviewPage("t", node, recorder, clock)
    await recorder.turn()
    first = await page.of(ALL)
    assert first.queues.counted < first.queues.buried_of < first.queues.queues == 180
    for _ in range(4):
        await clock.advance(STEP_S)
        await recorder.turn()
    found = await page.of(ALL)
    assert (found.queues.buried, found.queues.buried_of, found.healthy) == (700, 180, False)
    (alert,) = found.alerts
    assert (alert.queue, alert.summary) == ("q170", "700 tasks of q170 are buried.")
    narrow = await page.of(Rights(("stats:q00*",)))
    assert (narrow.queues.buried, narrow.queues.buried_of, narrow.healthy) == (0, 10, True)
    del buried["q170"]
    await clock.advance(NAMES_S)
    await recorder.turn()
    found = await page.of(ALL)
    assert (found.queues.buried, found.queues.buried_of, found.healthy) == (0, 179, True)


def test_what_to_do_about_warnings_is_known_by_their_names() -> None:
    room = SimpleNamespace(warning=lambda: "wrong")
    catalog = SimpleNamespace(store_memory=room, durability=room)
    node: Any = SimpleNamespace(
        _alone=lambda: "wrong", store=room, stores=None, data=room, tasks=room, store_clock=room,
        duties=room, _tokens=room, queues=SimpleNamespace(catalog=catalog), clock=ManualClock(),
        certificate_expires_s=1.0,
    )  # fmt: skip
    of_stores = {"loss", "stores in sync"}  # unit/cluster/test_store_status
    assert ACTIONS.keys() - of_stores < Status.warnings(node).keys()
