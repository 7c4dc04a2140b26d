"""
One of three hosts is left. What its own copy can answer is answered, and marked; what needs a
majority is refused; both in time, whatever is asked.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError
from support.cluster.harness import START_S, Node, until
from support.cluster.several import all_in_sync, serving_nodes, start

from tidewarden.config.settings import Store
from tidewarden.store.embedded.credentials import DAEMON, StoreCredentials

pytestmark = pytest.mark.timeout(400)

IN_TIME_S = Store().commit_ms / 1000 + 2.5
"""``store.commit_ms``, and a margin for a busy machine that is still far from five seconds more."""
PROVIDER = """
[providers.shop]
token_url = "http://127.0.0.1:9/token"
client_id = "c"
auth = "none"
"""
GRANT = json.dumps({"refresh_token": "r1", "access_token": "a1", "expires_in": 3600})
OF_OTHERS = [
    ("Q.PUT", "others", "x", "ID", "o2"),
    ("Q.TAKE", "FROM", "others"),
    ("Q.ACK", "others", "o1", 1),
    ("Q.DELETE", "others", "o1"),
    ("Q.PAUSE", "others"),
    ("Q.CONFIG", "others"),
    ("Q.STATS", "mails", "MAXSTALE", 1),
    ("Q.PEEK", "mails", "m9"),
    ("Q.PEEK", "mails", "STATE", "buried"),
    ("T.PUT", "shop/b", GRANT),
    ("T.GET", "shop/b"),
    ("T.GET", "shop/a", "NEWER", 1),
    ("T.REFRESH", "shop/c"),
    ("L.ACQUIRE", "job", 1000),
    ("L.PEEK", "job"),
    ("L.LIST",),
    ("S.PUT", "tick", "EVERY", 60_000, "others", "x"),
]
"""What a majority alone can say, or do."""


def ask(node: Node, *words: Any) -> Any:
    """What a node answers in time, maps as maps; an error as its line."""
    began_s = time.monotonic()
    try:
        with node.client(protocol=3, socket_timeout=30) as client:
            said = client.execute_command(*words)
    except ResponseError as error:
        said = str(error)
    took_s = time.monotonic() - began_s
    assert took_s < IN_TIME_S, (words, took_s, said)
    return said


def get(node: Node, path: str, status: int = 200) -> Any:
    """Likewise by HTTP."""
    began_s = time.monotonic()
    answer = node.http(path)
    took_s = time.monotonic() - began_s
    assert took_s < IN_TIME_S, (path, took_s)
    assert answer.status_code == status, (path, answer.text)
    return answer.json() if "json" in answer.headers["Content-Type"] else answer.text


def own_store(node: Node, folder: Path) -> redis.Redis:
    """A connection to a node's own store, as the node looks at it."""
    password = StoreCredentials.of((folder / "cluster.key").read_text().strip()).daemon
    path = folder / node.name / "store" / "s"
    return redis.Redis(unix_socket_path=str(path), username=DAEMON, password=password)


def reads_near(node: Node, store: redis.Redis) -> bool:
    """Whether a read that may be old is answered from the node's own store."""

    def reads() -> int:
        return int(store.info("commandstats").get("cmdstat_fcall_ro", {}).get("calls", 0))

    before = reads()
    ask(node, "Q.STATS", "mails", "MAXSTALE", 3_600_000)
    return reads() > before


@pytest.fixture(params=["its own store was the primary", "another was"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Node, list[Node]]]:
    """The survivor, and those that are killed now, with their stores."""
    with serving_nodes(tmp_path, extra=PROVIDER) as made:
        status = all_in_sync(made)
        primary = made[str(status["primary"])]
        others = [node for node in made.values() if node is not primary]
        survivor = primary if request.param.startswith("its own") else others[0]
        for queue, task in (("mails", "m1"), ("mails", "m2"), ("others", "o1")):
            survivor.say("Q.PUT", queue, task, "ID", task)
        for account in ("shop/a", "shop/c"):
            survivor.say("T.PUT", account, GRANT.replace("r1", account))
        assert ask(survivor, "T.GET", "shop/a")[4] == "fresh"
        assert "stale_ms" not in ask(survivor, "Q.STATS", "mails")
        with own_store(survivor, tmp_path) as store:
            until(lambda: reads_near(survivor, store), START_S, what="its copy's age is known")
        lost = [node for node in made.values() if node is not survivor]
        for node in lost:
            node.kill()
        yield survivor, lost


def is_alone(node: Node) -> bool:
    return "1 of 3 nodes is heard" in str(ask(node, "Q.PUT", "others", "x", "ID", "o2"))


def test_a_survivor_says_what_is_so(hosts: tuple[Node, list[Node]]) -> None:
    survivor, lost = hosts
    # Nobody knows yet that a majority is gone: what is asked now waits for it, or for its own copy.
    with ThreadPoolExecutor(2 * len(OF_OTHERS)) as threads:
        at_once: list[Callable[[], Any]] = [
            *(functools.partial(ask, survivor, *words) for words in OF_OTHERS),
            functools.partial(ask, survivor, "Q.STATS", "mails"),
            functools.partial(ask, survivor, "T.GET", "shop/a"),
            functools.partial(get, survivor, "/v1/overview"),
        ]
        for asked in [threads.submit(one) for one in at_once]:
            asked.result()
    until(lambda: is_alone(survivor), START_S, what="it knows that it is alone")
    for words in OF_OTHERS:
        said = str(ask(survivor, *words))
        assert said.startswith("NOQUORUM"), (words, said)
    answered_by_its_copy(survivor)
    answered_by_itself(survivor)
    start(lost[:1])
    until(survivor.ready, START_S, what="it serves again")
    until(lambda: ask(survivor, "T.GET", "shop/a")[4] == "fresh", START_S, what="it is current")
    until(lambda: survivor.say("Q.PUT", "mails", "x", "ID", "m3"), START_S, what="it is put")
    stats = ask(survivor, "Q.STATS", "mails")
    assert (stats["total"], "stale_ms" in stats) == (3, False)
    assert "stale_ms" not in ask(survivor, "T.STATS")["shop"]


def answered_by_its_copy(node: Node) -> None:
    """Each with the mark: how old it may be."""
    stats = ask(node, "Q.STATS", "mails")
    assert (stats["total"], stats["stale_ms"] > 0) == (2, True)
    assert ask(node, "Q.STATS")["mails"]["stale_ms"] > 0
    assert ask(node, "Q.REASONS", "mails")["stale_ms"] > 0
    task = ask(node, "Q.PEEK", "mails", "m1")
    assert (task["payload"], task["stale_ms"] > 0) == ("m1", True)
    page, _ = ask(node, "Q.PEEK", "mails", "STATE", "ready")
    assert [(one["id"], one["stale_ms"] > 0) for one in page] == [("m1", True), ("m2", True)]
    assert ask(node, "Q.STATS", "mails", "MAXSTALE", 3_600_000)["total"] == 2
    token = ask(node, "T.GET", "shop/a")
    assert (token[0], token[4]) == ("a1", "stale")
    assert ask(node, "T.MGET", "shop/a")[0][4] == "stale"
    shop = ask(node, "T.STATS")["shop"]
    assert (shop["total"] >= 2, shop["stale_ms"] > 0) == (True, True)
    assert ask(node, "T.PEEK", "shop/a")["stale_ms"] > 0
    assert ask(node, "T.WHY", "shop/a")["stale_ms"] > 0
    assert ask(node, "T.WHY", "shop")["stale_ms"] > 0
    assert {one["stale_ms"] > 0 for one in ask(node, "T.LIST")[0]} == {True}
    assert get(node, "/v1/forecast")["stale_ms"] > 0
    assert get(node, "/v1/queues/mails/buried/reasons")["stale_ms"] > 0
    assert get(node, "/v1/accounts/shop/a")["stale_ms"] > 0
    assert get(node, "/v1/accounts/shop/a/why")["stale_ms"] > 0
    assert {one["stale_ms"] > 0 for one in get(node, "/v1/tokens")["accounts"]} == {True}
    assert get(node, "/v1/queues/mails/stats")["stale_ms"] > 0
    assert get(node, "/v1/queues/mails")["stats"]["stale_ms"] > 0
    assert get(node, "/v1/queues/mails/tasks/m1")["stale_ms"] > 0
    assert {one["stale_ms"] > 0 for one in get(node, "/v1/queues")["queues"]} == {True}
    assert get(node, "/v1/providers")["providers"][0]["stale_ms"] > 0
    assert get(node, "/v1/tokens/shop/a")["state"] == "stale"
    assert 'tidewarden_queue_stale_seconds{queue="mails"}' in get(node, "/metrics")


def answered_by_itself(node: Node) -> None:
    """What it knows without any store: of itself, and of who is missing."""
    assert ask(node, "R.STATUS")["quorum"] is False
    assert "tidewarden_version" in str(ask(node, "INFO"))
    assert "1 of 3 nodes is heard" in json.dumps(get(node, "/health/ready", 503))
    assert get(node, "/v1/overview")["healthy"] is False
    for path in ("/v1/status", "/v1/alerts", "/v1/history", "/health/live", "/"):
        get(node, path)
