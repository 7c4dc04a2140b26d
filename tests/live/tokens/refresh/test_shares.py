"""
What three nodes share: each does its part of the refreshes, whether accounts fall due one by one or
all at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster.harness import CALM, Cluster, serving, until
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread

pytestmark = pytest.mark.timeout(300)

ACCOUNTS, LIFE_S, MARGIN_S = 100, 5, 2.0
LEAST, MOST = 0.15, 0.55
"""
What is a node's part of three: a third, give or take. A node that does nothing has none, one that
does all has everything.
"""
REFRESHES = 300


class Sharing(Cluster):
    """Three nodes, each known to the provider by its URL."""

    def __init__(self, folder: Any, provider: ScriptedProvider) -> None:
        self._provider = provider
        super().__init__(folder)

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        text = super().config_text(name, store_port, **changes)
        return text + CALM + self._provider.toml(self._provider.port, MARGIN_S, path=f"/{name}")


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    with provider_in_thread(ACCOUNTS, LIFE_S) as made:
        yield made


@pytest.fixture(scope="module")
def sharing(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provider: ScriptedProvider,
) -> Iterator[Cluster]:
    """Their accounts fall due all the time."""
    with serving(request, Sharing(tmp_path_factory.mktemp("shares"), provider)) as made:
        for account, token in provider.seeds.items():
            assert (
                made.nodes["n0"].say(
                    "T.PUT", f"counted/{account}", f'{{"refresh_token": "{token}"}}'
                )
                == 1
            )
        yield made


def shares(provider: ScriptedProvider, since: int) -> dict[str, float]:
    """What part of the requests from the ``since``-th on each node had."""
    done = Counter(path.rpartition("/")[2] for path in provider.paths[since:])
    return {name: done[name] / done.total() for name in ("n0", "n1", "n2")}


def test_each_node_refreshes_its_part_of_what_falls_due(
    sharing: Cluster, provider: ScriptedProvider
) -> None:
    until(lambda: len(provider.log) >= ACCOUNTS, what="every account has been refreshed once")
    since, begun = len(provider.log), time.monotonic()
    until(lambda: len(provider.log) >= since + REFRESHES, 120, what=f"{REFRESHES} refreshes")
    found = shares(provider, since)
    print(f"{len(provider.log) - since} refreshes in {time.monotonic() - begun:.1f} s: {found}")
    assert all(LEAST <= part <= MOST for part in found.values()), found
    assert {one.answer for one in provider.log} == {"new"}, "no refresh was done twice"


def test_each_node_refreshes_its_part_of_many_at_once(
    sharing: Cluster, provider: ScriptedProvider
) -> None:
    since = len(provider.log)
    for _ in range(5):
        with sharing.nodes["n1"].client() as client, client.pipeline(transaction=False) as pipe:
            for account in provider.seeds:
                pipe.execute_command("T.REFRESH", f"counted/{account}")
            pipe.execute()
        begun = len(provider.log)
        until(
            lambda begun=begun: len(provider.log) >= begun + ACCOUNTS, 60, what="all are refreshed"
        )
    found = shares(provider, since)
    print(f"{len(provider.log) - since} refreshes: {found}")
    assert all(LEAST <= part <= MOST for part in found.values()), found
