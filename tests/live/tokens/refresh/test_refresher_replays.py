"""
Requests of unknown outcome that are sent again in their place, and accounts that are asked for in
vain for too long.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.inspect import accounts_of
from support.providers.scripted_provider import answers, cut, rotate_and_cut, scripted_provider
from support.tokens import harness

from tidewarden import errors
from tidewarden.config.settings import Tokens as Settings
from tidewarden.tokens.events.events import START

GRACED: dict[str, Any] = {"rotation": "single_use", "grace_s": 300.0}
eventually, in_state = harness.eventually, harness.in_state


async def test_a_replay_that_saves_the_grant_waits_behind_nobody(
    valkey: Any, tmp_path: Path
) -> None:
    """
    A client of which little may be asked, a crowd that waits, and answers that are lost: none waits
    until its grace is over.
    """
    async with scripted_provider(grace_s=3600.0) as endpoint:
        endpoint.faults += [rotate_and_cut, rotate_and_cut]
        chosen = harness.provider(endpoint.url, client_rate=4.0, refreshers=1, **GRACED)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            names = [f"a{number}" for number in range(12)]
            for name in names:
                await side.tokens.put(f"p/{name}", {"refresh_token": f"{name}.0"})
            side.go()
            await eventually(lambda: len(endpoint.requests) == 12)
            await asyncio.gather(*(in_state(side, "fresh", f"p/{name}") for name in names))
    first = endpoint.order[0]
    # Twice lost, and sent again before anybody else was asked for.
    assert endpoint.order[:3] == [first] * 3
    assert sum(endpoint.requests.values()) == 14


async def test_one_that_is_in_vain_goes_back_before_others(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider(grace_s=3600.0) as endpoint:
        endpoint.faults += [rotate_and_cut, cut, cut]
        chosen = harness.provider(endpoint.url, client_rate=1.0, refreshers=1, **GRACED)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            shards = {
                f"a{number}": side.queues.catalog.shard_of("_tokens:p:c0", f"a{number}")
                for number in range(200)
            }
            # Each shard has an order.
            names = [name for name, shard in shards.items() if shard == shards["a0"]][:8]
            for name in names:
                await side.tokens.put(f"p/{name}", {"refresh_token": f"{name}.0"})
            side.go()
            await asyncio.gather(*(in_state(side, "fresh", f"p/{name}") for name in names))
    first = endpoint.order[0]
    assert endpoint.order[:3] == [first] * 3
    assert endpoint.requests[first] == 4
    # A moment later it goes before those that have waited for long.
    assert endpoint.order.index(first, 3) < len(endpoint.order) - 2, endpoint.order


async def test_a_grant_that_was_put_meanwhile_is_asked_with_and_not_the_old_one(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(grace_s=3600.0) as endpoint:
        endpoint.faults.append(cut)
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url, **GRACED)) as side:
            renew = accounts_of(side.tokens).renew

            async def late(*args: Any) -> bool:
                await side.tokens.put("p/a", {"refresh_token": "b.0"})
                return await renew(*args)

            accounts_of(side.tokens).renew = late  # type: ignore[method-assign]
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            assert (await in_state(side, "fresh"))["grant"] == 2
    assert endpoint.requests == {"a.0": 1, "b.0": 1}


async def test_nothing_is_sent_again_while_the_store_does_not_say_that_the_intent_runs_on(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(grace_s=3600.0) as endpoint:
        endpoint.faults.append(cut)
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url, **GRACED)) as side:
            asked: list[int] = []

            async def away(*_args: Any) -> bool:
                asked.append(endpoint.requests["a.0"])
                raise errors.StoreDown("not now")

            accounts_of(side.tokens).renew = away  # type: ignore[method-assign]
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(side, "fresh")
    assert asked == [1]
    assert endpoint.requests == {"a.0": 2}  # By its own next refresh.


async def test_what_is_asked_for_in_vain_stops_and_is_told_and_begun_anew_by_hand(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults += [answers(500, {"error": "server_error"})] * 100
        sections = {"tokens": Settings(give_up_s=1.0)}
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url), sections=sections
        ) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            stopped = await in_state(side, "stopped")
            assert (stopped["error"], stopped["next_ms"]) == ("unavailable", 0)

            async def told() -> list[str]:
                return [event.type for _, event in await side.tokens.events.after(START)]

            assert await eventually(told) == ["account.stopped"]
            asked = endpoint.requests["a.0"]
            assert asked <= 8
            endpoint.faults.clear()
            assert await side.tokens.refresh("p/a") == "queued"
            await in_state(side, "fresh")
            await eventually(lambda: endpoint.requests["a.0"] == asked + 1)
