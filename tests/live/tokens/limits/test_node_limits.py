"""
A host's rate: shared by its providers, the lower one counts, and by all nodes, as they need it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.inspect import is_eager, pools_of, takes_of
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness

from tidewarden.config.load import Provider
from tidewarden.tokens.limits.node_limits import HOSTS_QUEUE, HostRateLimits, host_of

NOW_MS = 1_800_000_000_000


async def test_a_host_is_asked_no_more_than_it_may_be(valkey: Any, tmp_path: Path) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/token"), go=False
    ) as side:

        async def ask(
            at_ms: int, requests: int, verb: str = "ask", host: str = "h", rate: int = 10_000
        ) -> list[int]:
            args = (verb, host, rate, requests)
            return list(
                await side.queues.scripts.run(
                    "tokens.host", HOSTS_QUEUE, 0, args, now_ms=NOW_MS + at_ms
                )
            )

        assert await ask(0, 4) == [4, 0]
        assert await ask(0, 50) == [6, 0]  # a second's worth
        assert await ask(0, 50, host="other") == [10, 0]
        assert await ask(0, 5) == [0, 100]
        assert await ask(250, 5) == [2, 0]
        assert await ask(250, 5) == [0, 50]
        # What is not sent others may send; but no more than a second's worth is ever saved up.
        await ask(250, 2, "back")
        assert await ask(250, 5) == [2, 0]
        await ask(300, 500, "back")
        assert await ask(300, 500) == [10, 0]
        assert await ask(60_000, 500) == [10, 0]
        # After the clock has stepped back nobody waits until it is where it was.
        assert await ask(-3_600_000, 5) == [0, 100]
        assert await ask(-3_600_000 + 200, 5) == [2, 0]
        # Less than one a second.
        assert await ask(0, 5, host="slow", rate=100) == [1, 0]
        assert await ask(0, 5, host="slow", rate=100) == [0, 10_000]
        assert await ask(10_000, 5, host="slow", rate=100) == [1, 0]
        for rate in range(200, 1000, 7):  # Those that no double tells to the microsecond, too.
            name = f"slow {rate}"
            assert ((await ask(0, 5, host=name, rate=rate))[0], rate) == (1, rate)
            granted, wait_ms = await ask(0, 5, host=name, rate=rate)
            assert (granted, (await ask(wait_ms, 5, host=name, rate=rate))[0], rate) == (0, 1, rate)
        with pytest.raises(Exception, match="what is asked of a host: none"):
            await ask(0, 1, "none")


async def test_one_node_may_use_what_the_others_leave(valkey: Any, tmp_path: Path) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/token"), go=False
    ) as side:
        one, two = (
            HostRateLimits(side.queues.scripts.run, lambda: 3),
            HostRateLimits(side.queues.scripts.run, lambda: 3),
        )
        dear = Provider(name="a", token_url="https://As.example/t", host_rate=0.02)
        more = Provider(name="b", issuer="https://as.example/tenant", host_rate=0.01)
        free = Provider(name="c", token_url="https://other.example/t")
        for hosts in (one, two):
            for provider in (dear, more, free):
                hosts.add(provider)
        assert host_of(dear) == host_of(more) == "as.example"
        assert [one.rated(provider) for provider in (dear, more, free)] == [True, True, False]
        assert await one.ask(free, 500) == (500, 0.0)
        assert await one.ask(dear, 7) == (1, 0.0)
        granted, wait_s = await two.ask(more, 7)
        assert granted == 0
        assert 0 < wait_s <= 100
        await one.give_back(dear, 1)
        assert (await two.ask(more, 7))[0] == 1


async def test_a_client_that_waits_keeps_nothing_of_the_rate_from_another(
    valkey: Any, tmp_path: Path
) -> None:
    """Of one request in fifty seconds; and whoever finds a task and may not send it hands it on."""
    async with scripted_provider() as endpoint:
        rate = {"host_rate": 0.02}
        idle, busy = (
            harness.provider(endpoint.url, **rate),
            replace(harness.provider(endpoint.url, **rate), name="q"),
        )
        async with harness.node(valkey, tmp_path, idle, more=[busy]) as side:
            await harness.eventually(
                lambda: all(takes_of(pool) for pool in pools_of(side.tokens).values())
            )
            await side.tokens.put("q/a", {"refresh_token": "a.0"})
            await harness.eventually(lambda: endpoint.requests["a.0"])
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            await harness.eventually(
                lambda: is_eager(pools_of(side.tokens)["p"])
            )  # It has had the task.

            async def handed_on() -> bool:
                stats = await side.queues.admin.stats("_tokens:p:c0")
                return (stats["ready"], stats["leased"]) == (1, 0)

            await harness.eventually(handed_on)
    assert endpoint.requests["b.0"] == 0
