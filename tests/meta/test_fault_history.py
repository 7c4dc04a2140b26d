"""
The checker of the fault runs is fed histories that no right cluster can give: it sees each
violation, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.faults.history import (  # fmt: skip
    OK,
    REFUSED,
    UNKNOWN,
    USES,
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
from support.providers.scripted_provider import (
    Presented,
    cut,
    provider_in_thread,
    rotate_and_cut,
)


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


TWICE = op("grant", "a", 0, 1, lease=7), op("grant", "a", 2, 3, lease=8)
PUT = op("put", "a", 0, 1)
ACKED = op("put", "a", 0, 1), op("ack", "a", 1, 2, lease=7)
Rule = Callable[[History], list[str]]


def lost(history: History) -> list[str]:
    return lost_puts(history, {"q": {"b"}, "elsewhere": {"a"}})


def gone(history: History) -> list[str]:
    return unfinished(history, {"q": {"d"}})


def tried(history: History) -> list[str]:
    return lacking(history, ("put", "ack", "touch"), ("q",))


def doubled(history: History) -> list[str]:
    return put_once(history, "q", {"b"}, 3)


def crowd(history: History) -> list[str]:
    return crowded(history, lambda place, key: "lane")


def read(history: History) -> list[str]:
    return generations(history, [])


@pytest.mark.parametrize(
    ("rule", "asked", "said"),
    [
        (lost, (PUT, op("put", "b", 0, 1)), ["lost: a of q"]),
        (gone, (op("grant", "a", 0, 1),), ["gone: a of q"]),
        (gone, (op("grant", "a", 0, 1), op("ack", "a", 2, 3, outcome=REFUSED)), ["gone: a of q"]),
        (tried, (PUT, op("ack", "a", 2), op("touch", "a", 2, 3, outcome=REFUSED)),
         ["not one ack was", "not one touch was", "nothing was handed out of q"]),
        (doubled, (op("grant", "a", 0, 1, lease=7),), ["3 tasks were put for 2 ids in q"]),
        (results, (*ACKED, op("wait", "a", 3, 4, value=("done", "8"))),
         ["told to be done ('8'); acknowledged under ['7']"]),
        (results, (PUT, op("ack", "a", 1, 2, lease=7, outcome=REFUSED),
                   op("wait", "a", 3, 4, value=("done", ""))), ["told to be done ('')"]),
        (results, (*ACKED, op("wait", "a", 3, 4, value=("timeout", ""))),
         ["told not to have ended"]),
        (results, (*ACKED, op("wait", "a", 3, 4, value=("unknown", ""))), ["unknown soon after"]),
        (results, (*ACKED, op("wait", "a", 3, 4, value=("buried", "losses"))), ["to be buried"]),
        (results, (op("grant", "d", 4, 5, lease=9), op("ack", "d", 1, lease=8),
                   op("wait", "d", 2, 3, value=("done", ""))),
         ["given to c after it was told to be done"]),
        (read, (op("read", "x", 0, 1, value="NOTFOUND", outcome=REFUSED),),
         ["x: there is no such account"]),
        (read, (op("read", "x", 0, 1, value=3), op("read", "x", 2, 3, value=2)),
         ["x: generation 2 was read after 3"]),
        (epochs, (op("fence", "epoch", 0, 1, lease=0), op("fence", "epoch", 2, 3, lease=4),
                  op("fence", "epoch", 5, 6, lease=0)), ["the fence went from epoch 4 to 0"]),
        (epochs, (op("fence", "epoch", 2, 3, lease=4), op("fence", "epoch", 5, 6, lease=3),
                  op("fence", "epoch", 26, 27, lease=4)), ["the fence went from epoch 4 to 3"]),
        (lease_numbers, (op("grant", "a", 0, 1, lease=7), op("grant", "a", 2, 3, lease=6)),
         ["lease 6 was given after 7"]),
        (lease_numbers, (op("grant", "a", 0, 1, lease=7), op("grant", "a", 2, 3, lease=7)),
         ["was given 2 times", "lease 7 was given after 7"]),
        (lease_numbers, (op("grant", "a", 0, 3, lease=7), op("grant", "a", 2, 4, lease=7)),
         ["was given 2 times"]),
        *((old_numbers, (*TWICE, op(verb, "a", 4, 5, lease=7)),
           [f"{verb} of a in q under 7 succeeded after 8"]) for verb in USES),
        (old_numbers, (op("grant", "a", 0, 1, lease=7), op("grant", "a", 0, 3, lease=8),
                       op("ack", "a", 1, 4, lease=7), op("ack", "a", 3, 5, lease=8)),
         ["a in q was acknowledged under [7, 8]"]),
        (old_numbers, (op("grant", "a", 0, 1, lease=7), op("ack", "a", 1, 2, lease=7),
                       op("grant", "a", 3, 4, lease=8)), ["a in q was given to c after its ack"]),
    ],
)  # fmt: skip
def test_a_violation_is_seen(rule: Rule, asked: tuple[Operation, ...], said: list[str]) -> None:
    found = rule(history(*asked))
    assert len(found) == len(said), found
    assert all(one in text for one, text in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        (lost, (op("put", "c", 0), op("put", "d", 0, 1, outcome=REFUSED))),
        (gone, (op("grant", "b", 0, 1, lease=1), op("ack", "b", 2, lease=1))),  # perhaps unheard
        (gone, (op("grant", "d", 0, 1),)),  # it still lies there
        (results, (PUT, op("ack", "a", 3, 4, lease=7),
                   op("wait", "a", 2, 5, value=("timeout", "")))),
        (results, (*ACKED, op("wait", "a", 2, 30, value=("unknown", "")))),  # long ago
        (results, (PUT, op("ack", "a", 1, lease=7), op("wait", "a", 2, 3, value=("done", "7")))),
        (read, (op("read", "x", 0, 1, value="stale", outcome=REFUSED),)),
        # Its primary took the claim with it, and whoever leads claimed again.
        (epochs, (op("fence", "epoch", 2, 3, lease=4), op("fence", "epoch", 5, 6, lease=3),
                  op("fence", "epoch", 7, 8, lease=4))),
        # Of grants that overlap in time nobody knows which came first.
        (lease_numbers, (op("grant", "a", 0, 5, lease=7), op("grant", "a", 1, 4, lease=6))),
        *((old_numbers, (*TWICE, op(verb, "a", 1, 2.5, lease=7))) for verb in USES),  # under way
        *((old_numbers, (*TWICE, op(verb, "a", 4, 5, lease=7, outcome=REFUSED))) for verb in USES),
        # A lease of which nothing was heard again may have ended at once.
        (crowd, (op("grant", "a", 0, 1, lease=1), op("grant", "b", 2, 3, lease=2),
                 op("ack", "b", 4, 5, lease=2), op("ack", "a", 4, lease=1),
                 op("ack", "a", 4, 5, lease=1, outcome=REFUSED))),
    ],
)  # fmt: skip
def test_what_may_be_is_no_violation(rule: Rule, asked: tuple[Operation, ...]) -> None:
    assert rule(history(*asked)) == []


def test_lanes_that_hold_more_than_their_limit() -> None:
    many = [op("grant", key, 0, at, lease=at) for at, key in enumerate("abc", 1)]
    uses = [op("touch", "a", 6, 7, lease=1), op("ack", "b", 5, 6, lease=2)]
    full = history(*many, *uses, op("ack", "c", 4, 5, lease=3))
    assert crowd(full) == [
        "['a', 'b'] of lane in q were held at a time",
        "['a', 'b', 'c'] of lane in q were held at a time",
    ]
    assert len(crowded(full, lambda place, key: "lane", 2)) == 1
    assert crowded(full, lambda place, key: key) == []
    assert crowded(full, lambda place, key: None) == []


def test_a_queue_that_nobody_asked_about_has_lost_nothing() -> None:
    assert unfinished(history(op("grant", "a", 0, 1)), {"another": ()}) == []


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


def test_an_epoch_has_one_leader() -> None:
    assert epochs(history(claims=((4, "n0.1"), (4, "n1.1")))) == [
        "epoch 4 was led by ['n0.1', 'n1.1']"
    ]


def test_ticks_that_are_missing_doubled_or_off() -> None:
    assert ticks(["s:1000", "s:2000"], 2, 500, "all") == [
        "no tick between 1000 and 2000, every 500 ms"
    ]
    assert ticks(["s:1000", "s:1500"], 3, 500, "all") == ["3 tasks were put for 2 ticks"]
    assert "too near" in ticks(["s:1000", "s:1200"], 2, 500, "one")[0]


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


def test_the_provider_writes_down_each_use_of_a_refresh_token() -> None:
    """Its log is what ``generations`` judges by."""
    with (
        provider_in_thread(1, 60, grace_s=60.0) as provider,
        httpx.Client(trust_env=False, verify=False) as client,
    ):

        def ask(number: int) -> int:
            form = {"grant_type": "refresh_token", "refresh_token": f"a0.{number}"}
            return client.post(provider.url, data=form).status_code

        assert [ask(number) for number in (0, 0, 1, 0)] == [200, 200, 200, 400]
        provider.faults.extend([cut, rotate_and_cut])
        for _ in range(2):
            with pytest.raises(httpx.HTTPError):
                ask(2)
        assert ask(2) == 200
    assert [(one.account, one.generation, one.answer) for one in provider.log] == [
        ("a0", 0, "new"), ("a0", 0, "again"), ("a0", 1, "new"), ("a0", 0, "refused"),
        ("a0", 2, "new"), ("a0", 2, "again"),
    ]  # fmt: skip
