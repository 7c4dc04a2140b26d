"""What schedules will put: in order, bounded, busy ones as rates, by the clocks of their zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tidewarden.scheduler import outlook as module
from tidewarden.scheduler.outlook import next_ticks, outlook
from tidewarden.scheduler.rows import described
from tidewarden.scheduler.trigger import DAY_MS, Spec, first_tick, ticks_to_come

HOUR_MS = 3_600_000
NOW_MS = 1_795_219_200_000  # 2026-11-21 00:00 UTC


def row(name: str, spec: Spec, now_ms: int = NOW_MS, **other: Any) -> dict[str, Any]:
    """A schedule as S.LIST shows it."""
    spec = spec.anchored(now_ms)
    anchor = {"anchor_ms": spec.anchor_ms} if spec.kind == "every" else {}
    known = {"name": name, "queue": "q", "next_ms": first_tick(spec, now_ms), "state": "active"}
    return known | described(spec) | anchor | other


async def test_all_ticks_are_told_in_their_order() -> None:
    rows = [
        row("every", Spec.every(10 * HOUR_MS)),
        row("cron", Spec.cron("0 5,15 * * *")),
        row("once", Spec.at(NOW_MS + 7 * HOUR_MS)),
        row("later", Spec.at(NOW_MS + DAY_MS + 1)),
    ]
    found = await outlook(rows, NOW_MS, NOW_MS + DAY_MS)
    hours = [((one["at_ms"] - NOW_MS) / HOUR_MS, one["name"]) for one in found["ticks"]]
    assert hours == [(5, "cron"), (7, "once"), (10, "every"), (15, "cron"), (20, "every")]
    assert (found["rates"], found["resting"], found["more"]) == ([], 0, False)
    assert (found["from_ms"], found["until_ms"]) == (NOW_MS, NOW_MS + DAY_MS)


@pytest.mark.parametrize(
    ("spec", "per_day"),
    [
        (Spec.every(1_000), 86_400),
        (Spec.every(1_700_000), 50),
        (Spec.cron("* * * * *"), 1_440),
        (Spec.cron("*/5 9-17 * * *"), 108),
        (Spec.every(1_800_000), 0),
        (Spec.cron("*/30 * * * *"), 0),
        (Spec.cron("*/5 3 * * *"), 0),
    ],
)
async def test_a_busy_schedule_is_a_rate_and_no_rows(spec: Spec, per_day: int) -> None:
    found = await outlook([row("s", spec)], NOW_MS, NOW_MS + DAY_MS)
    rates = [(one["per_day"], one["next_ms"]) for one in found["rates"]]
    assert rates == ([(per_day, first_tick(spec.anchored(NOW_MS), NOW_MS))] if per_day else [])
    assert bool(found["ticks"]) is not bool(rates)
    assert len(found["ticks"]) <= 48


async def test_what_is_told_is_bounded_and_whole_up_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TICKS_MAX", 10)
    rows = [row(f"s{number}", Spec.every(HOUR_MS + number)) for number in range(7)]
    found = await outlook(rows, NOW_MS, NOW_MS + DAY_MS)
    assert (len(found["ticks"]), found["more"]) == (10, True)
    assert found["until_ms"] == NOW_MS + 2 * (HOUR_MS + 3) - 1
    assert all(one["at_ms"] <= found["until_ms"] for one in found["ticks"])
    monkeypatch.setattr(module, "RATES_MAX", 3)
    busy = [row(f"b{number}", Spec.every(1_000 + number)) for number in range(7)]
    found = await outlook(busy, NOW_MS, NOW_MS + DAY_MS)
    assert ([one["name"] for one in found["rates"]], found["more"]) == (["b0", "b1", "b2"], True)


async def test_those_that_rest_are_counted() -> None:
    spec = Spec.every(HOUR_MS)
    rows = [row(state, spec, state=state) for state in ("paused", "stuck", "active")]
    rows.append({"name": "odd", "queue": "q", "next_ms": NOW_MS, "state": "unreadable"})
    rows.append(row("far", Spec.cron("0 3 * * *"), zone="Mars/Phobos"))
    rows.append(row("newer", Spec.cron("0 3 * * *"), kind="moon"))
    found = await outlook(rows, NOW_MS, NOW_MS + HOUR_MS * 4)
    assert ({one["name"] for one in found["ticks"]}, found["resting"]) == ({"active"}, 5)
    for one in rows:
        assert bool(await next_ticks(one, NOW_MS, 5)) is (one["name"] == "active"), one["name"]


async def test_the_clocks_of_a_zone_change_within_the_day() -> None:
    """Berlin repeats 02:00 to 03:00 on 25 October 2026, and leaps over it on 29 March."""
    zone = ZoneInfo("Europe/Berlin")

    async def shown(expr: str, day: datetime, count: int) -> list[str]:
        now_ms = round(day.timestamp() * 1000)
        ticks = await next_ticks(row("s", Spec.cron(expr, zone.key), now_ms), now_ms, count)
        return [datetime.fromtimestamp(at / 1000, zone).strftime("%d %H:%M%z") for at in ticks]

    autumn, spring = datetime(2026, 10, 25, tzinfo=zone), datetime(2026, 3, 29, tzinfo=zone)
    assert await shown("30 2 * * *", autumn, 2) == ["25 02:30+0200", "26 02:30+0100"]
    assert await shown("30 2 * * *", spring, 2) == ["29 03:30+0200", "30 02:30+0200"]
    hourly = await shown("30 * * * *", autumn, 4)
    assert hourly[1:] == ["25 01:30+0200", "25 02:30+0200", "25 02:30+0100"]


@pytest.mark.parametrize(
    ("catchup", "late_ms", "first"), [("one", 60_000, -1), ("none", 60_000, 0), ("none", 5_000, -1)]
)
def test_a_missed_tick_comes_as_catchup_says(catchup: str, late_ms: int, first: int) -> None:
    spec = Spec.every(HOUR_MS, catchup).anchored(NOW_MS - late_ms)
    coming = ticks_to_come(spec, NOW_MS - late_ms, NOW_MS)
    expected = [NOW_MS - late_ms + number * HOUR_MS for number in (0, 1, 2)]
    found = [next(coming) for _ in range(2)]
    assert found == (expected[:2] if first < 0 else expected[1:])


async def test_the_bound_of_a_schedule_that_ends() -> None:
    once = row("once", Spec.at(NOW_MS + 5))
    assert await next_ticks(once, NOW_MS, 100) == [NOW_MS + 5]
    assert len(await next_ticks(row("cron", Spec.cron("* * * * *")), NOW_MS, 100)) == 100
