"""A dropped queue stays so: producers, a node that was away and the next primary change nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.cluster.harness import START_S, TROUBLE, Node, until
from support.cluster.several import all_in_sync, serving_nodes

pytestmark = pytest.mark.timeout(300)
TASKS = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with serving_nodes(tmp_path_factory.mktemp("dropped")) as found:
        all_in_sync(found)
        yield found


def refusal(node: Node, *words: str) -> str:
    """What a request is refused with; empty: it is not."""
    try:
        node.say(*words)
    except redis.ResponseError as error:
        return str(error)
    return ""


def put_until_refused(node: Node, queue: str, said: dict[str, str]) -> None:
    """Put into a queue until that is refused for good, and note how."""
    while node.name not in said:
        try:
            found = refusal(node, "Q.PUT", queue, "x")
        except TROUBLE:
            continue
        if found and not found.startswith(("NOQUORUM", "STOREDOWN")):
            said[node.name] = found


def test_producers_on_every_node_are_told_and_bring_nothing_back(made: dict[str, Node]) -> None:
    said: dict[str, str] = {}
    producers = [
        threading.Thread(target=put_until_refused, args=(node, "busy", said))
        for node in made.values()
    ]
    for one in producers:
        one.start()
    try:
        n0 = made["n0"]
        until(lambda: "busy" in n0.say("Q.LIST") and n0.say("Q.STATS", "busy"), START_S)
        assert n0.say("Q.DROP", "busy", "FORCE") >= 0
        for one in producers:
            one.join(START_S)
    finally:
        for name in made:
            said.setdefault(name, "it was never refused")
    assert {text.partition(";")[0] for text in said.values()} == {
        "NOTFOUND the queue busy was dropped"
    }
    for node in made.values():
        assert "busy" not in node.say("Q.LIST")


def test_neither_a_node_that_stood_still_nor_the_next_primary_has_it(
    made: dict[str, Node], tmp_path: Path
) -> None:
    for node in made.values():
        node.say("Q.PUT", "old", "x", "ID", node.name)
        for n in range(TASKS // len(made)):
            node.say("Q.PUT", "old", "x", "ID", f"{node.name}-{n}")
    primary = made[all_in_sync(made)["primary"]]
    away, asked = [node for node in made.values() if node is not primary]
    away.freeze()
    try:
        until(lambda: asked.say("Q.DROP", "old", "FORCE") == TASKS + len(made), START_S)
    finally:
        away.thaw()
    assert refusal(away, "Q.PUT", "old", "late").startswith("NOTFOUND the queue old was dropped")
    all_in_sync(made)
    primary.kill()
    until(
        lambda: all(node.status()["primary"] not in ("", primary.name) for node in (away, asked)),
        START_S,
        what="another primary",
    )
    for node in (away, asked):
        until(lambda node=node: "old" not in node.say("Q.LIST"), START_S)
        assert refusal(node, "Q.PUT", "old", "late").startswith("NOTFOUND the queue old was")
    primary.start()
    until(primary.ready, START_S)
    all_in_sync(made)
    assert "old" not in primary.say("Q.LIST")
    assert refusal(primary, "Q.TAKE", "FROM", "old").startswith("NOTFOUND the queue old was")
    asked.say("Q.CONFIG", "old", "SET", "lease_ms", "5000")
    assert asked.say("Q.PUT", "old", "new", "ID", "n0") == "n0"
    assert [row[3] for row in primary.say("Q.TAKE", "FROM", "old")] == ["new"]
