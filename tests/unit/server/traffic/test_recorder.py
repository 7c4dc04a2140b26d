"""What was noted comes out of the tables, by each side, in bounded memory."""

from __future__ import annotations

from support.inspect import pending_of
from support.manual_clock import ManualClock

from tidewarden.server.traffic.recorder import NAME_MAX, NO_NAME, PENDING_MAX, Recorder
from tidewarden.server.traffic.space_saving import COUNTERS
from tidewarden.server.traffic.tables import (
    FIELDS,
    MEASURES,
    By,
    Tables,
    parts_of,
    table_of,
)

BOUND = 2 * len(MEASURES) * COUNTERS


def seen(tables: Tables, by: By) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {key: tuple(sums) for key, sums, _ in tables.by[by].entries()}


def test_requests_are_added_up_by_each_side() -> None:
    recorder = Recorder(ManualClock())
    for _ in range(3):
        recorder.note("app", "Q.PUT", b"mails", "10.0.0.1", 100, 20, "", 0.001)
    recorder.note("app", "Q.TAKE", b"mails", "10.0.0.2", 30, 200, "DENIED", 0.000_5)
    recorder.note(None, "PING", b"", "10.0.0.1", 14, 7, "", 0.000_01)
    tables = recorder.harvest()
    assert seen(tables, "request") == {
        ("app", "Q.PUT", "queue", "mails"): (3, 300, 60, 0, 3000),
        ("app", "Q.TAKE", "queue", "mails"): (1, 30, 200, 1, 500),
        ("", "PING", "", ""): (1, 14, 7, 0, 10),
    }
    assert seen(tables, "user") == {("app",): (4, 330, 260, 1, 3500), ("",): (1, 14, 7, 0, 10)}
    assert seen(tables, "verb")[("Q.PUT",)] == (3, 300, 60, 0, 3000)
    assert seen(tables, "queue") == {("queue", "mails"): (4, 330, 260, 1, 3500)}
    assert seen(tables, "peer")[("10.0.0.1",)] == (4, 314, 67, 0, 3010)
    assert recorder.harvest().empty()


def test_accounts_are_counted_under_their_provider() -> None:
    recorder = Recorder(ManualClock())
    for account in (b"shop/anna", b"shop/bob", b"shop"):
        recorder.note("app", "T.GET", account, "10.0.0.1", 30, 900, "", 0.0)
    recorder.note("app", "Q.PUT", b"shop/anna", "10.0.0.1", 30, 5, "", 0.0)
    assert seen(recorder.harvest(), "queue").keys() == {
        ("provider", "shop"),
        ("provider", NO_NAME),  # "shop" alone is no account, and may be a token
        ("queue", "shop/anna"),
    }


def test_a_stranger_with_many_long_names_grows_nothing() -> None:
    recorder = Recorder(ManualClock())
    for number in range(3 * BOUND):
        name = b"%d" % number + b"x" * 5000
        recorder.note("app", "Q.PUT", name, f"10.0.0.{number}", 1, 1, "BADARG", 0.001)
        assert len(pending_of(recorder)) <= PENDING_MAX
    tables = recorder.harvest()
    for by in FIELDS:
        assert len(tables.by[by]) <= BOUND
        assert tables.by[by].totals[0] == 3 * BOUND
        for key, _, _ in tables.by[by].entries():
            assert all(len(part) <= 4 * NAME_MAX + 20 for part in key)


def test_what_stands_where_a_name_should_and_is_none_is_not_shown() -> None:
    recorder = Recorder(ManualClock())
    for verb, name in (
        ("T.PUT", b'{"refresh_token": "1//0secret", "access_token": "ya29.secret"}'),
        ("T.GET", b"ya29_" + b"secret" * 10),
        ("T.GET", b"ya29.secret/x"),
        ("Q.PUT", b'{"card": "secret"}'),
        ("Q.PUT", b"two secrets"),
        ("L.ACQUIRE", b"\xffsecret\x00"),
    ):
        recorder.note("app", verb, name, "10.0.0.1", 30, 900, "BADARG", 0.0)
    tables = recorder.harvest()
    assert {key[-1] for key in seen(tables, "queue")} == {NO_NAME}
    assert {key[-1] for key in seen(tables, "request")} == {NO_NAME}


def test_a_table_comes_whole_through_its_parts() -> None:
    recorder = Recorder(ManualClock())
    for number in range(3 * BOUND):
        recorder.note("app", "Q.PUT", b"%d" % (number % 1500), "here", number, 1, "", 0.001)
    table = recorder.harvest().by["queue"]
    parts = list(parts_of("queue", table, 7))
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    found = table_of(parts)
    assert (found.totals, found.floors) == (table.totals, table.floors)
    assert sorted(map(str, found.entries())) == sorted(map(str, table.entries()))


def test_an_empty_table_is_one_part() -> None:
    (part,) = parts_of("peer", Tables().by["peer"])
    assert not part.rows
    assert not part.more


def test_the_verbs_of_many_queues_wait_for_the_tables_together() -> None:
    recorder = Recorder(ManualClock())
    for _ in range(3):
        for number in range(500):
            for verb in ("Q.PUT", "Q.TAKE", "Q.ACK"):
                recorder.note("app", verb, b"queue%d" % number, "10.0.0.1", 30, 5, "", 0.0)
    assert len(pending_of(recorder)) == 1500
