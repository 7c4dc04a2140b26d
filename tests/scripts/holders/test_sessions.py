"""
The scripts of sessions one by one, at times that the test sets: graces, dead boots, a full store,
rubbish, the doctor.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tidewarden.errors import BadArg, Error, Full, NotFound, Stale
from tidewarden.store.reply_errors import error_of

A, B = "a" * 32, "b" * 32
KEYS = ("{tw}:session", "{tw}:fence")


class Book:
    """The sessions' scripts at the desk's time."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self.client = desk.client

    def __call__(self, verb: str, *args: Any, holder: str = "n0.5") -> Any:
        source = self.desk.scripts[f"queue.session_{verb}"].source
        try:
            return self.client.eval(source, 2, *KEYS, self.desk.now, holder, *args)
        except redis.exceptions.OutOfMemoryError as error:
            raise Full(str(error)) from None
        except redis.ResponseError as error:
            raise error_of(str(error)) from None

    def begin(self, uuid: str = A, grace_ms: int = 1000, holder: str = "n0.5") -> int:
        return int(self("join", uuid, "bob", grace_ms, 1, holder=holder))

    def keys(self) -> set[bytes]:
        return set(self.client.keys("{tw}:session*"))


@pytest.fixture
def book(desk: Any) -> Book:
    return Book(desk)


def test_a_grace_is_counted_from_the_last_node_that_leaves(book: Book) -> None:
    assert book.begin() == 1
    assert book("join", A, "bob", -1, 0, holder="n1.7") == 2
    assert book("join", A, "bob", 500, 0) == 3, "and anew: the grace is what was said last"
    assert book("leave", A, 2, holder="n1.7") == -1
    book.desk.now += 10_000
    assert book("due", 10) == []
    assert book("end", A, 3) == [-1, []]
    assert book("leave", A, 3) == 500
    book.desk.now += 499
    assert book("due", 10) == []
    assert book("end", A, 3) == [1, []]
    book.desk.now += 1
    assert book("due", 10) == [A.encode()]
    assert book("end", A, 2) == [-1, []]
    assert book("end", A, 3) == book("end", A, -1) == [0, []]
    with pytest.raises(NotFound):
        book("join", A, "bob", -1, 0)
    with pytest.raises(NotFound):
        book("enter", A, "q 0")
    assert book("forget", A) == 1
    assert book.keys() == set()


def test_a_join_within_the_grace_takes_it_back(book: Book) -> None:
    book.begin()
    assert book("enter", A, "q 0", "q 1") == 1
    assert book("leave", A, 1) == 1000
    book.desk.now += 999
    assert book("join", A, "bob", -1, 0, holder="n1.7") == 2
    book.desk.now += 5000
    assert book("end", A, 1) == book("end", A, -1) == [-1, []]
    assert book("due", 10) == []
    with pytest.raises(Stale, match=r"n0\.5 is not attached to the session"):
        book("enter", A, "q 2")
    assert book("leave", A, 2, holder="n1.7") == 1000
    book.desk.now += 1000
    left, places = book("end", A, 2)
    assert (left, sorted(places)) == (0, [b"q 0", b"q 1"])


def test_a_dead_boot_leaves_its_sessions_and_joins_none(book: Book) -> None:
    for n in range(5):
        book.begin(f"{n:032x}")
    book.begin(B, holder="n1.7")
    assert book("bury", 1, "n0", 5, 3, holder="n1.7") == [3, 1]
    assert book("bury", 1, "n0", 5, 3, holder="n1.7") == [2, 0]
    book.desk.now += 1000
    assert len(book("due", 10)) == 5
    with pytest.raises(Stale, match=r"n0\.5 was declared dead"):
        book.begin(A)
    with pytest.raises(Stale, match=r"n0\.5 was declared dead"):
        # it has not ended: its grace runs, and the node may join it again
        book("enter", f"{0:032x}", "q 0")
    assert book.begin(A, holder="n0.6") == 1
    assert book("bury", 1, "n0", 5, 3, holder="n1.7") == [0, 0], "an older boot's death again"
    assert book("leave", A, 1) == -1, "the dead boot's close"
    assert book("leave", A, 1, holder="n0.6") == 1000


def test_a_node_that_came_back_before_it_was_buried_keeps_its_sessions(book: Book) -> None:
    book.begin()
    assert book("join", A, "bob", -1, 0, holder="n0.6") == 2
    assert book("bury", 1, "n0", 5, 3, holder="n1.7") == [0, 0]
    assert book("leave", A, 2, holder="n0.6") == 1000


def test_a_leader_of_the_past_buries_nobody(book: Book) -> None:
    book.begin()
    book.client.hset("{tw}:fence", "epoch", 4)
    with pytest.raises(Stale, match="epoch 4"):
        book("bury", 3, "n0", 5, 3)
    assert book("bury", 4, "n0", 5, 3) == [1, 0]


def test_on_a_full_store_sessions_come_and_go(book: Book) -> None:
    """Whoever drains it opens a session first."""
    book.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            book.client.set("x", "y")
        assert book.begin() == 1
        assert book("enter", A, "q 0") == 1
        assert book("leave", A, 1) == 1000
        assert book("bury", 1, "n9", 5, 3) == [0, 0]
        book.desk.now += 1000
        assert book("end", A, 1) == [0, [b"q 0"]]
        assert book("forget", A) == 1
    finally:
        book.client.config_set("maxmemory", "0")


@pytest.mark.parametrize("value", [b"", b"x", b"\xff", b"1.5", b"-3", b"9" * 30])
@pytest.mark.parametrize("field", ["number", "nodes", "grace_ms", "at:n0"])
def test_a_field_of_a_sessions_record_that_nobody_can_read(
    book: Book, field: str, value: bytes
) -> None:
    """
    Sessions beside it go on, and so does it: attach numbers only grow, and it ends when its last
    node has gone.
    """
    for uuid in (A, B):
        book.begin(uuid)
    book("join", A, "bob", -1, 0, holder="n1.7")
    record = "{tw}:session:" + A
    book.client.hset(record, field, value)
    for number, holder in ((1, "n0.5"), (2, "n1.7")):
        book("leave", A, number, holder=holder)
    again = book("join", A, "bob", -1, 0)
    assert again > 2, "an attach number is never given twice"
    book.client.hset(record, field, value)
    assert book("bury", 1, "n0", 5, 10) == [2, 0]
    book("bury", 1, "n1", 7, 10)
    book.desk.now += 3_600_000
    assert sorted(book("due", 10)) == [A.encode(), B.encode()]
    book.client.hset(record, field, value)
    for uuid in (A, B):
        assert book("end", uuid, -1)[0] == 0
        assert book("forget", uuid) == 1
    assert book.keys() <= {b"{tw}:session:dead"}


def test_a_dead_boot_that_nobody_can_read_stops_no_node(book: Book) -> None:
    book.client.hset("{tw}:session:dead", "n0", b"x")
    assert book.begin() == 1
    assert book("enter", A, "q 0") == 1
    book("bury", 1, "n0", 5, 10)
    assert book.client.hget("{tw}:session:dead", "n0") == b"5"


GOOD = {
    "join": [[A, "bob", "1000", "1"], [B, "bob", "-1", "0"]],
    "leave": [[B, "1"]],
    "enter": [[B, "q 0", "q 1"]],
    "end": [[B, "1"]],
    "due": [["10"], ["10", "5"]],
    "forget": [[B]],
    "bury": [["1", "n0", "5", "10"]],
}
RUBBISH = st.one_of(
    st.sampled_from(["", "-1", "-2", "0", "graces", "dead", f"in:{B}", "at:n0", "1.5", "nan", "~" * 32, "%d", "a b", "9" * 400]),
    st.binary(max_size=20),
)  # fmt: skip


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_rubbish_is_refused_and_changes_nothing(book: Book, verb: str) -> None:
    def fresh() -> dict[bytes, Any]:
        book.client.flushdb()
        book.begin(B)
        book("enter", B, "q 0")
        digest: dict[bytes, Any] = book.desk.digest()
        return digest

    start = fresh()

    @settings(max_examples=40, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def play(data: st.DataObject) -> None:
        nonlocal start
        args: list[Any] = list(data.draw(st.sampled_from(GOOD[verb])))
        at = data.draw(st.integers(0, len(args) - 1))
        if data.draw(st.booleans()):
            args[at] = data.draw(RUBBISH)
        else:
            del args[at]
        try:
            book(verb, *args, holder=data.draw(st.sampled_from(["n0.5", "n0.5", "n0", "-", ""])))
        except Error:
            assert book.desk.digest() == start, f"{verb} {args} was refused and changed something"
        else:
            start = fresh()

    play()


# --- what lies in the shards


def take(desk: Any, uuid: str, count: int = 1, task_id: str = "") -> list[Any]:
    return list(desk.run("queue.take", 200, count, 0, f"0{uuid}", task_id)[0])


def test_the_end_of_a_session_ends_what_it_holds_bit_by_bit(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(10)))
    take(desk, A, 5)
    take(desk, B, 2)
    desk.take(1)
    assert desk.run("queue.session_release", A, 2) == [2, 1]
    assert desk.woke
    assert desk.run("queue.session_release", A, 3) == [3, 1]
    assert desk.run("queue.session_release", A, 2) == [0, 0]
    assert desk.counts() == {"delayed": 0, "ready": 7, "leased": 3, "buried": 0}
    assert desk.peek("t0")["losses"] == 1
    assert desk.run("queue.reap", 1, "n0", 9, 100) == [1, 0], "a node's death ends its own"
    assert desk.run("queue.session_release", B, 100) == [2, 0]
    assert desk.client.exists("{tw:q:0}:held", "{tw:q:0}:leased:~") == 0


def test_a_sessions_lease_runs_out_by_its_time(desk: Any) -> None:
    desk.put("a")
    desk.run("queue.take", 200, 1, 100, f"1{A}", "")
    assert desk.next_ms == desk.now + 100
    desk.now += 100
    assert desk.run("queue.sweep", 1, 10) == [1, -1]
    assert (desk.peek("a")["state"], desk.peek("a")["attempts"]) == (b"ready", 1)
    assert take(desk, B)[0][0] == b"a"
    assert desk.run("queue.session_release", A, 10) == [0, 0], "another session's now"
    assert desk.state("a") == "leased"


@pytest.mark.parametrize("word", [A, f"5{A}", f"1{A}0", f"1{'x' * 32}", "01", "1 "])
def test_a_take_refuses_a_session_that_is_none(desk: Any, word: str) -> None:
    desk.put("a")
    with pytest.raises(BadArg, match="the session of a take is no uuid"):
        desk.run("queue.take", 200, 1, 0, word, "")
    assert desk.state("a") == "ready"


def test_the_doctor_finds_what_sessions_and_tasks_know_differently(desk: Any) -> None:
    for name in ("lost", "kept", "done"):
        desk.put(name)
        take(desk, A, 1, name)
    held = f"{desk.prefix}:held"
    desk.client.zrem(held, f"{A}lost")
    desk.client.zadd(held, {f"{B}kept": 0, f"{A}none": 0})

    def look(repair: int) -> list[tuple[str, str, int]]:
        found, names = desk.run("queue.check_record", repair)
        assert {b"held", b"leased:~"} <= set(names)
        for part in ("tasks", "held", "leased:~"):
            cursor, _, problems = desk.run("queue.check", part, 0, 100, repair)
            assert cursor == b"0"
            found += [
                (kind.decode(), task_id.decode(), mended) for kind, task_id, _, mended in problems
            ]
        return sorted(found)

    wrong = [("lease that ended and its session still knows", "kept"), ("lease that ended and its session still knows", "none"),
             ("lease that its session does not know", "lost")]  # fmt: skip
    assert look(0) == [(*problem, 0) for problem in wrong]
    assert look(1) == [(*problem, 1) for problem in wrong]
    assert look(0) == []
    assert desk.run("queue.session_release", A, 100) == [3, 0]


def test_the_doctor_brings_back_a_sessions_task_that_lies_nowhere(desk: Any) -> None:
    desk.put("a")
    take(desk, A)
    desk.client.zrem(f"{desk.prefix}:leased:~", "a")
    desk.run("queue.check", "tasks", 0, 100, 1)
    assert desk.state("a") == "ready"
    assert desk.client.exists(f"{desk.prefix}:held") == 0


def test_a_session_is_ended_though_nodes_are_attached_to_it(book: Book) -> None:
    book.begin()
    assert book("join", A, "bob", -1, 0, holder="n1.7") == 2
    assert book("enter", A, "q 0") == 1
    with pytest.raises(NotFound):
        book("stop", A, "ada", 500)
    with pytest.raises(NotFound):
        book("stop", B, "", 500)
    assert book("stop", A, "bob", 500) == book("stop", A, "", 500) == [b"q 0"]
    with pytest.raises(NotFound):
        book("join", A, "bob", -1, 0)
    with pytest.raises(NotFound):
        book("enter", A, "q 1")
    assert book("leave", A, 1) == -2, "it has to release what it knows of by itself"
    assert book("bury", 1, "n1", 7, 3) == [0, 0]
    assert book("due", 10) == []
    book.desk.now += 500
    assert book("due", 10) == [A.encode()], "who ended it has died: the leader goes on"
    assert book("end", A, -1) == [0, [b"q 0"]]
    assert book("forget", A) == 1
    book.client.hdel("{tw}:session:dead", "n1")
    assert book.keys() <= {"dead"}
