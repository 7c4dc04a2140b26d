"""
The checker of the fault runs is fed histories that no right cluster can give: it sees each
violation, and no other.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.faults.history import (  # fmt: skip
    OK,
    REFUSED,
    UNKNOWN,
    History,
    Operation,
    crowded,
    epochs,
    generations,
    lacking,
    lateness_s,
    lease_numbers,
    lost_puts,
    old_numbers,
    put_once,
    results,
    ticks,
    unfinished,
)
from support.providers.scripted_provider import Presented


def op(kind: str, key: str, invoked: float, answered: float = math.inf, **more: Any) -> Operation:
    """An operation in queue ``q``; answered: OK unless said otherwise."""
    how = OK if answered < math.inf else UNKNOWN
    return Operation(
        kind, "c", "q", key, **({"outcome": how} | more), invoked=invoked, answered=answered
    )


def history(*operations: Operation, claims: tuple[tuple[int, str], ...] = ()) -> History:
    return History(list(operations), list(claims))


GOOD = history(
    op("put", "a", 0, 1), op("put", "b", 0), op("put", "c", 0, 1),
    op("grant", "a", 1, 2, lease=7), op("grant", "a", 5, 6, lease=9), op("grant", "c", 5, 6, lease=10),
    op("touch", "a", 3, 4, lease=7), op("ack", "a", 7, 8, lease=7, outcome=REFUSED), op("ack", "a", 7, 8, lease=9),
    op("ack", "c", 7, lease=10), op("grant", "c", 9, 10, lease=11), op("ack", "c", 11, 12, lease=11),
    op("fence", "epoch", 0, 1, lease=3), op("fence", "epoch", 2, 3, lease=3), op("fence", "epoch", 4, 5, lease=5),
    op("wait", "a", 7, 9, value=("done", "9")), op("wait", "c", 7, 12, value=("done", "")), op("wait", "b", 7, 8, value=("unknown", "")),
    op("read", "x", 0, 1, value=1), op("read", "x", 2, 5, value=2), op("read", "x", 3, 4, value=3),
    claims=((3, "n0.1"), (5, "n1.1"), (5, "n1.1")),
)  # fmt: skip
SHOWN = [
    Presented(0.5, "x", 0, "new"),
    Presented(1.5, "x", 0, "again"),
    Presented(2.5, "x", 1, "new"),
]


def test_a_right_history_has_no_violation() -> None:
    assert lost_puts(GOOD, {}) == []
    assert lease_numbers(GOOD) == []
    assert old_numbers(GOOD) == []
    assert epochs(GOOD) == []
    assert unfinished(GOOD, {"q": ()}) == []
    assert put_once(GOOD, "q", {"b"}, 3) == []
    assert results(GOOD) == []
    assert crowded(GOOD, lambda place, key: "lane") == []
    assert lacking(GOOD, ("put", "ack", "wait", "fence", "read"), ["q"]) == []
    assert generations(GOOD, SHOWN) == []
    assert ticks(["s:1000", "s:1500", "s:2000", "s:2000"], 3, 500, "all") == []
    assert ticks(["s:1000", "s:2500"], 2, 500, "one") == []


def test_a_put_that_was_answered_and_is_nowhere_is_lost() -> None:
    lost = history(
        op("put", "a", 0, 1),
        op("put", "b", 0, 1),
        op("put", "c", 0),
        op("put", "d", 0, 1, outcome=REFUSED),
    )
    assert [text.split()[1] for text in lost_puts(lost, {"q": {"b"}, "elsewhere": {"a"}})] == ["a"]


def test_a_history_that_lacks_what_its_checks_look_at() -> None:
    tried = history(
        op("put", "a", 0, 1), op("ack", "a", 2, lease=7), op("touch", "a", 2, 3, outcome=REFUSED)
    )
    assert lacking(tried, ("put", "ack", "touch"), ("q",)) == [
        "not one ack was answered OK", "not one touch was answered OK", "nothing was handed out of q",
    ]  # fmt: skip


def test_a_delivered_task_that_is_gone_without_an_ack() -> None:
    grants = [op("grant", key, 0, 1, lease=number) for number, key in enumerate("abcd")]
    gone = history(
        *grants, op("ack", "b", 2, lease=1), op("ack", "c", 2, 3, lease=2, outcome=REFUSED)
    )
    assert [text.split()[1] for text in unfinished(gone, {"q": {"d"}})] == ["a", "c"]
    assert unfinished(gone, {"another": ()}) == []


def test_a_put_that_made_two_tasks() -> None:
    assert put_once(history(op("grant", "a", 0, 1, lease=7)), "q", {"b"}, 3) == [
        "3 tasks were put for 2 ids in q"
    ]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            op("wait", "a", 3, 4, value=("done", "8")),
            "told to be done ('8'); acknowledged under ['7']",
        ),
        (op("wait", "b", 3, 4, value=("done", "")), "told to be done ('')"),
        (op("wait", "a", 3, 4, value=("timeout", "")), "told not to have ended"),
        (op("wait", "a", 3, 4, value=("unknown", "")), "told to be unknown soon after"),
        (op("wait", "a", 3, 4, value=("buried", "losses")), "told to be buried"),
        (op("wait", "d", 2, 3, value=("done", "")), "given to c after it was told to be done"),
    ],
)
def test_ends_that_were_told_otherwise(told: Operation, said: str) -> None:
    puts = op("put", "a", 0, 1), op("put", "b", 0, 1), op("grant", "d", 4, 5, lease=9)
    acked = (
        op("ack", "a", 1, 2, lease=7),
        op("ack", "b", 1, 2, lease=7, outcome=REFUSED),
        op("ack", "d", 1, lease=8),
    )
    assert said in " ".join(results(history(*puts, *acked, told)))


@pytest.mark.parametrize(
    "told",
    [
        op("wait", "a", 2, 5, value=("timeout", "")),  # acknowledged meanwhile
        op("wait", "a", 2, 30, value=("unknown", "")),  # long ago
        op("wait", "b", 2, 3, value=("done", "7")),  # its ack was not heard of
    ],
)
def test_ends_that_may_be_told_so(told: Operation) -> None:
    puts = op("put", "a", 0, 1), op("put", "b", 0, 1)
    acked = op("ack", "a", 3, 4, lease=7), op("ack", "b", 1, lease=7)
    assert results(history(*puts, *acked, told)) == []


def test_lanes_that_hold_more_than_their_limit() -> None:
    many = [op("grant", key, 0, at, lease=at) for at, key in enumerate("abc", 1)]
    uses = [
        op("touch", "a", 6, 7, lease=1),
        op("ack", "b", 5, 6, lease=2),
        op("ack", "c", 4, 5, lease=3),
    ]
    full = history(*many, *uses)
    assert crowded(full, lambda place, key: "lane") == [
        "['a', 'b'] of lane in q were held at a time", "['a', 'b', 'c'] of lane in q were held at a time",
    ]  # fmt: skip
    assert len(crowded(full, lambda place, key: "lane", 2)) == 1
    assert crowded(full, lambda place, key: key) == []
    assert crowded(full, lambda place, key: None) == []


def test_a_lease_of_which_nothing_was_heard_again_may_have_ended_at_once() -> None:
    grants = (
        op("grant", "a", 0, 1, lease=1),
        op("grant", "b", 2, 3, lease=2),
        op("ack", "b", 4, 5, lease=2),
    )
    lost = op("ack", "a", 4, lease=1), op("ack", "a", 4, 5, lease=1, outcome=REFUSED)
    assert crowded(history(*grants, *lost), lambda place, key: "lane") == []


def test_how_late_tasks_came_after_the_last_fault() -> None:
    puts = (
        op("put", "a", 0, 1, value=0.0),
        op("put", "b", 5, 6, value=2.0),
        op("put", "c", 5, 6, value=0.5),
    )
    grants = (
        op("grant", "b", 7, 9, lease=1),
        op("grant", "b", 9, 10, lease=2),
        op("grant", "c", 6, 7, lease=3),
    )
    assert lateness_s(history(*puts, *grants), 5) == [0.5, 1.0]


def test_an_account_that_a_reader_does_not_find() -> None:
    assert generations(history(op("read", "x", 0, 1, value="NOTFOUND", outcome=REFUSED)), []) == [
        "x: there is no such account"
    ]
    assert generations(history(op("read", "x", 0, 1, value="stale", outcome=REFUSED)), []) == []


def test_a_fence_that_is_gone_has_fallen() -> None:
    gone = history(
        op("fence", "epoch", 0, 1, lease=0),
        op("fence", "epoch", 2, 3, lease=4),
        op("fence", "epoch", 5, 6, lease=0),
    )
    assert epochs(gone) == ["the fence went from epoch 4 to 0"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            op("grant", "a", 0, 1, lease=7),
            op("grant", "a", 2, 3, lease=6),
            "lease 6 was given after 7",
        ),
        (op("grant", "a", 0, 1, lease=7), op("grant", "a", 2, 3, lease=7), "was given 2 times"),
        (op("grant", "a", 0, 3, lease=7), op("grant", "a", 2, 4, lease=7), "was given 2 times"),
    ],
)
def test_lease_numbers_that_go_back_or_are_given_twice(
    first: Operation, second: Operation, said: str
) -> None:
    assert said in " ".join(lease_numbers(history(first, second)))


def test_grants_that_overlap_in_time_may_be_seen_in_any_order() -> None:
    assert (
        lease_numbers(history(op("grant", "a", 0, 5, lease=7), op("grant", "a", 1, 4, lease=6)))
        == []
    )


@pytest.mark.parametrize("verb", ["ack", "touch", "release", "fail"])
def test_a_use_of_an_old_number_that_succeeds(verb: str) -> None:
    grants = op("grant", "a", 0, 1, lease=7), op("grant", "a", 2, 3, lease=8)
    late = old_numbers(history(*grants, op(verb, "a", 4, 5, lease=7)))
    assert len(late) == 1
    assert f"{verb} of a in q under 7 succeeded after 8" in late[0]
    assert old_numbers(history(*grants, op(verb, "a", 1, 2.5, lease=7))) == [], (
        "both were under way"
    )
    assert old_numbers(history(*grants, op(verb, "a", 4, 5, lease=7, outcome=REFUSED))) == []


def test_a_task_that_is_acknowledged_under_two_numbers() -> None:
    grants = op("grant", "a", 0, 1, lease=7), op("grant", "a", 0, 3, lease=8)
    twice = history(*grants, op("ack", "a", 1, 4, lease=7), op("ack", "a", 3, 5, lease=8))
    assert "a in q was acknowledged under [7, 8]" in old_numbers(twice)


def test_a_task_that_comes_again_after_its_ack() -> None:
    again = history(
        op("grant", "a", 0, 1, lease=7),
        op("ack", "a", 1, 2, lease=7),
        op("grant", "a", 3, 4, lease=8),
    )
    assert old_numbers(again) == ["a in q was given to c after its ack"]


def test_epochs_that_fall_or_have_two_leaders() -> None:
    fell = history(op("fence", "epoch", 0, 1, lease=5), op("fence", "epoch", 2, 3, lease=4))
    assert epochs(fell) == ["the fence went from epoch 5 to 4"]
    assert epochs(history(claims=((4, "n0.1"), (4, "n1.1")))) == [
        "epoch 4 was led by ['n0.1', 'n1.1']"
    ]


def test_ticks_that_are_missing_doubled_or_off() -> None:
    assert ticks(["s:1000", "s:2000"], 2, 500, "all") == [
        "no tick between 1000 and 2000, every 500 ms"
    ]
    assert ticks(["s:1000", "s:1500"], 3, 500, "all") == ["3 tasks were put for 2 ticks"]
    assert "too near" in ticks(["s:1000", "s:1200"], 2, 500, "one")[0]


def test_generations_that_go_back_for_a_reader() -> None:
    back = history(op("read", "x", 0, 1, value=3), op("read", "x", 2, 3, value=2))
    assert generations(back, []) == ["x: generation 2 was read after 3"]


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (
            [Presented(5, "x", 1, "new"), Presented(6, "x", 0, "again")],
            "generation 0 was sent after 1",
        ),
        ([Presented(5, "x", 0, "refused")], "the provider refused generation 0"),
        ([Presented(5, "x", 0, "again")], "generation 0 was sent when 1 was stored"),
    ],
)
def test_refresh_tokens_out_of_order_refused_or_sent_again(
    shown: list[Presented], said: str
) -> None:
    stored = history(op("read", "x", 3, 4, value=2)) if "stored" in said else history()
    assert any(said in text for text in generations(stored, shown))
