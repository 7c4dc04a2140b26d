"""TTL: a task that nobody took in time is buried, wherever it waited, and by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg
from tidewarden.queue import TaskSpec


def reason(desk: Any, name: str) -> bytes:
    shown = desk.peek(name)
    return shown["reason"] if shown["state"] == b"buried" else b"not buried"


@pytest.mark.parametrize("delay_ms", [0, 60])
def test_it_is_buried_when_its_time_has_passed(desk: Any, delay_ms: int) -> None:
    desk.put("a", ttl_ms=100, delay_ms=delay_ms)
    desk.put("forever")
    desk.now += 99
    desk.run("queue.sweep", 1, 100, holder="n9.1")
    assert desk.state("a") == "ready"
    assert desk.next_ms == desk.now + 1
    desk.now += 1
    assert desk.ids() == ["forever"]
    assert reason(desk, "a") == b"expired"
    assert desk.record("ttls") == "0"


def test_the_sweep_buries_it_where_nobody_takes(desk: Any) -> None:
    desk.put("a", ttl_ms=100, delay_ms=50)
    assert desk.next_ms == desk.now + 50
    desk.now += 200
    assert desk.run("queue.sweep", 1, 100, holder="n9.1")[0] == 1
    assert reason(desk, "a") == b"expired"
    assert desk.next_ms == -1


def test_a_taken_one_does_not_expire_until_it_waits_again(desk: Any) -> None:
    desk.put("a", ttl_ms=100)
    row = desk.take_one(lease_ms=5000)
    desk.now += 1000
    desk.run("queue.sweep", 1, 100, holder="n9.1")
    assert desk.state("a") == "leased"
    assert desk.end(row, "release") == 1
    assert desk.next_ms <= desk.now
    assert desk.ids() == []
    assert reason(desk, "a") == b"expired"


def test_one_that_was_taken_in_time_is_acked(desk: Any) -> None:
    desk.put("a", ttl_ms=100)
    row = desk.take_one(task_id="a")
    desk.now += 1000
    assert desk.ack(row) == [1]


def test_more_than_a_script_buries_are_still_not_handed_out(desk: Any) -> None:
    desk.put_all(*((f"t{n:03}", b"", {"ttl_ms": 100}) for n in range(300)))
    desk.put("forever", priority=99)
    desk.now += 100
    assert set(desk.ids(10)) <= {"forever"}
    assert desk.next_ms <= desk.now, "whoever waits looks again at once"
    while desk.next_ms == desk.now:
        desk.run("queue.sweep", 1, 100, holder="n9.1")
    assert desk.counts()["buried"] == 300


def test_a_kick_forgets_the_ttl(desk: Any) -> None:
    desk.put("a", b"body", ttl_ms=100)
    desk.now += 100
    assert desk.ids() == []
    assert desk.run("queue.kick", 1, "a", "", 0) == [1, -1]
    desk.now += 10_000
    assert desk.take_one().payload == b"body"


def test_all_options_of_a_record_together(desk: Any) -> None:
    """The TTL lies behind the others in the record, and before the payload."""
    for own in (False, True):
        desk.put(
            f"a{own}",
            b"body",
            own=own,
            ttl_ms=900_000,
            delay_ms=5,
            within_ms=70_000,
            lease_ms=7,
            attempts=3,
            backoff_ms=9,
        )
        shown = desk.peek(f"a{own}")
        assert shown["payload"] == b"body"
        assert (shown["expires_ms"], shown["lease_ms"], shown["attempts_max"], shown["backoff_ms"]) == (
            desk.now + 900_000, 7, 3, 9,
        )  # fmt: skip


def test_replace_update_and_delete(desk: Any) -> None:
    desk.put("a", ttl_ms=100)
    desk.put("a", ttl_ms=500, if_exists="replace")
    assert desk.run("queue.update", "a", 0, "", 1, 60, 0, 0, -1, 0) == 1
    assert desk.peek("a")["expires_ms"] == desk.now + 500
    desk.audit()
    desk.put("a", if_exists="replace")
    desk.audit()
    desk.put("b", ttl_ms=100)
    assert desk.run("queue.delete", "b", 0, 0) == 1
    desk.now += 1000
    assert desk.ids() == ["a"]


def test_a_full_store_lets_expired_tasks_be_buried(desk: Any) -> None:
    desk.put("a", ttl_ms=100)
    desk.client.config_set("maxmemory", "1")
    try:
        desk.now += 100
        assert desk.ids() == []
        assert desk.state("a") == "buried"
    finally:
        desk.client.config_set("maxmemory", "0")


async def test_who_waits_for_the_task_is_told(node: Any) -> None:
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="a", ttl_ms=50))
    take = n0.queues.take(n0.queues.open_session(), ["other", "q"], wait_ms=60_000, task_id="b")
    assert await n0.queues.wait("q", "a", 60_000) == ("buried", b"expired")
    n0.queues.end_waits()
    assert await take == []


@pytest.mark.parametrize(
    "fields", [{"ttl_ms": -1}, {"ttl_ms": 2**42}, {"ttl_ms": 5, "delay_ms": 5}]
)
def test_what_may_not_be_put(fields: dict[str, int]) -> None:
    with pytest.raises(BadArg, match="TTL"):
        TaskSpec(**fields).check(10)


def test_the_queues_ttl_counts_for_puts_that_name_none_from_when_they_are_due(desk: Any) -> None:
    desk.configure(ttl_ms=100)
    desk.put("plain")
    desk.put("later", delay_ms=60)
    desk.put("own", ttl_ms=1000)
    desk.put("with-options", priority=3)
    desk.now += 100
    desk.run("queue.sweep", 1, 100, holder="n9.1")
    assert [reason(desk, name) for name in ("plain", "with-options")] == [b"expired"] * 2
    assert [desk.state(name) for name in ("later", "own")] == ["ready", "ready"]
    desk.now += 60
    assert desk.ids() == ["own"]
    assert reason(desk, "later") == b"expired"
    desk.configure(ttl_ms=0)
    desk.put("for-ever")
    desk.now += 10_000
    assert desk.ids() == ["for-ever"]
