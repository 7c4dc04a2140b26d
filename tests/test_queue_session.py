"""What a consumer holds."""

from __future__ import annotations

from tidewarden.queue.session import HELD_MAX, Session
from tidewarden.queue.task import Taken


def taken(task_id: str, lease: int, end_ms: int = 10) -> Taken:
    return Taken("q", task_id, lease, b"", 1, 0, end_ms)


def test_sessions_have_ids_of_their_own() -> None:
    assert len({Session().id for _ in range(10)}) == 10
    assert Session("bob").user == "bob"


def test_held_and_dropped_by_the_lease() -> None:
    session = Session()
    session.hold([taken("a", 1), taken("b", 2)], 0)
    session.hold([taken("a", 3)], 0)
    assert session.drop("q", "a", 1) is None, "an older lease of the task"
    assert session.drop("p", "a", 3) is None
    assert session.drop("q", "a", 3) == (3, 10)
    assert session.drop("q", "a", 3) is None
    assert session.held == {("q", "b"): (2, 10)}


def test_what_ran_out_is_forgotten_when_there_is_much() -> None:
    """A consumer that lets its leases run out does not fill the node's memory."""
    session = Session()
    for n in range(3 * HELD_MAX):
        session.hold([taken(f"t{n}", n + 1, end_ms=n)], now_ms=n)
    assert len(session.held) <= HELD_MAX + 1000
    kept = Session()
    kept.hold([taken(f"t{n}", n + 1, end_ms=5) for n in range(HELD_MAX + 100)], now_ms=4)
    assert len(kept.held) == HELD_MAX + 100, "leases that run on are kept"
