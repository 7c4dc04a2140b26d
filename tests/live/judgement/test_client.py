"""A real authorization server refuses our client, for all of its accounts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cluster.judged import LIFE_S, passed, trial
from support.providers.reverse_proxy import Rule
from support.tokens import harness

pytestmark = pytest.mark.timeout(400)


async def test_a_secret_that_is_wrong_is_probed_one_at_a_time_and_told_once(
    dot: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    """django-oauth-toolkit itself refuses the client; when the secret is right again, all go on."""
    server = dot(accounts=60, life=LIFE_S)
    grants = server.seeds
    everybody = [who for who, _ in grants]
    async with trial(server, valkey, tmp_path, "p", refreshers=16) as made:
        await made.put("p", grants)
        await made.refreshed("p", everybody)
        made.proxy.rules["p"] = [Rule(wrong_secret=True)]

        async def told() -> bool:
            return "provider.breaker_open" in await made.events("p")

        await harness.eventually(told)
        await passed(2)  # What was under way has ended.
        since = made.proxy.mark()
        await passed(10)
        probes = made.proxy.asked("p", since)
        assert made.proxy.most_open["p"] == 1, "one probe at a time"
        assert len(probes) <= 12
        made.proxy.rules["p"].clear()
        mended = made.proxy.mark()
        await made.refreshed("p", everybody, mended)
        assert (await made.events("p")).count("provider.breaker_open") == 1
        await made.check_grants("p", everybody)
        await made.accepted_again("p", everybody)
