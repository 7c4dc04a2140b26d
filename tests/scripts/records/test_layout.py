"""
Records in small hashes and a delayed index in pieces: every verb on many of them, and what they
cost.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidewarden.errors import BadArg
from tidewarden.store.preflight import LISTPACKS


@pytest.fixture
def pieces(desk: Any, scripts_in_pieces: Any) -> Any:
    """A desk whose layout cuts after a few entries."""
    desk.use(scripts_in_pieces)
    return desk


def keys(desk: Any, kind: str) -> set[str]:
    return {
        key.decode()[len(desk.prefix) + 1 :]
        for key in desk.client.scan_iter(f"{desk.prefix}:{kind}*", count=1000)
    }


def one_step(desk: Any, rng: random.Random, held: list[Any]) -> None:
    """Some verb, with a third of the tasks due at the same few moments."""
    name = f"t{rng.randrange(40)}"
    act = rng.randrange(12)
    if act < 4:
        delay_ms = rng.choice([0, 100, 100, 300, rng.randrange(2000)])
        desk.put(
            name,
            b"x" * rng.randrange(50),
            delay_ms=delay_ms,
            ttl_ms=rng.choice([0, 0, delay_ms + 900]),
            if_exists="keep",
            priority=rng.randrange(2),
        )
    elif act == 4:
        held += desk.take(rng.randrange(1, 5), lease_ms=rng.choice([50, 500]))
    elif act == 5 and held:
        desk.ack(held.pop(rng.randrange(len(held))))
    elif act == 6 and held:
        desk.end(
            held.pop(),
            rng.choice(["release", "fail", "loss"]),
            rng.choice([-1, 0, 100, 700]),
            "why",
        )
    elif act == 7:
        desk.run("queue.delete", name, 0, 0)
    elif act == 8:
        desk.run(
            "queue.update",
            name,
            0,
            "",
            rng.choice([0, 1]),
            rng.choice([5, 100, 900]),
            0,
            0,
            rng.choice([-1, 1]),
            0,
        )
    elif act == 9:
        held += desk.take(task_id=name)
    elif act == 10:
        desk.run("queue.purge", "delayed", 2, *([name, "t1"] if rng.random() < 0.5 else []))
    else:
        desk.now += rng.choice([1, 60, 400])
        desk.run("queue.sweep", 1, rng.choice([1, 3, 200]), holder="n9.1")


@pytest.mark.parametrize("seed", range(4))
def test_every_verb_on_many_pieces(pieces: Any, seed: int) -> None:
    rng, held = random.Random(seed), []  # type: ignore[var-annotated]
    for n in range(250):
        one_step(pieces, rng, held)
        if n % 10 == 0:
            pieces.audit()
            ids = [row[0] for row in pages(pieces, rng.randrange(1, 6))]
            assert len(ids) == len(set(ids)) == pieces.counts()["delayed"]


def pages(desk: Any, size: int) -> list[Any]:
    """The delayed tasks, page by page."""
    rows, cursor = [], b""
    while True:
        page, cursor = desk.run("queue.peek", "delayed", size, cursor)
        rows += page
        if not cursor:
            return rows


def test_pages_are_in_order_also_while_pieces_go(pieces: Any) -> None:
    rng = random.Random(7)
    dues = {f"t{n}": rng.choice([500, rng.randrange(1, 5000)]) for n in range(60)}
    for name, due in dues.items():
        pieces.put(name, delay_ms=due)
    shown = [row[0].decode() for row in pages(pieces, 7)]
    assert [dues[name] for name in shown] == sorted(dues.values())
    first, cursor = pieces.run("queue.peek", "delayed", 10, "")
    last = first[-1][0].decode()
    for name, due in dues.items():
        if due <= dues[last] + 300:  # the piece in which the page ended goes, and some behind it
            pieces.run("queue.delete", name, 0, 0)
    rest, _ = pieces.run("queue.peek", "delayed", 1000, cursor)
    assert [row[0].decode() for row in rest] == [
        name for name in shown if dues[name] > dues[last] + 300
    ]
    with pytest.raises(BadArg, match="cursor"):
        pieces.run("queue.peek", "delayed", 10, "ready:5 1 x")


def test_they_grow_and_when_all_is_gone_nothing_is_left(pieces: Any) -> None:
    for n in range(50):
        pieces.put(f"t{n}", delay_ms=1000 + n // 7)
    assert len(keys(pieces, "tasks")) > 10
    assert len(keys(pieces, "delayed")) > 4
    assert pieces.counts()["delayed"] == 50
    pieces.now += 2000
    assert len(pieces.ids()) == 50
    assert keys(pieces, "delayed") | keys(pieces, "pieces") == set()
    pieces.now += 60_000
    rows = pieces.take(1000)
    assert pieces.ack(*rows) == [1] * 50
    assert keys(pieces, "tasks") == set()
    assert (
        pieces.record("buckets"),
        pieces.record("stored"),
        pieces.record("cut"),
        pieces.record("later"),
    ) == (
        "1",
        "0",
        "0",
        "0",
    )
    pieces.put("again", delay_ms=5)
    assert keys(pieces, "tasks") == {"tasks"}


def test_tasks_of_one_due_time_stay_together(pieces: Any) -> None:
    pieces.put_all(*((f"t{n}", b"", {"delay_ms": 100}) for n in range(40)))
    assert keys(pieces, "delayed") == {"delayed"}
    for n in range(40, 60):
        pieces.put(f"t{n}", delay_ms=50 + n)
    assert pieces.client.zcard(f"{pieces.prefix}:delayed") <= 12
    pieces.now += 100
    assert len(pieces.ids()) == 51


def test_what_is_put_together_goes_to_the_pieces_of_its_times(pieces: Any) -> None:
    """Also where far more pieces lie between two tasks than are looked up at once."""
    rng = random.Random(5)
    dues: dict[str, int] = {}
    for together in (90, 2, 60, 2, 3, 200, 2):
        new = {f"t{len(dues) + i}": rng.randrange(1, 5000) for i in range(together)}
        pieces.put_all(*((name, b"", {"delay_ms": due}) for name, due in new.items()))
        dues |= new
        pieces.audit()
        shown = [dues[row[0].decode()] for row in pages(pieces, 9)]
        assert shown == sorted(dues.values())
    assert len(keys(pieces, "delayed")) > 60


def test_a_retrys_own_time_is_known(pieces: Any) -> None:
    for n in range(30):
        pieces.put(f"t{n}")
    rows = pieces.take(30)
    for n, row in enumerate(rows):
        pieces.end(row, "release" if n % 2 else "fail", delay_ms=1000 + 10 * n)
    pieces.audit()
    for n, row in enumerate(rows):
        assert pieces.peek(row.id)["at_ms"] == pieces.now + 1000 + 10 * n
    assert pieces.run("queue.update", rows[4].id, 1, "new", 0, 0, 0, 0, -1, 0) == 1
    assert pieces.peek(rows[4].id)["at_ms"] == pieces.now + 1040, (
        "a change that does not speak of time leaves it"
    )
    assert pieces.run("queue.update", rows[5].id, 0, "", 1, 77, 0, 0, -1, 0) == 1
    assert pieces.peek(rows[5].id)["at_ms"] == pieces.now + 77
    assert pieces.run("queue.delete", rows[6].id, 0, 0) == 1
    assert pieces.state(rows[6].id) == ""


def to_format_1(client: Any, prefix: str) -> None:
    """
    Make a shard what the former version would have written: each priority in its record, numbered
    pieces with scores from 0.
    """
    for name in client.scan_iter(f"{prefix}:tasks*"):
        for task_id, raw in client.hgetall(name).items():
            if raw[0] & 128:
                client.hset(name, task_id, bytes([raw[0] & 127, 50]) + raw[1:])
    for number, (piece, low) in enumerate(
        client.zrange(f"{prefix}:pieces", 1, -1, withscores=True), 1
    ):
        entries = client.zrange(f"{prefix}:delayed:{piece.decode()}", 0, -1, withscores=True)
        client.zadd(
            f"{prefix}:delayed:{number}", {task_id: low + score for task_id, score in entries}
        )
        client.delete(f"{prefix}:delayed:{piece.decode()}")
        client.zrem(f"{prefix}:pieces", piece)
        client.zadd(f"{prefix}:pieces", {str(number): low})
        client.hset(f"{prefix}:shard", "cut", number)
    client.hset(f"{prefix}:shard", "format", 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_shard_of_the_former_format_is_read_and_goes_with_its_tasks(
    pieces: Any, seed: int
) -> None:
    rng, held = random.Random(seed), []  # type: ignore[var-annotated]
    for n in range(60):
        pieces.put(
            f"o{n}",
            b"x" * n,
            delay_ms=rng.choice([300, rng.randrange(1, 3000)]),
            priority=rng.choice([50, 7]),
        )
    ids = [row[0] for row in pages(pieces, 9)]
    to_format_1(pieces.client, pieces.prefix)
    assert [row[0] for row in pages(pieces, 7)] == ids
    pieces.audit()
    for n in range(60):
        one_step(pieces, rng, held)
        if n % 10 == 0:
            pieces.audit()
    assert pieces.record("format") == "2"
    pieces.now += 100_000
    pieces.ids()
    assert keys(pieces, "delayed") | keys(pieces, "pieces") == set()


def test_pieces_that_grow_at_their_end_stay_full(pieces: Any) -> None:
    for n in range(60):
        pieces.put(f"t{n}", delay_ms=100 + n)
    sizes = [
        pieces.client.zcard(f"{pieces.prefix}:{name}") for name in sorted(keys(pieces, "delayed"))
    ]
    assert sum(sizes) == 60
    assert len(sizes) <= 16, "cut in halves there would be more than twenty"


@pytest.mark.thorough
def test_with_the_settings_of_an_embedded_store_each_key_is_packed(desk: Any) -> None:
    """
    A task of 136 bytes: 190 bytes in all, as benchmarks/memory.py measures; here only that nothing
    is unpacked.
    """
    for name, value in LISTPACKS.items():
        desk.client.config_set(name, value)
    rng = random.Random(3)
    for n in range(0, 3000, 100):
        desk.put_all(
            *(
                (f"{n + i:016x}", b"x" * 136, {"delay_ms": rng.randrange(3_600_000)})
                for i in range(100)
            )
        )
    names = [
        key
        for kind in ("tasks", "delayed")
        for key in desk.client.scan_iter(f"{desk.prefix}:{kind}*", count=1000)
    ]
    assert len(names) > 50
    assert {desk.client.object("encoding", name) for name in names} <= {b"listpack", b"ziplist"}
    desk.audit()
