"""What a consumer holds."""

from __future__ import annotations

from typing import Any

from tidewarden.queue.sessions.session import HELD_MAX, Session, Shared
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
    assert session.drop("q", "a", 3) == (3, 10, 0.0)
    assert session.drop("q", "a", 3) is None
    assert session.held == {("q", "b"): (2, 10, 0.0)}


def test_where_a_shared_session_owns_the_leases_much_is_forgotten() -> None:
    """
    A consumer that lets its leases run out, or ends them through another connection, does not fill
    the node's memory.
    """
    session = Session()
    session.shared = Shared("00" * 16, "default")
    for n in range(3 * HELD_MAX):
        session.hold([taken(f"t{n}", n + 1, end_ms=n)], now_ms=n)
    assert len(session.held) <= HELD_MAX + 1000
    assert not session.is_full


def test_what_has_ended_is_looked_for_as_the_leases_double() -> None:
    """The leases of all connections of a session were gone through with each of its takes."""

    class Counted(dict[tuple[str, str], tuple[int, int, float]]):
        looks = 0

        def items(self) -> Any:
            Counted.looks += 1
            return super().items()

    session = Session()
    session.shared = Shared("00" * 16, "default")
    session.held = Counted()
    for n in range(4 * HELD_MAX):
        session.hold([taken(f"t{n}", n + 1)], now_ms=0)
    for n in range(1000):
        session.drop("q", f"t{n}", n + 1)
        session.hold([taken(f"t{n}", n + 1)], now_ms=0)
    assert len(session.held) == 4 * HELD_MAX
    assert Counted.looks == 2


def test_a_connection_by_itself_forgets_nothing_and_says_when_it_is_full() -> None:
    session = Session()
    for n in range(HELD_MAX):
        assert not session.is_full
        session.hold([taken(f"t{n}", n + 1, end_ms=n)], now_ms=2 * HELD_MAX)
    assert session.is_full
    session.hold([taken(f"u{n}", n + 1) for n in range(1000)], now_ms=2 * HELD_MAX)
    assert len(session.held) == HELD_MAX + 1000, "takes that were under way"
