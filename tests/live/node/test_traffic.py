"""
Who sends what, over three nodes of which the first has three processes: added up, tapped, and with
a node away.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.cluster.harness import Cluster, Node, until
from support.cluster.node_processes import everywhere, serving_processes


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with serving_processes(request, tmp_path_factory.mktemp("traffic"), nodes=3) as cluster:
        yield cluster


def asked(node: Node, *words: str) -> dict[str, Any]:
    with node.client(protocol=3) as client:
        found: dict[str, Any] = client.execute_command("R.TRAFFIC", *words, "OVER", "start")
    return found


def requests(report: dict[str, Any], verb: str, name: str) -> tuple[int, int, int]:
    """How many there were, and their bytes and errors."""
    return next(
        (
            (row["requests"], row["bytes_in"], row["errors"])
            for row in report["rows"]
            if (row["verb"], row["name"]) == (verb, name)
        ),
        (0, 0, 0),
    )


def test_all_processes_of_all_nodes_are_added_up(made: Cluster) -> None:
    sent = 0
    n0, n1, n2 = (made.nodes[name] for name in ("n0", "n1", "n2"))
    with everywhere(n0) as clients:
        for client in clients:
            client.execute_command("Q.PUT", "far", "x" * 1000)
            sent += 1
    own = sent
    for node in (n1, n2):
        with node.client() as client:
            for _ in range(10):
                client.execute_command("Q.PUT", "far", "x" * 1000)
                sent += 1
            with pytest.raises(redis.ResponseError, match="NOTHELD"):
                client.execute_command("Q.ACK", "far", "nobody", 7)
    size = len("Q.PUT") + len("far") + 1000
    until(
        lambda: requests(asked(n1, "TOP", "100"), "Q.PUT", "far") == (sent, sent * size, 0),
        what="every put is counted once",
    )
    found = asked(n2, "TOP", "100")
    assert found["nodes"] == ["n0", "n1", "n2"]
    assert found["unreachable"] == []
    assert requests(found, "Q.ACK", "far")[0] == requests(found, "Q.ACK", "far")[2] == 2
    alone = asked(n1, "TOP", "100", "NODE", "n0")
    assert requests(alone, "Q.PUT", "far")[0] == own
    body = n1.http("/v1/traffic?by=queue&over=start&top=1&sort=bytes").json()
    assert (body["rows"][0]["name"], body["rows"][0]["requests"]) == ("far", sent + 2)
    assert body["nodes"] == found["nodes"]
    refused = n1.http("/v1/traffic?by=shoe")
    assert refused.status_code == 400
    assert "by" in refused.json()["message"]


@pytest.mark.parametrize("through", [0, -1])
def test_a_tap_shows_what_every_process_answers(made: Cluster, through: int) -> None:
    """Also where the one who taps is connected to a further process."""
    n0 = made.nodes["n0"]
    with everywhere(n0, protocol=3) as clients:
        tapping = clients.pop(through)
        connection: Any = tapping.connection
        connection.send_command("R.TAP", "QUEUE", "tapped", "MS", 3000)
        lines: list[dict[str, Any]] = []
        stop = threading.Event()

        def put() -> None:
            while not stop.wait(0.05):
                for client in clients:
                    client.execute_command("Q.PUT", "tapped", "secret payload")
                    client.execute_command("Q.PUT", "another", "x")

        putting = threading.Thread(target=put)
        putting.start()
        try:
            while isinstance(found := connection.read_response(push_request=True), list):
                assert "secret" not in found[1]
                lines.append(json.loads(found[1]))
        finally:
            stop.set()
            putting.join()
        assert found["shown"] == len(lines) > len(clients)
        assert found["matched"] == found["shown"] + found["dropped"]
        assert {(line["verb"], line["name"]) for line in lines} == {("Q.PUT", "tapped")}
        assert tapping.ping()
        tapping.execute_command("R.TAP", "MS", 1)


def test_events_of_a_tap_over_http(made: Cluster) -> None:
    n0 = made.nodes["n0"]
    with n0.client() as client:
        putting = threading.Timer(0.5, client.execute_command, ("Q.PUT", "streamed", "x"))
        putting.start()
        text = n0.http("/v1/tap?queue=streamed&ms=2500").text
        putting.join()
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    assert json.loads(lines[0][6:])["name"] == "streamed"
    assert json.loads(lines[-1][6:]) == {"matched": 1, "shown": 1, "dropped": 0}
    assert "event: end" in text


def test_a_node_that_is_away_is_named(made: Cluster) -> None:
    n0, n2 = made.nodes["n0"], made.nodes["n2"]
    n2.kill()
    found = asked(n0)
    assert found["nodes"] == ["n0", "n1"]
    assert [lost["node"] for lost in found["unreachable"]] == ["n2"]
    assert found["unreachable"][0]["why"]
    assert found["rows"]
