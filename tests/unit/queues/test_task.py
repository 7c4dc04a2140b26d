"""What may be put, changed and named; ids that sort; the table of a task's life."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from support.inspect import use_sequence

from tidewarden.errors import BadArg, TooBig
from tidewarden.queue.task import (
    FIELDS,
    TIME_MAX_MS,
    Changes,
    IdMaker,
    TaskSpec,
    check_id,
    check_name,
    check_range,
    described,
)
from tidewarden.tokens.accounts.names import check_name as check_account_name

GOOD_NAMES = ("a", "A.b_c:d/e-9", "_tokens:provider:client", "x" * 200)
BAD_NAMES = ("", "x" * 201, "a b", "ä", "a\n", "a{b}", "a*", "a\x00", "\udcff")


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_queue_may_have_this_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_queue_may_not_have_this_name(name: str) -> None:
    with pytest.raises(BadArg, match="the queue name"):
        check_name(name)


@pytest.mark.parametrize("task_id", ["a", "ä", "provider/user@host", "x" * 200, "{a}", "猫" * 66])
def test_a_task_may_have_this_id(task_id: str) -> None:
    assert check_id(task_id) == task_id


@pytest.mark.parametrize(
    "task_id", ["", "x" * 201, "a b", "a\n", "\x7f", "a\x00", "猫" * 67, "a\udcff", "\ud800"]
)
def test_a_task_may_not_have_this_id(task_id: str) -> None:
    with pytest.raises(BadArg, match="the id"):
        check_id(task_id)


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("check", [check_name, check_id, check_account_name])
def test_nothing_has_a_name_that_no_path_of_http_reaches(
    check: Callable[[str], object], name: str
) -> None:
    with pytest.raises(BadArg, match=r"HTTP clients take \. and \.\. out of a path"):
        check(name)
    check(f"{name}a")


def test_a_range_says_what_it_found_and_what_is_allowed() -> None:
    assert check_range(5, "count", 1, 5) == 5
    with pytest.raises(BadArg, match="COUNT is 6; allowed is 1 to 5"):
        check_range(6, "count", 1, 5)
    with pytest.raises(BadArg, match="the fence is 6"):
        check_range(6, "fence", 1, 5, "the fence")


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_ms": -1}, {"delay_ms": TIME_MAX_MS}, {"delay_ms": 1, "at_ms": 1}, {"at_ms": -1}, {"at_ms": TIME_MAX_MS + 1},
        {"deadline_ms": -1}, {"deadline_ms": TIME_MAX_MS + 1}, {"within_ms": -1}, {"deadline_ms": 1, "within_ms": 1},
        {"within_ms": TIME_MAX_MS}, {"priority": -1}, {"priority": 100}, {"lease_ms": -1}, {"lease_ms": 30 * 86_400_000 + 1},
        {"attempts": -1}, {"attempts": 65_536}, {"backoff_ms": -1}, {"backoff_ms": 30 * 86_400_000 + 1},
        {"if_exists": "maybe"}, {"id": "a b"},
    ],
)  # fmt: skip
def test_what_may_not_be_put(fields: dict[str, Any]) -> None:
    with pytest.raises(BadArg) as caught:
        TaskSpec(**fields).check(10)
    field = next(iter(fields))
    assert field in caught.value.http_message
    assert field.removesuffix("_ms").replace("_", "").upper() in str(caught.value).upper()


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"delay_ms": 0}, {"at_ms": TIME_MAX_MS}, {"at_ms": 0}, {"deadline_ms": 0}, {"delay_ms": 5, "within_ms": 0},
        {"priority": 0, "attempts": 65_535, "lease_ms": 30 * 86_400_000, "backoff_ms": 30 * 86_400_000}, {"payload": b"x" * 10},
    ],
)  # fmt: skip
def test_what_may_be_put(fields: dict[str, Any]) -> None:
    TaskSpec(**fields).check(10)


def test_a_payload_over_the_limit() -> None:
    with pytest.raises(TooBig, match="the payload has 11 bytes; allowed are 10"):
        TaskSpec(b"x" * 11).check(10)
    with pytest.raises(TooBig):
        Changes(payload=b"x" * 11).arguments("a", 10)


def test_a_task_of_defaults_needs_no_options() -> None:
    assert TaskSpec(b"x").options(own=True) == ""
    assert TaskSpec(b"x", if_exists="replace").options(own=True) == "", "an id of ours is new"
    assert TaskSpec(b"x").options(own=False) == "0 0 0 0 50 0 0 0 0 keep"
    assert TaskSpec(delay_ms=0).options(own=True) == "1 0 0 0 50 0 0 0 1 keep"
    full = TaskSpec(
        at_ms=5, within_ms=7, priority=1, lease_ms=2, attempts=3, backoff_ms=4, if_exists="fail"
    )
    assert full.options(own=False) == "2 5 2 7 1 2 3 4 0 fail"
    assert TaskSpec().options(own=True, waits=True) == "0 0 0 0 50 0 0 0 1 keep w"
    assert TaskSpec(ttl_ms=9).options(own=True, waits=True) == "0 0 0 0 50 0 0 0 1 keep 9w"
    assert TaskSpec(ttl_ms=9).options(own=True) == "0 0 0 0 50 0 0 0 1 keep 9"
    assert TaskSpec(delay_ms=6, deadline_ms=8).options(own=False) == "1 6 1 8 50 0 0 0 0 keep"


def test_changes_become_arguments() -> None:
    assert Changes().arguments("a", 10) == ["a", 0, b"", 0, 0, 0, 0, -1, 0]
    assert Changes(payload=b"", delay_ms=0, priority=0, lease=9).arguments("a", 10) == [
        "a",
        1,
        b"",
        1,
        0,
        0,
        0,
        0,
        9,
    ]
    assert Changes(at_ms=5, deadline_ms=6).arguments("a", 10)[3:7] == [2, 5, 1, 6]
    assert Changes(within_ms=6).arguments("a", 10)[3:7] == [0, 0, 2, 6]


@pytest.mark.parametrize(
    "fields", [{"priority": 100}, {"delay_ms": 1, "at_ms": 1}, {"within_ms": -1}, {"at_ms": -5}]
)
def test_changes_that_are_not_allowed(fields: dict[str, Any]) -> None:
    with pytest.raises(BadArg):
        Changes(**fields).arguments("a", 10)


def test_ids_sort_by_time_and_then_by_sequence() -> None:
    maker = IdMaker()
    ids = [
        maker.make(now)
        for now in (1000, 1000, 1001, 1000, 999, 1_700_000_000_000, 1_700_000_000_000)
    ]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {20}
    assert {one[-7:] for one in ids} == {ids[0][-7:]}
    assert [check_id(one) for one in ids] == ids


def test_more_ids_in_a_millisecond_than_the_sequence_holds() -> None:
    maker = IdMaker()
    first = maker.make(5)
    use_sequence(maker, 2**20 - 2)
    last, beyond, after = maker.make(5), maker.make(5), maker.make(6)
    assert first < last < beyond < after


def test_two_processes_make_different_ids() -> None:
    assert len({IdMaker().make(5) for _ in range(20)}) == 20


def test_a_task_as_peek_shows_it() -> None:
    row = [
        b"a",
        b"leased",
        b"\xff",
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        b"n0.12",
        b"why \xff",
        8,
        9,
        10,
        11,
        b"tenant",
        bytes(range(1, 26)),
        [[12, b"fail", 1, b"no \xff"]],
    ]
    shown = described("q", row)
    assert (shown["queue"], shown["id"], shown["state"], shown["payload"]) == (
        "q",
        "a",
        "leased",
        b"\xff",
    )
    assert (shown["node"], shown["lease_end_ms"], shown["lease"], shown["lane"]) == (
        "n0",
        7,
        6,
        "tenant",
    )
    assert shown["traceparent"] == ("00-0102030405060708090a0b0c0d0e0f10-1112131415161718-19")
    assert shown["history"] == [{"at_ms": 12, "how": "fail", "attempt": 1, "reason": "no \ufffd"}]
    for state, name in ((b"buried", "buried_ms"), (b"delayed", "next_ms"), (b"ready", "")):
        shown = described("q", [b"a", state, *row[2:]])
        assert (name in shown) == bool(name)
        assert "at_ms" not in shown
        assert "holder" not in shown
    assert len(row) == len(FIELDS)
    assert dataclasses.fields(TaskSpec)
