"""
Users of a node of several processes: their rights at both doors, and the file read anew by SIGHUP.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.cluster.harness import Cluster, Node, until
from support.cluster.node_processes import PROCESSES, everywhere, serving_processes

from tidewarden.config.load import hash_generated, hash_secret

ADA = {"username": "ada", "password": "ada's"}
BOB = {"username": "bob", "password": "bob's"}


def entry(user: dict[str, str], rights: str, *, slow: bool = False) -> str:
    secret_hash = (hash_secret if slow else hash_generated)(user["password"])
    return (
        f'[[users]]\nname = "{user["username"]}"\nsecret_hash = "{secret_hash}"\nrights ='
        f" {rights}\n"
    )


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One node of three processes."""
    with serving_processes(request, tmp_path_factory.mktemp("users")) as cluster:
        yield cluster


def write(cluster: Cluster, *entries: str) -> None:
    """Give the node's file these users, beside its administrator."""
    text = cluster.config_text("n0", node__processes=str(PROCESSES))
    cluster.nodes["n0"].config.write_text("\n".join((text, *entries)))


def reload(cluster: Cluster, *entries: str) -> None:
    """The same, and have it read anew by all processes."""
    node = cluster.nodes["n0"]
    logs = [node.folder / "n0.log", *(node.folder / f"n0-{number}.log" for number in (1, 2))]
    before = [read_anew(log) for log in logs]
    write(cluster, *entries)
    os.kill(node.pid, signal.SIGHUP)
    until(
        lambda: all(read_anew(log) > count for log, count in zip(logs, before, strict=True)),
        what="reload",
    )


def read_anew(log: Path) -> int:
    return log.read_text("utf-8").count("users read anew") if log.exists() else 0


@pytest.fixture
def n0(made: Cluster) -> Node:
    return made.nodes["n0"]


def cut_off(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ConnectionError:
        return True
    return False


def test_a_fresh_users_rights_hold_in_every_process_and_at_both_doors(
    made: Cluster, n0: Node
) -> None:
    reload(
        made,
        entry(
            ADA,
            '["put:mails.*", "take:mails.*", "schedule:ada.*", "lock:ada.*", "token:read:p/ada*"]',
            slow=True,
        ),
    )
    with everywhere(n0, **ADA) as clients:
        for number, client in enumerate(clients):
            assert client.execute_command("Q.PUT", "mails.a", "x", "ID", str(number)) == str(number)
            with pytest.raises(
                redis.ResponseError,
                match=r"DENIED Q.PUT needs the right put:other, which the user ada",
            ):
                client.execute_command("Q.PUT", "other", "x")
            with pytest.raises(
                redis.ResponseError,
                match=r"DENIED T.GET needs the right token:read:p/bob, which the user ada",
            ):
                client.execute_command("T.GET", "p/bob")
            with pytest.raises(redis.ResponseError, match="NOTFOUND there is no provider 'p'"):
                client.execute_command("T.GET", "p/ada")
            denied, missing = client.execute_command("T.MGET", "p/bob", "p/ada")
            assert denied.startswith("DENIED T.MGET needs the right token:read:p/bob")
            assert missing.startswith("NOTFOUND")
            assert not client.execute_command("T.STATS")
            with pytest.raises(
                redis.ResponseError, match=r"DENIED S.PUT needs the right put:other"
            ):
                client.execute_command("S.PUT", "ada.s", "EVERY", 3_600_000, "other", "x")
            assert client.execute_command("S.PUT", "ada.s", "EVERY", 3_600_000, "mails.a", "x") > 0
            assert client.execute_command("S.DELETE", "ada.s") == 1
            assert client.execute_command("Q.LIST") == ["mails.a"]
            fence = client.execute_command("L.ACQUIRE", "ada.lock", 5000)
            assert client.execute_command("L.LIST")[0]
            assert client.execute_command("L.RELEASE", "ada.lock", fence) in ("OK", True)
            assert client.execute_command("SESSION", "GRACE", 100)
            rows = client.execute_command("Q.TAKE", "FROM", "mails.a")
            assert client.execute_command("Q.ACK", "mails.a", rows[0][1], rows[0][2]) in (
                "OK",
                True,
            )
        until(lambda: n0.metric("tidewarden_resp_denied_total", "ada") >= 3 * len(clients))
    ask = httpx.Client(
        base_url=f"http://127.0.0.1:{n0.base_port + 1}",
        headers={"Authorization": "Bearer ada:ada's"},
    )
    with ask:
        assert ask.get("/v1/tokens/p/bob").status_code == 403
        assert ask.get("/v1/tokens/p/ada").status_code == 404
        assert ask.get("/v1/status").status_code == 200
        metrics = ask.get("/metrics").text
    assert 'queue="mails.a"' in metrics
    assert 'queue="_' not in metrics


def test_who_is_gone_is_cut_off_from_every_process_and_others_stay(made: Cluster, n0: Node) -> None:
    reload(made, entry(ADA, '["all"]'), entry(BOB, '["all"]'))
    with everywhere(n0, **ADA) as adas, everywhere(n0, **BOB) as bobs:
        reload(made, entry(BOB, '["take"]'))
        assert all(cut_off(ada) for ada in adas)
        for bob in bobs:
            with pytest.raises(redis.ResponseError, match=r"DENIED Q.PUT needs the right put:q"):
                bob.execute_command("Q.PUT", "q", "x")
    with pytest.raises(redis.AuthenticationError), n0.client(**ADA) as client:
        client.ping()


def test_a_process_started_later_knows_the_users_of_now(made: Cluster, n0: Node) -> None:
    reload(made, entry(ADA, '["put:late"]'))
    pids: Any = [process["pid"] for process in n0.http("/v1/status").json()["processes"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        found = n0.http("/v1/status").json()["processes"]
        return len(found) == 2 and all(row["ready"] and row["pid"] not in pids for row in found)

    until(back, what="fresh processes")
    with everywhere(n0, **ADA) as clients:
        assert all(client.execute_command("Q.PUT", "late", "x") for client in clients)


def test_a_faulty_file_changes_nothing_and_is_told(made: Cluster, n0: Node) -> None:
    reload(made, entry(ADA, '["put"]'))
    with n0.client(**ADA) as client:
        assert client.execute_command("Q.PUT", "q", "x")
        since = len(n0.log())
        write(made, entry(ADA, '["putt:q", "take:"]'))
        os.kill(n0.pid, signal.SIGHUP)
        until(lambda: "was not read anew" in n0.log()[since:], what="a complaint")
        assert "did you mean 'put'?" in n0.log()[since:]
        assert "take: is a pattern" in n0.log()[since:]
        assert client.execute_command("Q.PUT", "q", "x")
        assert ADA["password"] not in n0.log()
        # Half written, or not there at all.
        for state, said in (
            ("", "there are no users any more"),
            (None, "cannot be read: No such file"),
        ):
            since = len(n0.log())
            if state is None:
                n0.config.unlink()
            else:
                n0.config.write_text(state)
            os.kill(n0.pid, signal.SIGHUP)
            until(lambda said=said, since=since: said in n0.log()[since:], what="a complaint")
            assert client.execute_command("Q.PUT", "q", "x")
            for _ in range(6):  # in whichever process
                with (
                    pytest.raises(redis.AuthenticationError),
                    n0.client(username=None, password=None) as stranger,
                ):
                    stranger.ping()
    reload(made)


PROVIDER = """
[providers.p]
token_url = "http://127.0.0.1:9/"
client_id = "c"
client_secret = "never-shown"
"""
COMPANION = '[companions.c]\nqueue = "work"\n'


def test_providers_are_taken_over_as_a_whole_or_not_at_all(made: Cluster, n0: Node) -> None:
    reload(made)
    grant = '{"refresh_token": "r", "access_token": "x", "expires_in": 3600}'
    with n0.client() as client:
        with pytest.raises(redis.ResponseError, match="NOTFOUND there is no provider 'p'"):
            client.execute_command("T.PUT", "p/a", grant)
        reload(made, PROVIDER, COMPANION)
        assert client.execute_command("T.PUT", "p/a", grant) == 1
        until(lambda: "work" in client.execute_command("Q.LIST"), what="a companion task")
        since = len(n0.log())
        write(made, PROVIDER.replace("providers.p", "providers.q"), "[companions.c]\n")
        os.kill(n0.pid, signal.SIGHUP)
        until(lambda: "was not read anew" in n0.log()[since:], what="a complaint")
        assert "companions.c.queue" in n0.log()[since:]
        assert client.execute_command("T.GET", "p/a")[0] == "x"
        with pytest.raises(redis.ResponseError, match="NOTFOUND there is no provider 'q'"):
            client.execute_command("T.PUT", "q/a", grant)
        reload(made, PROVIDER + "[limits]\nwait_ms = 5\n")
        assert "what changed of limits needs a restart" in n0.log()[since:]
        reload(made)
        with pytest.raises(redis.ResponseError, match="removed from this node's configuration"):
            client.execute_command("T.GET", "p/a")
        reload(made, PROVIDER)
        assert client.execute_command("T.GET", "p/a")[0] == "x"
        reload(made)

        def noted() -> list[list[str]]:
            rows, _ = client.execute_command("R.AUDIT", "COUNT", 1000)
            return [row["words"] for row in rows if row["action"] == "SIGHUP"]

        until(lambda: ["companions", "c", "removed"] in noted(), what="the audit log")
        assert noted().count(["providers", "p", "added"]) == 2
    assert "never-shown" not in n0.log()
