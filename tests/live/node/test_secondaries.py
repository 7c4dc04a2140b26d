"""
A node of three processes on one port: what each of them serves, and what is left of one that is
killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.cluster.harness import TROUBLE, Cluster, Node, until
from support.cluster.node_processes import PROCESSES, everywhere, processes, serving_processes
from support.run.processes import alive

from tidewarden.client.replies import mapped


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two nodes, the first of three processes."""
    with serving_processes(request, tmp_path_factory.mktemp("fronts"), nodes=2) as cluster:
        yield cluster


@pytest.fixture
def n0(made: Cluster) -> Node:
    made.heal()
    return made.nodes["n0"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_every_process_serves_every_verb(n0: Node, protocol: int) -> None:
    with everywhere(n0, protocol=protocol) as clients:
        for number, client in enumerate(clients):
            assert (
                client.execute_command("Q.PUT", "all", "x", "ID", f"{protocol}-{number}")
                == f"{protocol}-{number}"
            )
            assert (
                client.execute_command("S.PUT", f"s{protocol}", "EVERY", 3_600_000, "tick", "x") > 0
            )
            assert mapped(client.execute_command("R.STATUS"))["pid"] == n0.pid
            assert client.execute_command("T.STATS") in ([], {})
            with pytest.raises(redis.ResponseError, match="MINTTL"):
                client.execute_command("T.GET", "none/none", "MINTTL", "soon")
            assert len(client.execute_command("S.LIST")) == 1 + (protocol == 3)
        row = clients[0].execute_command("Q.TAKE", "COUNT", 1, "FROM", "all")[0]
        assert clients[-1].execute_command("Q.ACK", "all", row[1], row[2]) in ("OK", True)
        rows = clients[-1].execute_command("Q.TAKE", "COUNT", 1000, "FROM", "all")
        assert len(rows) == len(clients) - 1
        assert clients[0].execute_command(
            "Q.ACK", "all", *(word for row in rows for word in row[1:3])
        ) == [1] * len(rows)


def test_their_figures_are_added_up(n0: Node) -> None:
    with everywhere(n0) as clients:
        before = n0.metric("tidewarden_resp_requests_total", "ECHO")
        for client in clients:
            assert client.echo("x") == "x"
        until(lambda: n0.metric("tidewarden_resp_requests_total", "ECHO") - before == len(clients))
        assert n0.metric("tidewarden_resp_connections") >= len(clients)
        infos = {client.info("clients")["connected_clients"] for client in clients}
        assert all(count >= len(clients) for count in infos)


def test_what_a_killed_process_held_is_anothers_and_nobody_else_suffers(n0: Node) -> None:
    with everywhere(n0) as clients:
        n0.say("Q.PURGE", "held")
        for number in range(len(clients)):
            n0.say("Q.PUT", "held", number, "LEASE", 600_000)
        for client in clients:
            assert len(client.execute_command("Q.TAKE", "FROM", "held")) == 1
        victim = max(processes(n0), key=lambda process: int(process["connections"]))
        os.kill(victim["pid"], signal.SIGKILL)
        living, lost = [], 0
        for client in clients:
            try:
                client.ping()
                living.append(client)
            except TROUBLE:
                lost += 1
        assert lost, "the counts that named the victim are a second old at most"
        found: list[Any] = []
        while len(found) < lost:
            rows = living[0].execute_command(
                "Q.TAKE", "COUNT", lost - len(found), "WAIT", 50_000, "FROM", "held"
            )
            assert rows, f"{len(found)} of {lost} came back"
            found += rows
        assert n0.say("Q.TAKE", "FROM", "held") == [], "what the living hold is theirs"
        until(
            lambda: [p["process"] for p in processes(n0) if p["ready"]] == [1, 2], what="it is back"
        )
        assert victim["pid"] not in [process["pid"] for process in processes(n0)]
        assert n0.metric("tidewarden_node_front_restarts_total") >= 1
        assert "of this node was killed by SIGKILL; starting it again" in "\n".join(n0.messages())


def every_page(node: Node, listed: str, *words: Any) -> list[dict[str, Any]]:
    """All that there is in the pages of a question, each of which every process answered."""
    found, after = [], ""
    while True:
        page = mapped(node.say(*words, *(("AFTER", after) if after else ())))
        assert page["unreachable"] == []
        found += map(mapped, page[listed])
        if not (after := page["after"]):
            return found


def test_their_consumers_are_seen_and_ended_at_any_node(made: Cluster, n0: Node) -> None:
    n1 = made.nodes["n1"]
    with everywhere(n0) as clients, n1.client() as other:
        for number, client in enumerate(clients):
            client.execute_command("CLIENT", "SETNAME", f"w{number}")
            n0.say("Q.PUT", "who", "x", "ID", number, "LEASE", 600_000)
        taken = [client.execute_command("Q.TAKE", "FROM", "who")[0] for client in clients]
        for asked in (n1, n0):
            rows = every_page(asked, "holders", "Q.HOLDERS", "who")
            held = {row["id"]: row["name"] for row in rows}
            assert held == {row[1]: f"w{number}" for number, row in enumerate(taken)}
            rows = every_page(asked, "consumers", "R.CONSUMERS", "QUEUE", "who")
            assert {row["name"] for row in rows} == set(held.values())
        numbers = [client.client_id() for client in clients]
        assert len(set(numbers)) == len(numbers), "each is one's alone in its node"
        for number, client in enumerate(clients):
            # any process ends what another has
            assert clients[number - 1].execute_command("Q.HOLDERS", "who", "ID", "none")
            assert other.client_kill_filter(_id=numbers[number]) == 0, "a number of n0's"
            assert other.execute_command("CLIENT", "KILL", "NAME", f"w{number}") == 1
            with pytest.raises(TROUBLE):
                client.ping()
        rows = other.execute_command("Q.TAKE", "COUNT", 100, "WAIT", 5_000, "FROM", "who")
        assert rows
        stopped = processes(n0)[0]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        page = mapped(n1.say("R.CONSUMERS", "QUEUE", "who"))
        os.kill(stopped, signal.SIGCONT)
        assert [mapped(one)["node"] for one in page["unreachable"]] == ["n0/1"]
        assert [mapped(one)["node"] for one in page["consumers"]] == ["n1"]


def test_a_process_that_hangs_is_killed_and_started_again(n0: Node) -> None:
    pid = processes(n0)[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: not alive(pid))
    until(lambda: len([p for p in processes(n0) if p["ready"]]) == PROCESSES - 1, what="it is back")


def test_they_die_with_the_first_and_their_leases_end(made: Cluster, n0: Node) -> None:
    n1 = made.nodes["n1"]
    pids = [process["pid"] for process in processes(n0)]
    with everywhere(n0) as clients:
        for number in range(len(clients)):
            n0.say("Q.PUT", "left", number, "LEASE", 600_000)
        for client in clients:
            assert len(client.execute_command("Q.TAKE", "FROM", "left")) == 1
        n0.kill()
        until(lambda: not any(map(alive, pids)))
        n0.start()  # two nodes have no majority without it
        found = 0
        with n1.client(socket_timeout=80) as client:
            while found < len(clients):
                rows = client.execute_command(
                    "Q.TAKE", "COUNT", 100, "WAIT", 60_000, "FROM", "left"
                )
                assert rows
                found += len(rows)


def test_told_to_end_they_end_together(made: Cluster, n0: Node) -> None:
    pids = [process["pid"] for process in processes(n0)]
    with everywhere(n0) as clients:
        assert n0.terminate() == 0
        assert not any(map(alive, pids))
        for client in clients:
            with pytest.raises(TROUBLE):
                client.ping()
