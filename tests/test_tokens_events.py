"""Events are kept in the store, in order, and seen by every node."""

from __future__ import annotations

import asyncio
from typing import Any

from tidewarden.clock import SystemClock
from tidewarden.config import means
from tidewarden.errors import StoreDown
from tidewarden.tokens.events import START, Events


async def test_what_one_node_tells_another_reads(node: Any, eventually: Any) -> None:
    made = await node()
    one, two = (Events(made.link.call, "t", made.queues.put, {}, SystemClock(), 100) for _ in range(2))
    assert await two.last() == START
    running = asyncio.create_task(one.run())
    for number in range(5):
        one.emit("account.dead", "p", f"a{number}", error="invalid_grant")
    await asyncio.wait_for(one.wait(20), 20)
    await eventually(lambda: not one._waiting)
    found = await two.after(START, 3)
    assert [event.data["account"] for _, event in found] == ["p/a0", "p/a1", "p/a2"]
    rest = await two.after(found[-1][0])
    assert [event.data["account"] for _, event in rest] == ["p/a3", "p/a4"]
    assert await two.last() == rest[-1][0]
    assert (await two.has(rest[-1][0]), await two.has("1-1")) == (True, False)
    assert rest[0][1].timestamp.endswith("Z")
    assert one.told == {("p", "account.dead"): 5}
    running.cancel()


async def test_while_the_store_is_away_events_wait(eventually: Any) -> None:
    calls: list[Any] = []

    async def call(*words: Any) -> Any:
        calls.append(words)
        if len(calls) == 1:
            raise StoreDown("gone")

    class Soon(SystemClock):
        async def sleep_until(self, until: float) -> None:
            await asyncio.sleep(0)

    events = Events(call, "t", None, {}, Soon(), 100)  # type: ignore[arg-type]
    running = asyncio.create_task(events.run())
    events.emit("account.dead", "p", "a")
    events.emit("account.dead", "p", "b")
    await eventually(lambda: len(calls) == 3)
    assert calls[0] == calls[1] != calls[2]
    running.cancel()


def test_patterns() -> None:
    assert means(("account.*",), "account.dead")
    assert means(("*",), "provider.breaker_open")
    assert not means(("account.dead", "provider.*"), "account.recovered")
    assert not means((), "account.dead")
