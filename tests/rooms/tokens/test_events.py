"""Events are kept in the store, in order, and seen by every node."""

from __future__ import annotations

import asyncio
from typing import Any

from support.tokens.harness import tell

from tidewarden.config.load import means
from tidewarden.tokens.events.events import START, Events


async def test_what_one_node_tells_another_reads(node: Any) -> None:
    made = await node()
    one, two = (Events(made.link.call, "t", made.queues.put, {}, 100) for _ in range(2))
    assert await two.last() == START
    waiting = asyncio.create_task(one.wait(20))
    await asyncio.sleep(0)
    for number in range(5):
        await tell(one, "account.dead", "p", f"a{number}", error="invalid_grant")
    await asyncio.wait_for(waiting, 20)
    found = await two.after(START, 3)
    assert [event.data["account"] for _, event in found] == ["p/a0", "p/a1", "p/a2"]
    rest = await two.after(found[-1][0])
    assert [event.data["account"] for _, event in rest] == ["p/a3", "p/a4"]
    assert await two.last() == rest[-1][0]
    assert (await two.has(rest[-1][0]), await two.has("1-1")) == (True, False)
    assert rest[0][1].timestamp.endswith("Z")
    assert one.told == {("p", "account.dead"): 5}


async def test_an_event_of_the_cluster_names_no_provider(node: Any) -> None:
    made = await node()
    events = Events(made.link.call, "t", made.queues.put, {}, 100)
    await events.tell_of_cluster("e1", "store.added", 86_400_000, {"node": "n1"})
    ((_, event),) = await events.after(START)
    assert (event.type, event.timestamp) == ("store.added", "1970-01-02T00:00:00.000Z")
    assert event.data == {"cluster": "t", "node": "n1"}


def test_patterns() -> None:
    assert means(("account.*",), "account.dead")
    assert means(("*",), "provider.breaker_open")
    assert not means(("account.dead", "provider.*"), "account.recovered")
    assert not means((), "account.dead")
