"""
The doctor on lanes: every kind of damage done to them by hand is found, and mended when asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidewarden.queue import TaskSpec

P = "{tw:q:0}"
Damage = Callable[[Any, dict[str, bytes]], Any]


async def full_house(n: Any) -> dict[str, bytes]:
    """
    Lane `busy` runs and waits, `idle` has a head and one behind it, `slow` waits for its rate;
    entries of those that wait.
    """
    queues = n.queues
    await queues.admin.configure("q", {"lane_rate": "0.001"})
    session = queues.open_session()
    for lane in ("busy", "idle", "slow"):
        for number in range(3):
            await queues.put(
                "q", TaskSpec(id=f"{lane}{number}", lane=lane, ttl_ms=600_000 * (number == 1))
            )
    for lane in ("busy", "slow"):
        (task,) = await queues.take(session, ["q"], task_id=f"{lane}0")
        if lane == "slow":
            await queues.ack(session, "q", [(task.id, task.lease)])
    entries = await n.link.call("ZRANGE", f"{P}:waiting", 0, -1)
    return {entry[entry[0] + 14 :].decode(): entry for entry in entries}


DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "a waiting one lost": ("task without an index entry", lambda call, at: call("ZREM", f"{P}:waiting", at["busy1"]), "busy1"),
    "a waiting one moved": ("index entry without a task", lambda call, at: call("ZADD", f"{P}:waiting", 0, at["busy1"] + b"x"), "busy1"),
    "waiting and delayed": ("task in two places", lambda call, at: call("ZADD", f"{P}:delayed", 2**41, "busy1"), "busy1"),
    "a head lost": ("lane whose head is not ready", lambda call, at: call("ZREM", f"{P}:ready:50", "idle0"), "idle1"),
    "a head unknown": ("ready without being the head of its lane", lambda call, at: call("HDEL", f"{P}:lanes", "idle"), "idle1"),
    "the last of a lane lost": ("task without an index entry", lambda call, at: call("ZREM", f"{P}:waiting", at["idle2"]), "idle2"),
    "a lease not counted": ("lease that its lane does not count", lambda call, at: call("ZREM", f"{P}:running", b"\4busybusy0"), "busy0"),
    "a lease counted still": ("lease that ended and its lane still counts", lambda call, at: call("ZADD", f"{P}:running", 0, b"\4idlex"), "idle0"),
    "a slot lost": ("lane that is never forgotten", lambda call, at: call("ZREM", f"{P}:slots", "slow"), "slow1"),
    "lanes forgotten": ("lanes not in the record", lambda call, at: call("HSET", f"{P}:shard", "lanes", "0"), "slow1"),
    "slots forgotten": ("slots not in the record", lambda call, at: call("HSET", f"{P}:shard", "slots", "0"), "slow1"),
    "a body lost": ("index entry without a task", lambda call, at: call("HDEL", f"{P}:tasks", "idle1"), "idle2"),
    "a TTL lost": ("TTL index", lambda call, at: call("ZREM", f"{P}:expiring", "busy1"), "busy1"),
}  # fmt: skip


@pytest.mark.parametrize("damage", sorted(DAMAGES))
async def test_damage_is_found_and_mended(node: Any, damage: str) -> None:
    n = await node()
    entries = await full_house(n)
    assert (await n.queues.consistency.check("q"))["problems"] == 0
    kind, harm, task_id = DAMAGES[damage]
    await harm(n.link.call, entries)
    assert kind in (await n.queues.consistency.check("q"))["found"]
    repaired = await n.queues.consistency.check("q", repair=True)
    assert repaired["repaired"] == repaired["problems"] > 0
    again = await n.queues.consistency.check("q", repair=True)
    assert again["problems"] == 0, again["found"]
    assert (await n.queues.admin.peek("q", task_id))["lane"] in ("busy", "idle", "slow")


async def test_a_lane_that_nothing_would_wake_is_found(node: Any) -> None:
    n = await node()
    for number in range(2):
        await n.queues.put("q", TaskSpec(id=f"a{number}", lane="a"))
    await n.link.call("ZREM", f"{P}:ready:50", "a0")
    for name, member in (("lanes", "a"), ("tasks", "a0")):
        await n.link.call("HDEL", f"{P}:{name}", member)
    await n.link.call("HINCRBY", f"{P}:shard", "stored", -1)
    assert (await n.queues.consistency.check("q"))["found"] == {"lane that waits for nothing": 1}
    assert (await n.queues.consistency.check("q", repair=True))["repaired"] == 1
    assert (await n.queues.admin.peek("q", "a1"))["state"] == "ready"
