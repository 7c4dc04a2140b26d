"""How the answers of several processes and nodes to one question become one."""

from __future__ import annotations

from typing import Any

import msgspec

from tidewarden.peer_line import UnreachableNode
from tidewarden.server.consumers import questions
from tidewarden.server.consumers.questions import (
    Consumer,
    ConsumersTold,
    Holding,
    merged,
)


def consumer(key: str, **more: Any) -> Consumer:
    fields: dict[str, Any] = {
        "node": "n0", "door": "resp", "client": 1, "user": "bob", "id": key, "session": "",
        "connections": 1, "connected_ms": 50, "tasks": 0, "holds": [], "waits": [], "settled": 0,
    }  # fmt: skip
    return Consumer(**fields | more)


def ids(told: ConsumersTold) -> list[str]:
    return [one.id for one in told.consumers]


def test_none_is_shown_behind_whom_a_process_may_have_others() -> None:
    first = ConsumersTold(consumers=(consumer("a"), consumer("d")), more=True)
    second = ConsumersTold(consumers=(consumer("b"), consumer("c"), consumer("e")))
    told = merged((second, first))
    assert (ids(told), told.more) == (["a", "b", "c", "d"], True)
    third = ConsumersTold(consumers=(consumer("b2"),), more=True)
    assert ids(merged((first, second, third))) == ["a", "b", "b2"]
    assert merged((second,)) == second
    assert (ids(merged((second,), 2)), merged((second,), 2).more) == (["b", "c"], True)
    assert merged(()) == ConsumersTold()


def test_a_session_of_several_processes_is_one_consumer() -> None:
    here = consumer(
        "u",
        session="u",
        tasks=3,
        holds=[Holding("q", 2, 500, 900), Holding("r", 1, 0, 800)],
        waits=["q"],
        settled=5,
    )
    there = consumer(
        "u",
        session="u",
        node="n1",
        connections=2,
        connected_ms=20,
        tasks=5,
        holds=[Holding("r", 4, 700, 950), Holding("q", 1, 400, 950)],
        waits=["a", "q"],
        settled=7,
    )
    (one,) = merged((ConsumersTold(consumers=(here,)), ConsumersTold(consumers=(there,)))).consumers
    assert (one.node, one.connections, one.connected_ms) == ("n0", 3, 20)
    assert (one.tasks, one.settled, one.waits) == (8, 12, ["a", "q"])
    assert one.holds == [Holding("r", 5, 700, 800), Holding("q", 3, 400, 900)]


def test_an_answer_is_bounded_and_says_that_there_are_more(monkeypatch: Any) -> None:
    rows = tuple(consumer(f"{number:03}", name="x" * 200) for number in range(100))
    monkeypatch.setattr(questions, "ANSWER_BYTES", 5_000)
    told = merged((ConsumersTold(consumers=rows), ConsumersTold()))
    assert 5_000 < len(msgspec.msgpack.encode(told)) < 7_000
    assert told.more
    rest = merged((ConsumersTold(consumers=rows[len(told.consumers) :]),))
    assert rest.consumers[0].id > told.consumers[-1].id


def test_what_is_counted_is_added_up_and_who_is_silent_named_in_order() -> None:
    lost = [ConsumersTold(silent=(UnreachableNode(name, "gone"),)) for name in ("n2", "n1")]
    told = merged((ConsumersTold(closed=2), *lost, ConsumersTold(closed=3)))
    assert told.closed == 5
    assert [one.node for one in told.silent] == ["n1", "n2"]
