"""Who is told what through the store: nodes that wait, and the sweeper."""

from __future__ import annotations

from typing import Any

import pytest
from support.inspect import shards_of

from tidewarden.errors import BadArg
from tidewarden.queue import TaskSpec


class Listener:
    """Hears what is published to nodes."""

    def __init__(self, desk: Any) -> None:
        self.ear = desk.client.pubsub(ignore_subscribe_messages=True)
        self.ear.psubscribe("*")
        self.ear.get_message(timeout=5)
        self.desk = desk

    def heard(self) -> list[tuple[str, str]]:
        """
        Everything since the last time, in order: (channel without the cluster's name, message).
        """
        self.desk.client.publish("end", "")
        found = []
        while True:
            message = self.ear.get_message(timeout=5)
            assert message is not None
            if message["channel"] == b"end":
                return found
            found.append(
                (message["channel"].decode().removeprefix("{tw}:"), message["data"].decode())
            )


@pytest.fixture
def listener(desk: Any) -> Any:
    made = Listener(desk)
    yield made
    made.ear.close()


def test_nodes_that_wait_are_told_once_that_something_is_ready(
    desk: Any, listener: Listener
) -> None:
    for holder in ("n1.1", "n2.1", "n1.1"):
        assert desk.take(wait=True, holder=holder) == []
    assert desk.record("waiting") == "n1.1 n2.1"
    desk.put("a")
    assert sorted(listener.heard()) == [("wake:n1.1", "q 0 ready"), ("wake:n2.1", "q 0 ready")]
    desk.put("b")
    assert listener.heard() == []
    assert desk.record("waiting") == ""


def test_who_asks_is_not_told(desk: Any, listener: Listener) -> None:
    desk.take(wait=True)
    desk.put("a")
    assert (listener.heard(), desk.woke) == ([], True)
    assert desk.record("waiting") == ""


def test_a_take_that_does_not_wait_or_finds_something_registers_nobody(
    desk: Any, listener: Listener
) -> None:
    desk.take(holder="n1.1")
    desk.put("a")
    desk.take(wait=True, holder="n2.1")
    desk.put("b")
    assert listener.heard() == []


def test_nodes_that_wait_and_the_sweeper_hear_of_something_earlier(
    desk: Any, listener: Listener
) -> None:
    desk.run("queue.sweep", 1, 10, holder="n9.1")
    desk.take(wait=True, holder="n1.1")
    desk.put("a", delay_ms=5000)
    assert sorted(listener.heard()) == [("wake:n1.1", "q 0 5000"), ("wake:n9.1", "q 0 5000")]
    desk.put("b", delay_ms=6000)
    assert listener.heard() == [], "not the earliest"
    desk.put("c", delay_ms=10)
    assert sorted(listener.heard()) == [("wake:n1.1", "q 0 10"), ("wake:n9.1", "q 0 10")]
    assert desk.record("waiting") == "n1.1", "it still waits"


def test_a_sweeper_that_waits_too_hears_both(desk: Any, listener: Listener) -> None:
    """A ready task wakes its consumers; the delayed one beside it is the sweep's."""
    desk.run("queue.sweep", 1, 10, holder="n9.1")
    desk.take(wait=True, holder="n9.1")
    desk.put_all(("a", b"", {}), ("b", b"", {"delay_ms": 700}))
    assert listener.heard() == [("wake:n9.1", "q 0 ready"), ("wake:n9.1", "q 0 700")]


def test_a_lease_is_something_that_happens(desk: Any, listener: Listener) -> None:
    desk.run("queue.sweep", 1, 10, holder="n9.1")
    desk.put("a")
    row = desk.take_one(lease_ms=800)
    assert listener.heard() == [("wake:n9.1", "q 0 800")]
    desk.ack(row)
    desk.put("b")
    desk.take_one(lease_ms=900)
    assert listener.heard() == [], "the old alarm is earlier; it is reset when it comes"
    desk.now += 800
    desk.run("queue.sweep", 1, 10, holder="n9.1")
    assert desk.next_ms == desk.now + 100


def test_nobody_is_told_in_a_paused_shard_until_it_resumes(desk: Any, listener: Listener) -> None:
    desk.run("queue.pause", -1)
    desk.take(wait=True, holder="n1.1")
    desk.put("a")
    assert (listener.heard(), desk.woke) == ([], False)
    desk.run("queue.pause", 0)
    assert listener.heard() == [("wake:n1.1", "q 0 ready")]


async def test_what_is_heard_of_other_nodes(node: Any, eventually: Any) -> None:
    """
    Queues.heard: wake-ups for shards, the next event for the sweep, a queue that is new or changed.
    """
    n0 = await node()
    nexts: list[tuple[str, int, int]] = []
    n0.queues.catalog.on_next = lambda *found: nexts.append(found)
    await n0.queues.admin.configure("q", {"shards": 2})
    shards = shards_of(n0.queues, "q")
    await eventually(lambda: ("q", 1, 0) in nexts)
    nexts.clear()
    wakes = [shard.wakes for shard in shards]
    n0.queues.wakeups.heard(b"{tw}:wake:n0.1", b"q 1 ready")
    n0.queues.wakeups.heard(b"{tw}:wake:n0.1", b"q 0 500")
    n0.queues.wakeups.heard(b"{tw}:wake:n0.1", b"q 0 -3")
    n0.queues.wakeups.heard(b"{tw}:wake:n0.1", b"q 7 ready")
    n0.queues.wakeups.heard(b"{tw}:wake:n0.1", b"unknown 0 ready")
    n0.queues.wakeups.heard(b"{tw}:wake:n0.1", b"unknown 3 40")
    assert [shard.wakes for shard in shards] == [wakes[0], wakes[1] + 1]
    assert nexts == [("q", 0, 500), ("q", 0, 0), ("unknown", 3, 40)]


async def test_a_new_queue_is_made_known_with_all_its_shards(node: Any, eventually: Any) -> None:
    """The leader learns of every shard, also of those that nothing has happened in yet."""
    n0, n1 = await node("n0"), await node("n1")
    nexts: list[tuple[str, int, int]] = []
    n0.queues.catalog.on_next = lambda *found: nexts.append(found)
    await n1.queues.put("fresh", TaskSpec())
    await eventually(lambda: ("fresh", 0, 0) in nexts)
    await n1.queues.admin.configure("wide", {"shards": 16})
    await eventually(lambda: {("wide", n, 0) for n in range(16)} <= set(nexts))


async def test_a_holder_that_is_none_takes_nothing(node: Any) -> None:
    n0 = await node()
    n0.queues.catalog.holder = "-"
    with pytest.raises(BadArg):
        await n0.queues.take(n0.queues.open_session(), ["q"])
