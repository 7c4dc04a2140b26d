"""
Answers are lost after the server has given them, while it asks for patience now and then, and a
node is killed: no grant is.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cluster.harness import CALM, START_S, Node, cluster, until
from support.cluster.judged import GONE
from support.cluster.refresh_stage import listed, say_all
from support.providers.provider_settings import section
from support.providers.reverse_proxy import ReverseProxy, Rule, reverse_proxy

pytestmark = pytest.mark.timeout(400)

ACCOUNTS = 40
"""Few, for the server is a slow one: it is not to be the machine that fails."""
LIFE_S = 30
"""Short enough for some rounds of refreshes, and longer than a slow server takes for one."""
GRACE_S = 20
SCENE_S = 16.0
FAULTS = (
    # A gateway that has given up, behind which the request was processed.
    Rule(504, share=0.1, passed=True),
    Rule(cut=True, share=0.05, passed=True),
    Rule(delay_s=1.0, share=0.05),
    Rule(429, "", {"Retry-After": "1"}, share=0.02),
)


def toml(server: Any, proxy: ReverseProxy) -> str:
    settings = {"rotation": "single_use", "grace_s": GRACE_S, "timeout_s": 8.0, "refreshers": 4}
    return section("p", server, f"{proxy.url}/p/token", **settings)


def generations(node: Node) -> dict[str, int]:
    return {account: row["generation"] for account, row in listed(node).items()}


def refresh_all(node: Node) -> None:
    """Each account is refreshed once more."""
    before = generations(node)
    say_all(node, [("T.REFRESH", account) for account in before])

    def done() -> bool:
        return all(after > before[account] for account, after in generations(node).items())

    until(done, START_S, 0.1, what="every account is refreshed")


def test_what_was_lost_within_its_grace_is_had_again(
    request: pytest.FixtureRequest, dot: Callable[..., Any], tmp_path: Path
) -> None:
    """
    django-oauth-toolkit gives a used token's pair again for twenty seconds; after that its use ends
    the grant.
    """
    server = dot(accounts=ACCOUNTS, grace=GRACE_S, life=LIFE_S, family=True)
    with (
        reverse_proxy(server) as proxy,
        cluster(request, tmp_path, extra=CALM + toml(server, proxy)) as nodes,
    ):
        node = nodes.leader()
        say_all(
            node,
            [
                ("T.PUT", f"p/{who}", json.dumps({"refresh_token": token}))
                for who, token in server.seeds
            ],
        )
        # Some are refreshed again before the last are for the first time.
        until(lambda: min(generations(node).values()) >= 2, what="every account is refreshed")
        proxy.rules["p"] = [replace(rule) for rule in FAULTS]
        begun = proxy.mark()
        until(lambda: proxy.answers("p", begun)[504] >= 2, what="some answers are lost")
        victim = next(one for one in nodes.alive() if one is not node)
        victim.kill()
        time.sleep(SCENE_S)
        until(lambda: proxy.answers("p", begun)[504] >= 5, what="more answers are lost")
        victim.start()
        proxy.rules["p"].clear()
        until(victim.ready, 60, what="the killed one is back")
        refresh_all(node)
        states = Counter(row["state"] for row in listed(node).values())
        stats = server.stats()
        lost = sum(
            int(one.metric("tidewarden_tokens_lost_rotations_total")) for one in nodes.alive()
        )
        print(
            f"{proxy.answers('p', begun)}; {states}; live {stats['live']}; shown again"
            f" {stats['reuse']}; lost {lost}"
        )
        assert not states.keys() & set(GONE)
        assert stats["live"] == ACCOUNTS
        assert lost == 0
        refresh_all(node)
        assert server.stats()["live"] == ACCOUNTS
