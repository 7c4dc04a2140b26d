"""
What a take costs with lanes, in commands of the store: the same with ten lanes as with hundreds,
full or waiting.

Named after the traps that users of tarantool/queue's utube fell into (its issues 63, 98, 105),
whose take walks over what it may not hand out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def commands(desk: Any, act: Callable[[], Any]) -> int:
    """How many commands of the store, those inside scripts too, ``act`` causes."""

    def total() -> int:
        stats = desk.client.info("commandstats")
        return sum(
            row["calls"]
            for name, row in stats.items()
            if name not in ("cmdstat_info", "cmdstat_time")
        )

    before = total()
    act()
    return total() - before


def fill(desk: Any, lanes: int, each: int, **fields: Any) -> None:
    """So many lanes with so many tasks each."""
    tasks = [
        (f"{lane}-{n}", b"", {"lane": f"lane{lane}", **fields})
        for n in range(each)
        for lane in range(lanes)
    ]
    for start in range(0, len(tasks), 500):
        desk.put_all(*tasks[start : start + 500])


def empty(desk: Any) -> None:
    desk.client.flushdb()
    if desk.views:
        desk.set_view(1)


def cycle(desk: Any) -> None:
    row = desk.take_one()
    assert desk.ack(row) == [1]


def test_trap_98_a_take_does_not_walk_over_the_lanes_that_wait(desk: Any) -> None:
    costs = []
    for lanes in (10, 500):
        empty(desk)
        fill(desk, lanes, 3)
        costs.append(commands(desk, lambda: [cycle(desk) for _ in range(8)]))
    assert costs[1] <= costs[0]


def test_trap_98_a_take_does_not_walk_over_the_lanes_that_are_full(desk: Any) -> None:
    costs = []
    for lanes in (10, 500):
        empty(desk)
        fill(desk, lanes, 3)
        while desk.take(1000):
            pass
        assert desk.counts()["leased"] == lanes
        desk.put("new", lane="another")
        costs.append(commands(desk, lambda: (cycle(desk), desk.take(10))))
    assert costs[1] <= costs[0]


def test_trap_98_a_lane_of_thousands_costs_its_neighbours_nothing(desk: Any) -> None:
    costs = []
    for each in (10, 1000):
        empty(desk)
        fill(desk, 1, each)
        fill(desk, 10, 2)
        costs.append(commands(desk, lambda: [cycle(desk) for _ in range(12)]))
    assert costs[1] <= costs[0]


def test_trap_63_expired_tasks_are_buried_in_bounded_pieces(desk: Any) -> None:
    fill(desk, 50, 20, ttl_ms=100)
    desk.now += 100
    pieces = []
    while desk.counts()["buried"] < 1000:
        pieces.append(commands(desk, lambda: desk.take()))
        assert len(pieces) <= 30
    # 200 tasks a piece, some ten commands for each of them; no piece pays for what others leave.
    assert max(pieces) < 200 * 14
    desk.put("new", lane="lane0")
    assert commands(desk, lambda: cycle(desk)) < 60


@pytest.mark.thorough
@pytest.mark.parametrize("share", [50, 90])
def test_trap_105_most_tasks_released_with_a_delay(desk: Any, share: int) -> None:
    """
    A consumer that may not do a task now hands it back for later: their queue collapsed under it.
    """
    costs = []
    for each in (20, 300):
        empty(desk)
        fill(desk, 10, each)

        def round_trip() -> None:
            for n in range(100):
                row = desk.take_one()
                if n % 10 < share // 10:
                    desk.end(row, "release", delay_ms=60_000)
                else:
                    desk.ack(row)

        costs.append(commands(desk, round_trip))
    assert costs[1] <= costs[0]


@pytest.mark.thorough
def test_trap_105_a_rate_per_user_needs_no_releasing_at_all(desk: Any) -> None:
    costs = []
    for lanes in (10, 300):
        empty(desk)
        desk.configure(lane_limit=0, lane_rate=10_000, lane_burst=1)  # ten a second for each user
        fill(desk, lanes, 20)
        while desk.take(1000):
            pass
        costs.append(commands(desk, lambda: desk.take()))
    assert costs[1] <= costs[0]


def test_a_queue_without_lanes_pays_nothing_for_them(desk: Any) -> None:
    def plain() -> None:
        desk.put("a", if_exists="replace")
        cycle(desk)

    empty(desk)
    plain()
    cost = commands(desk, plain)
    desk.put("b", lane="x")
    cycle(desk)
    assert commands(desk, plain) == cost, "nor after the last lane is gone"
    names = {key.rpartition(b":")[2] for key in desk.client.keys("*")}
    assert names <= {b"shard", b"counts", b"view", b"a", b"b"}
