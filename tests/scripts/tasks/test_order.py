"""
In which order tasks leave a shard: priority, bands with their shares, earliest deadline, equals.
"""

from __future__ import annotations

from typing import Any

import pytest

URGENT_MS = 60_000
ONE = pytest.mark.parametrize("desk", ["embedded"], indirect=True)
"""Of thousands of tasks: on one store alone, for the order is made by the same scripts on each."""


def test_a_plain_queue_is_first_due_first_out(desk: Any) -> None:
    for name in ("c", "a", "b"):
        desk.put(name)
        desk.now += 1
    assert desk.ids() == ["c", "a", "b"]


def test_equals_leave_in_the_order_of_their_ids(desk: Any) -> None:
    desk.put_all(*((name, b"", {}) for name in ("b", "c", "a")))
    assert desk.ids() == ["a", "b", "c"]


def test_priority_is_strict_and_lower_goes_first(desk: Any) -> None:
    for number, priority in enumerate((50, 99, 0, 7, 10, 9)):
        desk.put(f"p{priority}", priority=priority, deadline_ms=desk.now + 1000 * number)
    assert desk.ids() == ["p0", "p7", "p9", "p10", "p50", "p99"]


def test_priority_beats_an_urgent_deadline(desk: Any) -> None:
    desk.put("urgent", priority=51, within_ms=10)
    desk.put("idle", priority=50, within_ms=10_000_000)
    assert desk.ids() == ["idle", "urgent"]


def test_urgent_before_late_before_early(desk: Any) -> None:
    desk.configure(late_share=0, early_share=0)
    now = desk.now
    for name, deadline in (
        ("early2", now + URGENT_MS + 2),
        ("early1", now + URGENT_MS + 1),
        ("late2", now - 5),
        ("late1", now - 10),
        ("late3", now),
        ("urgent2", now + URGENT_MS),
        ("urgent1", now + 1),
    ):
        desk.put(name, deadline_ms=deadline)
    assert desk.ids() == ["urgent1", "urgent2", "late1", "late2", "late3", "early1", "early2"]


def test_no_score_is_rewritten_as_time_passes(desk: Any) -> None:
    desk.configure(late_share=0, early_share=0)
    desk.put("a", within_ms=1000)
    desk.put("b", within_ms=URGENT_MS + 500)
    desk.now += 999
    assert desk.run("queue.peek", "ready", 10, "")[0][0][0] == b"a"
    desk.now += 1  # a is late now, b has become urgent
    assert desk.ids() == ["b", "a"]


def test_every_eighth_comes_from_late_and_every_sixteenth_from_early(desk: Any) -> None:
    for n in range(40):
        desk.put(f"u{n:02}", deadline_ms=desk.now + 1000 + n)
        desk.put(f"l{n:02}", deadline_ms=desk.now - 1000 + n)
        desk.put(f"e{n:02}", deadline_ms=desk.now + URGENT_MS + 1000 + n)
    kinds = "".join(name[0] for name in desk.ids(32))
    assert kinds == "uuuuuuuluuuuuueluuuuuuuluuuuuuel"


@pytest.mark.parametrize("batch", [1, 3, 16, 32])
def test_the_shares_do_not_depend_on_how_many_are_taken_at_once(desk: Any, batch: int) -> None:
    for n in range(40):
        desk.put(f"u{n:02}", deadline_ms=desk.now + 1000 + n)
        desk.put(f"l{n:02}", deadline_ms=desk.now - 1000 + n)
        desk.put(f"e{n:02}", deadline_ms=desk.now + URGENT_MS + 1000 + n)
    taken: list[str] = []
    while len(taken) < 32:
        taken += desk.ids(min(batch, 32 - len(taken)))
    assert "".join(name[0] for name in taken) == "uuuuuuuluuuuuueluuuuuuuluuuuuuel"
    assert [name for name in taken if name[0] == "u"] == [f"u{n:02}" for n in range(26)]


@pytest.mark.parametrize(
    ("late", "early", "kinds"),
    [(2, 0, "ulululul"), (0, 2, "eueueueu"), (0, 0, "uuuuuuuu"), (1, 0, "llllllll")],
)
def test_the_shares_are_settings(desk: Any, late: int, early: int, kinds: str) -> None:
    desk.configure(late_share=late, early_share=early)
    for n in range(10):
        desk.put(f"u{n}", deadline_ms=desk.now + 1000 + n)
        desk.put(f"l{n}", deadline_ms=desk.now - 1000 + n)
        desk.put(f"e{n}", deadline_ms=desk.now + URGENT_MS + 1000 + n)
    assert "".join(name[0] for name in desk.ids(8)) == kinds


def test_a_share_with_nothing_in_its_band_gives_way(desk: Any) -> None:
    for n in range(20):
        desk.put(f"u{n:02}", within_ms=1000 + n)
    assert desk.ids() == [f"u{n:02}" for n in range(20)]


def test_earliest_deadline_alone(desk: Any) -> None:
    desk.configure(order="edf")
    now = desk.now
    for name, deadline in (
        ("late", now - 1),
        ("soon", now + 1),
        ("later", now + 10**9),
        ("dead", now - 10**6),
    ):
        desk.put(name, deadline_ms=deadline)
    assert desk.ids() == ["dead", "late", "soon", "later"]


def test_the_order_changes_only_while_the_shard_is_empty(desk: Any) -> None:
    desk.put("a")
    assert desk.configure(order="edf") == b"NOTEMPTY"
    assert desk.configure(order="bands", urgent_ms=5) == 1
    row = desk.take_one()
    assert desk.configure(order="edf") == b"NOTEMPTY"
    desk.ack(row)
    assert desk.configure(order="edf") == 1


@pytest.mark.parametrize("desk", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    ("order", "expired_least", "expired_most"), [("bands", 6, 7), ("edf", 20, 60)]
)
def test_after_an_outage_bands_save_those_that_can_be_saved(
    desk: Any, order: str, expired_least: int, expired_most: int
) -> None:
    """
    Sixty tokens of a minute each, refreshed at 1.25 times the load, after ten seconds without; six
    die in the outage.
    """
    desk.configure(order=order, urgent_ms=5_000, dedup_ms=0)
    life_ms, margin_ms = 60_000, 5_000
    start = desk.now
    desk.put_all(
        *(
            (
                f"t{n:02}",
                b"",
                {"at_ms": start + 1000 * n, "deadline_ms": start + 1000 * n + margin_ms},
            )
            for n in range(60)
        )
    )
    expired = set()
    desk.now = start + 10_000
    while desk.now < start + 3 * life_ms:
        for row in desk.take(1):
            if row.deadline_ms <= desk.now:
                expired.add(row.id)
            desk.ack(row)
            desk.put(row.id, at_ms=desk.now + life_ms - margin_ms, deadline_ms=desk.now + life_ms)
        desk.now += 800
    assert expired_least <= len(expired) <= expired_most


def test_a_retry_keeps_its_deadline_and_so_its_place(desk: Any) -> None:
    desk.put("a", within_ms=5000)
    desk.put("b", within_ms=6000)
    row = desk.take_one()
    assert row.id == "a"
    desk.end(row, "release")
    assert desk.ids() == ["a", "b"]


def test_due_tasks_enter_in_the_order_of_their_deadlines(desk: Any) -> None:
    desk.put("late", delay_ms=1000, within_ms=9000)
    desk.put("soon", delay_ms=2000, within_ms=3000)
    desk.now += 2000
    assert desk.ids() == ["soon", "late"]


def put_many(desk: Any, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """
    Ids and fields, some hundred in each script: one by one they would be most of what these tests
    cost.
    """
    for begin in range(0, len(rows), 500):
        desk.put_all(*((name, b"", fields) for name, fields in rows[begin : begin + 500]))


class Recovering:
    """A shard with a backlog of late tasks, taken from one task every 100 ms."""

    def __init__(self, desk: Any, urgent_max_ms: int) -> None:
        self.desk = desk
        desk.configure(urgent_ms=1000, urgent_max_ms=urgent_max_ms, late_share=0, early_share=0)
        put_many(
            desk, [(f"late{n:04}", {"deadline_ms": desk.now - 1_000_000 + n}) for n in range(1000)]
        )
        self.taken(200)  # the pace is known from then on

    def taken(self, count: int) -> list[str]:
        kinds = []
        for _ in range(count):
            self.desk.now += 100
            kinds += ["late" if name.startswith("late") else "living" for name in self.desk.ids(1)]
        return kinds

    def living(self, count: int, within_ms: int, *, delay_ms: int = 0) -> None:
        at = self.desk.now + delay_ms
        rows = [
            (f"living{at}x{n:04}", {"at_ms": at, "deadline_ms": at + within_ms - n})
            for n in range(count)
        ]
        put_many(self.desk, rows)


def test_the_living_wait_while_there_is_time_for_them(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    shard.living(100, 100_000)  # a hundred need ten seconds
    assert shard.taken(100) == ["late"] * 100


@pytest.mark.thorough
def test_more_living_than_there_is_time_for_go_first(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    shard.living(400, 30_000)  # four hundred need forty
    kinds = shard.taken(400)
    assert set(kinds[:100]) == {"living"}
    assert kinds.count("late") <= 400 - 290, "no more than there was no time left for are lost"


@pytest.mark.thorough
def test_those_who_are_here_are_done_when_a_crowd_comes_and_not_sooner(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    shard.living(50, 30_000)
    shard.living(500, 30_000, delay_ms=10_000)  # there is not time enough for all of these
    kinds = shard.taken(99)
    assert set(kinds[:35]) == {"late"}, "the fifty take five seconds of the ten"
    assert kinds.count("living") >= 48
    shard.taken(10)
    assert set(shard.taken(250)) == {"living"}


@pytest.mark.thorough
def test_a_crowd_behind_a_pause_is_nothing_to_hurry_for(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    shard.living(50, 60_000)
    shard.living(900, 60_000, delay_ms=40_000)  # too many; but the fifty are long done by then
    assert set(shard.taken(300)) == {"late"}


@pytest.mark.thorough
@ONE
def test_nobody_waits_for_a_crowd_that_is_far_ahead(desk: Any) -> None:
    """
    Tokens have five minutes from due to deadline: a crowd further ahead than nine is nobody's
    business yet.
    """
    shard = Recovering(desk, 3_600_000)
    desk.now += 10_000
    # They need 650 s, and have from now on 600.
    put_many(
        desk, [(f"living{n:04}", {"deadline_ms": desk.now + 600_000 + n % 7}) for n in range(6500)]
    )
    desk.put("usual", delay_ms=590_000, within_ms=890_000)
    assert set(shard.taken(20)) == {"late"}
    desk.now += 120_000
    shard.taken(1)
    assert set(shard.taken(20)) == {"living"}


def test_what_was_found_holds_for_a_second(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    shard.living(1, 100_000)
    assert shard.taken(1) == ["late"]
    shard.living(400, 30_000)
    kinds = shard.taken(11)
    assert kinds[:9] == ["late"] * 9
    assert kinds[10] == "living"


@pytest.mark.thorough
@ONE
def test_thousands_to_come_are_counted_by_their_pieces(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    at = desk.now + 10_000
    put_many(
        desk,
        [
            (f"living{n:05}", {"at_ms": at + n, "deadline_ms": at + n + 30_000})
            for n in range(16_000)
        ],
    )
    shard.living(120, 60_000)
    assert set(shard.taken(90)) == {"living"}


def test_a_window_that_may_not_widen_does_not(desk: Any) -> None:
    shard = Recovering(desk, 0)
    shard.living(400, 30_000)
    assert shard.taken(100) == ["late"] * 100


def test_a_step_back_of_the_clock_leaves_the_pace_as_it_was(desk: Any) -> None:
    desk.configure(urgent_ms=1000, urgent_max_ms=3_600_000)
    for _ in range(3):
        desk.put_all(
            *(
                (f"t{desk.now}-{n}", b"", {"deadline_ms": desk.now - 1000 + n * 100})
                for n in range(80)
            )
        )
        desk.ids(80)
        desk.now += 11_000
    pace = desk.record("pace")
    assert float(pace) > 0
    desk.now -= 3_600_000
    desk.put_all(
        ("late", b"", {"deadline_ms": desk.now - 1}),
        ("living", b"", {"deadline_ms": desk.now + 5000}),
    )
    desk.ids(1)
    assert (desk.record("pace"), int(desk.record("pace_at"))) == (pace, desk.now)


def test_after_a_rest_the_pace_is_unknown_and_the_living_go_first(desk: Any) -> None:
    shard = Recovering(desk, 3_600_000)
    desk.now += 3_600_000
    shard.living(10, 100_000)
    assert set(shard.taken(10)) == {"living"}


def test_a_window_widens_from_nothing_too(desk: Any) -> None:
    desk.configure(urgent_ms=0, urgent_max_ms=3_600_000, late_share=0, early_share=0)
    desk.put("late", deadline_ms=desk.now - 1)
    desk.put("living", deadline_ms=desk.now + 10_000)
    desk.now += 1
    assert desk.ids(1) == ["living"], "the pace is not known yet"
    assert desk.ids(1) == ["late"]
