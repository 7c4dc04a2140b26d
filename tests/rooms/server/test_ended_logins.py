"""Logins to the console that were ended: at every node, and while the store is away."""

from __future__ import annotations

from typing import Any

from support.manual_clock import ManualClock

from tidewarden.errors import StoreDown
from tidewarden.server.console.ended_logins import LOOK_S, EndedLogins


def at(link: Any, clock: ManualClock) -> EndedLogins:
    return EndedLogins(clock, link.call, "t")


async def test_a_login_that_was_ended_at_one_node_is_ended_at_all(node: Any) -> None:
    link = (await node()).link
    clock = ManualClock()
    one, two = at(link, clock), at(link, clock)
    ends_s = clock.unix_ms() // 1000 + 100
    assert not await two.has("a")
    assert await one.end("a", ends_s)
    assert await one.has("a")
    await clock.advance(LOOK_S)
    assert await two.has("a")
    assert not await two.has("b")
    assert await at(link, clock).has("a")


async def test_what_has_ended_by_itself_is_forgotten(node: Any) -> None:
    link = (await node()).link
    clock = ManualClock()
    one = at(link, clock)
    now_s = clock.unix_ms() // 1000
    for number in range(5):
        await one.end(f"a{number}", now_s + 10)
    await clock.advance(20)
    await one.end("b", now_s + 100)
    assert await link.call("ZCARD", "{t}:ended-logins") == 1
    assert not await one.has("a0")
    assert await one.has("b")


async def test_while_the_store_is_away_what_is_known_counts() -> None:
    clock = ManualClock()

    class Away:
        calls = 0

        async def call(self, *words: str) -> Any:
            self.calls += 1
            raise StoreDown("away")

    away = Away()
    one = at(away, clock)
    assert not await one.end("a", clock.unix_ms() // 1000 + 100)
    assert await one.has("a")
    before = away.calls
    for _ in range(10):
        assert not await one.has("b")
    assert away.calls == before + 1
