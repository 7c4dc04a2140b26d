"""
A node on servers that speak nothing but TLS, with a certificate authority of one's own: the primary
is killed, and it goes on.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster.harness import CALM, CLUSTER, Node, cluster, until
from support.providers import certificate
from support.store.clusters import ClusterSet, cluster_set
from support.store.sentinels import SentinelSet, sentinel_set

from tidewarden.store.redis_cluster.slots import slot_of

pytestmark = pytest.mark.timeout(600)

FIRM = "firm"


def kill_primary(servers: SentinelSet | ClusterSet) -> None:
    """That of the queue; there is a replica."""
    if isinstance(servers, SentinelSet):
        servers.kill_primary()
    else:
        servers.kill(servers.owner(slot_of(f"{{{CLUSTER}:{FIRM}:0}}")))


def store_at(node: Node) -> str:
    return str(node.http("/v1/status").json()["store"]["at"])


def put(node: Node, task_id: str) -> bool:
    try:
        return bool(node.say("Q.PUT", FIRM, "x", "ID", task_id) == task_id)
    except redis.RedisError:
        return False


@pytest.mark.parametrize("engine", ["sentinel", "cluster"])
def test_a_failover_by_tls(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine, and the embedded one has no TLS")
    (tmp_path / "servers").mkdir()
    pem = certificate.make(tmp_path)
    made: Any = (
        sentinel_set(binary, tmp_path / "servers", password="p@ss:w/d", certificate=pem)
        if engine == "sentinel"
        else cluster_set(
            binary, tmp_path / "servers", replicas=1, password="p@ss:w/d", certificate=pem
        )
    )
    with (
        made as servers,
        cluster(
            request,
            tmp_path / "nodes",
            nodes=1,
            extra=CALM,
            store__url=json.dumps(servers.url()),
            store__replicas="1",
        ) as nodes,
    ):
        node = nodes.leader()
        before = store_at(node)
        assert set(before.split()) == {one for one in before.split() if one.startswith("rediss://")}
        node.say("Q.CONFIG", FIRM, "SET", "durability", "quorum")
        for i in range(50):
            assert put(node, f"t{i}")
        got: list[Any] = []
        with node.client(socket_timeout=None) as taker:
            waiting = threading.Thread(
                target=lambda: got.append(
                    taker.execute_command("Q.TAKE", "WAIT", 200_000, "FROM", "calm")
                )
            )
            waiting.start()
            until(lambda: node.metric("tidewarden_resp_waiting") == 1)
            node.say("Q.CONFIG", FIRM, "SET", "durability", "one")  # there is no second replica
            kill_primary(servers)
            until(
                lambda: store_at(node) != before and put(node, "after"),
                what="the failover is followed",
            )
            until(lambda: node.say("Q.PUT", "calm", "x"), what="the waiting take's task")
            waiting.join(60)
        assert len(got) == 1
        ids = {task[1] for task in node.say("Q.TAKE", "COUNT", 1000, "FROM", FIRM)}
        assert ids == {*(f"t{i}" for i in range(50)), "after"}
        until(node.ready)
