"""
One record that nobody can read harms only itself: whatever a script does, the others go on, and the
doctor puts it away.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tidewarden.errors import Error, Internal

UUID = "0123456789abcdef" * 2
RNG = random.Random(9)
NEWER_BODY = b"\x00\xc8" + RNG.randbytes(40)  # a priority that there is not
# a flag that there is not
NEWER_TRIES = struct.pack(">dHHB6sB", 5.0, 1, 0, 8 + 1, bytes(6), 4) + b"n0.1" + b"more"
BODIES = {
    "one byte": b"\x07",
    "empty": b"",
    "cut short": b"\x80\x01\x8b",
    "a newer version's": NEWER_BODY,
}
BODIES |= {
    f"random {n}": b"\x7f" + RNG.randbytes(n * 9) for n in range(4)
}  # all flags, and hardly the length of a lane
TRIES = {
    "one byte": b"\x07",
    "empty": b"",
    "a newer version's": NEWER_TRIES,
    "no holder": NEWER_TRIES[:20],
    "NaN": b"\xff" * 60,
}
TRIES |= {f"random {n}": RNG.randbytes(n) for n in (19, 20, 40, 300)}
RECORDS = {"tasks": BODIES, "tries": TRIES}
STATES = (
    "ready",
    "expiring",
    "delayed",
    "retried",
    "leased",
    "shared",
    "buried",
    "head",
    "waiting",
    "running",
    "first",
    "busy",
)
OTHERS = ("before", "after")
FAR_MS = 10_000_000


def lay(desk: Any, name: str, state: str) -> int:
    """A task in that state, and its lease number where it has one."""
    fields: dict[str, Any] = {"payload": name.encode()}
    desk.now += 1
    if state in ("head", "waiting", "running"):
        fields["lane"] = f"lane of {name}"
        if state == "waiting":
            desk.put(f"{name}-head", **fields)
    if state in ("first", "busy"):
        fields["lane"] = "shared by all"
    if state == "expiring":
        fields["ttl_ms"] = FAR_MS // 2
    if state == "delayed":
        fields["delay_ms"] = 60_000
    desk.put(name, **fields)
    if state in ("ready", "expiring", "delayed", "head", "waiting", "first") or (
        state == "busy" and name != "it"
    ):
        return 0
    row = desk.take_one(task_id=name, session=UUID if state == "shared" else "")
    if state == "retried":
        desk.end(row, "fail", delay_ms=30_000)
    elif state == "buried":
        desk.end(row, "bury", reason="bad")
    return int(row.lease)


def flip(desk: Any, record: str, name: str, raw: bytes) -> None:
    """Overwrite a record of a task."""
    assert desk.client.hset(f"{desk.prefix}:{record}", name, raw) in (0, 1)


Act = Callable[[Any, int], Any]
ACTS: dict[str, Act] = {
    "take": lambda desk, lease: desk.take(10),
    "take one": lambda desk, lease: desk.take(1),
    "take it": lambda desk, lease: desk.take(1, task_id="it"),
    "batch": lambda desk, lease: desk.run("queue.batch", "ack", 3, "it", lease, "", "take", 5, 200, 10, 0, "0", ""),
    "ack": lambda desk, lease: desk.ack(("it", lease)),
    "put": lambda desk, lease: desk.put("it", b"new", if_exists="keep"),
    "replace": lambda desk, lease: desk.put("it", b"new", if_exists="replace"),
    "fail": lambda desk, lease: desk.end(("it", lease), "fail", delay_ms=0),
    "bury": lambda desk, lease: desk.end(("it", lease), "bury"),
    "touch": lambda desk, lease: desk.touch(("it", lease)),
    "update": lambda desk, lease: desk.run("queue.update", "it", 1, "p", 0, 0, 0, 0, -1, 0),
    "delete": lambda desk, lease: desk.run("queue.delete", "it", 0, 1),
    "delete held": lambda desk, lease: desk.run("queue.delete", "it", lease, 0),
    "kick": lambda desk, lease: desk.run("queue.kick", 10, "", "", 0),
    "kick it": lambda desk, lease: desk.run("queue.kick", 1, "it", "", 0),
    "kick by reason": lambda desk, lease: desk.run("queue.kick", 10, "", "b", 0),
    "kick by name": lambda desk, lease: desk.run("queue.kick", 10, "", "", 0, 0, 0, 0, "it", "before"),
    "delete_buried": lambda desk, lease: desk.run("queue.delete_buried", 10, "", "unreadable", 0, 0, 0, 1),
    "delete_buried it": lambda desk, lease: desk.run("queue.delete_buried", 10, "", "", 0, 0, 0, 0, "it"),
    "put_again": lambda desk, lease: desk.run("queue.put_again", "it", "p", 0),
    "reasons": lambda desk, lease: desk.run("queue.reasons", 10, 0),
    "read_buried": lambda desk, lease: desk.run("queue.read_buried", 10, 1000, 0, "", 0, 0),
    "read_buried it": lambda desk, lease: desk.run("queue.read_buried", 10, 1000, 0, "", 0, 0, 0, "it"),
    "peek it": lambda desk, lease: desk.run("queue.peek", "id", "it", ""),
    "peek named": lambda desk, lease: desk.run("queue.peek", "ids", 1000, "", "", "it", "before"),
    "peek": lambda desk, lease: [desk.run("queue.peek", one, 10, "") for one in ("delayed", "ready", "leased", "buried", "waiting")],
    "purge it": lambda desk, lease: [desk.run("queue.purge", one, 5, "it") for one in ("delayed", "ready", "leased", "buried", "waiting")],
    "wait": lambda desk, lease: desk.run("queue.wait", "it", 1, "before", 0),
    "leases_of": lambda desk, lease: desk.run("queue.leases_of", 0, 100),
    "lanes": lambda desk, lease: [desk.run("queue.lanes", one, "", 10) for one in ("heads", "waiting")],
    "session_release": lambda desk, lease: desk.run("queue.session_release", UUID, 10),
    "session_release by hand": lambda desk, lease: desk.run("queue.session_release", UUID, 10, "release"),
    "release_all": lambda desk, lease: desk.run("queue.release_all", 10),
    "release_all of one": lambda desk, lease: desk.run("queue.release_all", 10, "n0.1"),
    "reap": lambda desk, lease: desk.run("queue.reap", 1, "n0", 1, 10, holder="n1.1"),
    "stats": lambda desk, lease: desk.run("queue.stats"),
    "sweep": lambda desk, lease: desk.run("queue.sweep", 1, 100),
}  # fmt: skip


def later(desk: Any) -> None:
    """All that is to happen by itself has happened."""
    desk.now += FAR_MS
    for _ in range(3):
        desk.run("queue.sweep", 2, 100, holder="n2.1")


def doctor(desk: Any, *, repair: bool) -> list[tuple[str, str, int]]:
    """What the doctor finds in the shard: kind, id, whether it was put right."""
    problems, parts = desk.run("queue.check_record", int(repair))
    for part in parts:
        cursor = b"0"
        while True:
            cursor, _, more = desk.run("queue.check", part, cursor, 100, int(repair))
            problems += more
            if cursor == b"0":
                break
    return [(kind.decode(), name.decode(), mended) for kind, name, _, mended in problems]


def play(desk: Any, state: str, record: str, raw: bytes, act: str) -> None:
    """
    One script meets the record while others' tasks are beside it; then everything that can happen
    to these happens.
    """
    desk.client.flushdb()
    desk.now = 1_700_000_000_000
    if desk.views:
        desk.set_view(1)
    names = ["before", "it", "after"]
    if state in ("first", "busy"):
        names.sort(reverse=True)
        names.remove("it")
        names.insert(0, "it")
    leases = {name: lay(desk, name, state) for name in names}
    lease = leases["it"]
    flip(desk, record, desk.peek("it")["lane"] if record == "lanes" else "it", raw)
    if (
        act in ("update", "put_again") and record != "lanes"
    ):  # who asks to change the very task is told why not
        with pytest.raises(Internal, match=r"cannot be read: Q\.CHECK sets it aside"):
            ACTS[act](desk, lease)
    else:
        ACTS[act](desk, lease)
    audit_others(desk, record)
    for name in OTHERS:
        shown = desk.peek(name)
        assert shown["payload"] == name.encode(), (name, shown)
    later(desk)
    desk.run("queue.kick", 10, "before", "", 0)
    desk.run("queue.kick", 10, "after", "", 0)
    found = doctor(desk, repair=True)
    taken = set()
    for _ in range(6):
        rows = desk.take(10, holder="n3.1")
        assert len({row.id for row in rows} & set(OTHERS)) <= 1 or state not in (
            "first",
            "busy",
        ), "one of a lane at a time"
        assert not rows or all(desk.ack(*rows))
        taken |= {row.id for row in rows}
    assert set(OTHERS) <= taken, taken
    assert not {kind for kind, name, _ in found if name in OTHERS}, found
    desk.audit()
    rest = doctor(desk, repair=True)
    assert {kind for kind, _, _ in rest} <= {"unreadable task, set aside"}, rest
    mark_it(desk, raw, rest)


def audit_others(desk: Any, record: str) -> None:
    """
    The others lie in one place each, whatever is the matter with the one; a lane's record says what
    is next in it.
    """
    excused = {"lane that waits for nothing"} if record == "lanes" else set()
    found = doctor(desk, repair=False)
    about = {one for one in found if one[1] in OTHERS}
    assert {kind for kind, _, _ in about} <= excused, found


def mark_it(desk: Any, raw: bytes, found: list[tuple[str, str, int]]) -> None:
    """It was counted, and can be removed; ``found``: what the doctor says still."""
    counters = desk.run("queue.stats")[9]
    counted = dict(zip(counters[::2], counters[1::2], strict=True))
    if desk.client.hget(f"{desk.prefix}:tasks", "it") == raw:
        assert int(counted[b"unreadable"]) >= 1
        assert desk.peek("it")["reason"] == b"unreadable"
        assert found == [("unreadable task, set aside", "it", 0)]
        assert desk.run("queue.delete", "it", 0, 0) == 1
        found = doctor(desk, repair=False)
        desk.audit()
    assert found == []


LANES = {
    "one byte": b"\x07",
    "empty": b"",
    "NaN": b"\xff" * 16,
    "a newer version's": struct.pack(">dd", 1.5, 0),
    "cut short": bytes(16) + b"\x0b",
}
LANES |= {f"random {n}": RNG.randbytes(n) for n in (15, 17, 60)}


@pytest.mark.parametrize("state", ["head", "waiting", "running", "first", "busy"])
def test_a_lane_whose_record_nobody_can_read_goes_on(desk: Any, state: str) -> None:
    """One of it at a time as ever; counted, and found by the doctor."""
    for number, act in enumerate(ACTS):
        damage = list(LANES)[number % len(LANES)]
        try:
            play(desk, state, "lanes", LANES[damage], act)
        except Exception as error:
            error.add_note(f"{state}, {damage}, {act}")
            raise
    desk.client.flushdb()


def test_a_lane_that_nobody_can_read_is_found_counted_and_mended(desk: Any) -> None:
    for raw in LANES.values():
        desk.client.flushdb()
        desk.put("before", lane="l")
        desk.put("after", lane="l")
        desk.client.hset(f"{desk.prefix}:lanes", "l", raw)
        assert ("unreadable lane", "", 0) in doctor(desk, repair=False)
        doctor(desk, repair=True)
        assert doctor(desk, repair=True) == []
        desk.audit()
        counters = desk.run("queue.stats")[9]
        assert b"unreadable" in counters[::2]
        assert [row.id for row in desk.take(10)] == ["before"]
    desk.client.flushdb()


def test_strange_entries_of_the_delayed_index_hold_up_nobody(
    desk: Any, scripts_in_pieces: Any
) -> None:
    """Ids that are none, times that are none, and pieces in the directory that there are not."""
    desk.use(scripts_in_pieces)
    for junk, score in (
        (b"", "5"),
        (b"\xff\x00", "1.5"),
        (b"it", "inf"),
        (b"it", "-7"),
        (b"it", "0"),
        (b"it", "9007199254740991"),
        (b"x" * 300, "1e300"),
    ):
        for place in (
            ("delayed", "second", "pieces") if score in ("5", "1.5", "0") else ("delayed", "second")
        ):
            desk.client.flushdb()
            desk.now = 1_700_000_000_000
            names = [f"t{n:02}" for n in range(12)]
            desk.put_all(
                *((name, b"", {"delay_ms": 1000 + n * 10}) for n, name in enumerate(names))
            )
            desk.put("it", delay_ms=1055)
            pieces = [name.decode() for name in desk.client.zrange(f"{desk.prefix}:pieces", 0, -1)]
            key = f"delayed:{pieces[1]}" if place == "second" else place
            desk.client.zadd(f"{desk.prefix}:{key}", {junk: score})
            desk.put_all(
                *((f"{name}x", b"", {"delay_ms": 1050 + n}) for n, name in enumerate(names))
            )
            desk.run("queue.peek", "delayed", 100, "")
            desk.run("queue.purge", "delayed", 1, "t11x")
            desk.now += 500
            assert desk.run("queue.update", "t10x", 0, "", 1, 700, 0, 0, -1, 0) == 1
            if place == "pieces":
                doctor(desk, repair=True)
            desk.now += 10_000
            found = {row.id for _ in range(3) for row in desk.take(100)}
            assert {*names, *(f"{name}x" for name in names[:11])} <= found | {"t11x"}, (
                junk,
                score,
                place,
            )
            doctor(desk, repair=True)
            doctor(desk, repair=True)
            assert doctor(desk, repair=True) == [], (junk, score, place)
            desk.audit()
    desk.client.flushdb()


@pytest.mark.parametrize(
    "value",
    [
        b"nan",
        *(
            pytest.param(word, marks=pytest.mark.thorough)
            for word in (b"", b"x", b"\xff\x00", b"-inf", b"1e999")
        ),
    ],
)
def test_a_field_of_the_shards_record_that_is_no_number(desk: Any, value: bytes) -> None:
    """
    What cannot be done without is refused, and nothing is changed, until the doctor has been; the
    rest goes on at once.
    """
    refused, fields = set(), fill(desk)
    assert len(fields) > 25
    for field in fields:
        fill(desk)
        lease = max(row.lease for row in desk.take(1))
        desk.client.hset(f"{desk.prefix}:shard", field, value)
        before = desk.digest()
        said = go_on(desk)
        if said:
            assert f"cannot be read ({field})" in said
            assert desk.digest() == before
            refused.add(field)
            assert doctor(desk, repair=False) == [("unreadable field of the record", "", 0)]
            assert desk.digest() == before
        else:
            counters = desk.run("queue.stats")[9]
            assert counters[counters.index(b"unreadable") + 1] >= b"1", field
        doctor(desk, repair=True)
        assert doctor(desk, repair=True) == [], field
        desk.audit()
        assert lease < min(row.lease for row in desk.take(1)), (
            f"lease numbers only grow, whatever becomes of {field}"
        )
        desk.run("queue.kick", 10, "", "", 0)
        found = set()
        for _ in range(4):
            later(desk)
            rows = desk.take(1000)
            assert not rows or all(desk.ack(*rows))
            found |= {row.id for row in rows}
        assert {
            "ready",
            "delayed",
            "leased",
            "waiting",
            "waiting-head",
            "buried",
            "t299",
        } <= found, field
    assert refused == {
        "n",
        "view",
        "stored",
        "cut",
        "later",
        "buckets",
        "format",
        "accounts",
        "locks",
    } & set(fields)
    desk.client.flushdb()


def go_on(desk: Any) -> str:
    """Some verbs; the refusal that they met."""
    try:
        desk.put("new")
        desk.take(1)
        desk.run("queue.sweep", 1, 10)
        desk.run("queue.stats")
    except Error as error:
        return str(error)
    return ""


def fill(desk: Any) -> list[str]:
    """A shard with a task in every state; which fields of its record are numbers."""
    desk.client.flushdb()
    desk.now = 1_700_000_000_000
    if desk.views:
        desk.set_view(1)
    desk.configure(
        lease_ms=5000,
        history=3,
        late_share=7,
        capacity=1000,
        lane_limit=1,
        lane_rate=1000,
        lane_burst=2,
        layout=0,
    )
    for name, state in (
        ("delayed", "delayed"),
        ("leased", "leased"),
        ("ready", "ready"),
        ("buried", "buried"),
        ("waiting", "waiting"),
    ):
        lay(desk, name, state)
    desk.put("more", ttl_ms=1000)
    desk.put_all(*((f"t{n:03}", b"", {"delay_ms": 70_000 + n}) for n in range(300)))
    desk.put("done")
    desk.ack(desk.take_one(task_id="done"))
    desk.run("queue.pause", 50)
    desk.now += 60
    desk.run("queue.wait", "ready", 1)
    desk.run("queue.sweep", 1, 10)
    record = desk.client.hgetall(f"{desk.prefix}:shard")
    texts = {"pris", "sweeper", "holders", "waiting", "dead", "roomless", "reach", "order"}
    return sorted(
        ({name.decode() for name in record} | {"buckets", "accounts", "locks"}) - texts - {""}
    )


EVERY = 3
"""One damage in so many goes with an act in a state; others with the next."""


def check_all(desk: Any, state: str, record: str, damages: Callable[[int], list[str]]) -> None:
    for number, act in enumerate(ACTS):
        for damage in damages(number):
            try:
                play(desk, state, record, RECORDS[record][damage], act)
            except Exception as error:
                error.add_note(f"{state}, {record}, {damage}, {act}")
                raise
    desk.client.flushdb()


@pytest.mark.parametrize("record", sorted(RECORDS))
@pytest.mark.parametrize("state", STATES)
def test_a_record_that_nobody_can_read_harms_only_itself(
    desk: Any, state: str, record: str
) -> None:
    """One act in four, others in each state, as an extract of the next test."""
    names, turn = list(RECORDS[record]), STATES.index(state) + 2 * list(RECORDS).index(record)

    def damages(number: int) -> list[str]:
        return [] if (number + turn) % 4 else [names[(number + turn // 4) % len(names)]]

    check_all(desk, state, record, damages)


@pytest.mark.thorough
@pytest.mark.parametrize("record", sorted(RECORDS))
@pytest.mark.parametrize("state", STATES)
def test_whatever_stands_there_and_whatever_is_done(desk: Any, state: str, record: str) -> None:
    """Each act meets each state, and both of them each damage, though not all three together."""
    names, turn = list(RECORDS[record]), STATES.index(state)
    check_all(desk, state, record, lambda number: names[(number + turn) % EVERY :: EVERY])


@pytest.mark.soak
@pytest.mark.parametrize("record", sorted(RECORDS))
@pytest.mark.parametrize("state", STATES)
def test_whatever_stands_there_and_whatever_is_done_together(
    desk: Any, state: str, record: str
) -> None:
    check_all(desk, state, record, lambda _: list(RECORDS[record]))


@pytest.mark.parametrize("record", sorted(RECORDS))
@pytest.mark.parametrize("waiter", [0, 1])
def test_a_lock_that_nobody_can_read_is_held_until_its_lease_ends(
    desk: Any, record: str, waiter: int
) -> None:
    for raw in RECORDS[record].values():
        desk.client.flushdb()
        desk.now = 1_700_000_000_000
        held = desk.run(
            "queue.lock_acquire",
            *(w for name in ("before", "it") for w in (name, "=k", 1000, 1, 0, "")),
        )
        flip(desk, record, "it", raw)
        both = [w for name in ("it", "before") for w in (name, "=other", 1000, 1, waiter, "")]
        assert desk.run("queue.lock_acquire", *both, holder="n1.1") == [[0, 0, desk.now + 1000]] * 2
        renewed = desk.run("queue.lock_renew", "it", held[1][0], 1000, "before", held[0][0], 5000)
        assert [row[0] for row in renewed] == [0, held[0][1]], "nobody can show that it is his"
        desk.now += 1500
        mine, theirs = desk.run("queue.lock_acquire", *both, holder="n1.1")
        assert mine[0] > held[1][0], "it is free, and its fence has grown"
        assert theirs == [0, 0, desk.now + 3500]
        assert desk.run("queue.lock_release", "it", mine[0], "before", held[0][0]) == [
            mine[1],
            held[0][1],
        ]
        assert doctor(desk, repair=False) == []
        desk.audit()


def test_a_take_that_waits_is_told_of_what_stands_behind(desk: Any) -> None:
    """What it was to get came to nothing: it may not sleep before a task that is ready."""
    for name in ("it", "after"):
        lay(desk, name, "ready")
    flip(desk, "tasks", "it", b"")
    assert desk.take(1, wait=True) == []
    assert desk.woke
    assert [row.id for row in desk.take(1, wait=True)] == ["after"]


def test_what_is_readable_again_is_kicked(desk: Any) -> None:
    """By a newer version, say: the record stood as it was all the time."""
    lay(desk, "it", "ready")
    raw = desk.client.hget(f"{desk.prefix}:tasks", "it")
    flip(desk, "tasks", "it", NEWER_BODY)
    assert desk.ids() == []
    assert desk.run("queue.kick", 10, "", "unreadable", 0) == [0, -1]
    flip(desk, "tasks", "it", raw)
    assert desk.run("queue.kick", 10, "", "unreadable", 0) == [1, -1]
    assert desk.ids() == ["it"]
