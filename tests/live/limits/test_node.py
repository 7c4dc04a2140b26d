"""
One node at its limits: connections, payloads at each door, readers that do not read. Whoever keeps
within them notices nothing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.cluster.harness import Cluster, Node, cluster, until

from tidewarden.client import blocking
from tidewarden.errors import Error, TooBig

CONNECTIONS = 1500
TOO_MANY = 100
HTTP_CONNECTIONS = 10
ROOT = Path(__file__).parents[3]
PAYLOAD = 100_000
QUICK_S = 30.0  # far above what a node takes that is not stuck, on a starved machine too
PROVIDER = """
[providers.p]
token_url = "http://127.0.0.1:1/token"
client_id = "c"
client_secret = "s"
"""


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    limits = {
        "limits__connections_max": str(CONNECTIONS), "limits__http_connections_max": str(HTTP_CONNECTIONS),
        "limits__payload_bytes": str(PAYLOAD), "limits__queues_max": "10",
    }  # fmt: skip
    with cluster(
        request, tmp_path_factory.mktemp("limits"), nodes=1, extra=PROVIDER, **limits
    ) as one:
        yield one


@pytest.fixture
def n0(made: Cluster) -> Iterator[Node]:
    node = made.nodes["n0"]
    until(lambda: node.metric("tidewarden_resp_connections") == 0)
    yield node
    assert node.ready()


def resident_mib(node: Node) -> float:
    status = Path(f"/proc/{node.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def request(*words: object) -> bytes:
    packed = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(packed) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word), word) for word in packed
    )


@contextlib.contextmanager
def crowd(node: Node, count: int) -> Iterator[dict[str, Any]]:
    """
    So many connections of a second process at once, each with AUTH and PING; all are gone at once
    after the block. What it reports.
    """
    hello = request("AUTH", "admin", node.secret) + request("PING")
    argv = [
        sys.executable,
        "-m",
        "benchmarks.burst",
        "--crowd",
        str(node.base_port),
        str(count),
        hello.hex(),
        "2",
    ]
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.write("\n")


def sdk_at(node: Node, retry_s: float = 0.5) -> str:
    """
    What the SDK says at a door that lets nobody in; asked again for longer where it heard nothing
    in time.
    """
    url = f"redis://admin:{node.secret}@127.0.0.1:{node.base_port}"
    with pytest.raises(Error) as caught, blocking.Client(url, retry_s=retry_s) as client:
        client.queue("q").put(b"x")
    if "no answer" in str(caught.value) and retry_s < 20:
        return sdk_at(node, 20.0)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_more_connections_than_may_be_at_once(n0: Node) -> None:
    """
    Those that are one too many are told so, nobody else notices, and what all of them took is there
    for the next. Whoever has not said who it is for a second makes room, so its place is taken.
    """

    def turned_away() -> float:
        return n0.metric("tidewarden_resp_refused_total") + n0.metric(
            "tidewarden_resp_strangers_sent_away_total"
        )

    refused = turned_away()
    sizes_mib = [resident_mib(n0)]
    with n0.client() as before:
        assert before.ping()
        for turn in (1, 2):
            with crowd(n0, CONNECTIONS + TOO_MANY - 1) as said:
                began = time.monotonic()
                assert before.ping()
                pause_s = time.monotonic() - began
                print(
                    f"{said['all_s']:.2f} s until the last had its answer; {said['failed']}; PING"
                    f" took {pause_s * 1000:.0f} ms"
                )
                failed = said["failed"]
                full = "-FULL This node has as many connections as it may."
                assert all(why.startswith(full) for why in failed), failed
                assert sum(failed.values()) == TOO_MANY
                assert n0.metric("tidewarden_resp_connections") == CONNECTIONS
                if turn == 2:
                    told = sdk_at(n0)
                    print(f"the SDK: {told}")
                    assert "as many connections as it may" in told
            assert turned_away() >= refused + turn * TOO_MANY
            until(lambda: n0.metric("tidewarden_resp_connections") == 1)
            sizes_mib.append(resident_mib(n0))
        assert before.info()["rejected_connections"] == n0.metric("tidewarden_resp_refused_total")
    print(f"MiB before, after one and after two: {sizes_mib}")
    assert sizes_mib[2] - sizes_mib[1] < 15


def test_payloads_at_the_limit_at_each_door(n0: Node, tmp_path: Path) -> None:
    """
    One byte below, at it, and one above: what is one too many is told by name, and the connection
    lives where it can.
    """
    user, password = "admin", n0.secret
    with (
        n0.client() as raw,
        blocking.Client(f"redis://{user}:{password}@127.0.0.1:{n0.base_port}") as client,
    ):
        for size in (PAYLOAD - 1, PAYLOAD):
            raw.execute_command("Q.PUT", "size", "x" * size)
            task_id = client.queue("size").put(b"y" * size)
            assert task_id
            tasks = raw.execute_command("Q.TAKE", "COUNT", 2, "FROM", "size")
            assert sorted(len(task[3]) for task in tasks) == [size, size]
            raw.execute_command("Q.ACK", "size", *(word for task in tasks for word in task[1:3]))
        with pytest.raises(redis.ResponseError, match=f"TOOBIG .*{PAYLOAD}"):
            raw.execute_command("Q.PUT", "size", "x" * (PAYLOAD + 1))
        with pytest.raises(TooBig, match=f"{PAYLOAD}"):
            client.queue("size").put(b"y" * (PAYLOAD + 1))
        assert raw.ping(), "the connection goes on"
        assert client.queue("size").stats()["total"] == 0
    with httpx.Client(base_url=f"http://127.0.0.1:{n0.base_port + 1}", trust_env=False) as web:
        bearer = {"Authorization": f"Bearer {user}:{password}"}
        edge = PAYLOAD + 65_536  # limits.request_bytes
        for size, status in ((edge - 1, 400), (edge, 400), (edge + 1, 413)):
            answer = web.put("/v1/tokens/p/a", headers=bearer, content=b"x" * size)
            assert (answer.status_code, answer.json()["error"]) == (
                status,
                "BADARG" if status == 400 else "TOOBIG",
            )


def test_who_does_not_read_is_held_back_and_nobody_suffers(n0: Node) -> None:
    """
    Twenty that ask for megabytes on and on, and read nothing: their replies are bounded, their
    requests stay with them.
    """
    n0.say("Q.PUT", "big", "x" * PAYLOAD, "ID", "b", "DELAY", 3_600_000)
    ask = request("Q.PEEK", "big", "b") * 200  # 20 MB of replies
    hello = request("AUTH", "admin", n0.secret)
    before = resident_mib(n0)
    with contextlib.ExitStack() as stack, n0.client() as other:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", n0.base_port), 30))
            for _ in range(20)
        ]
        longest_s = 0.0
        for sock in slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            sock.sendall(hello + ask)
            began = time.monotonic()
            assert other.ping()
            longest_s = max(longest_s, time.monotonic() - began)
        time.sleep(0.3)
        began = time.monotonic()
        other.execute_command("Q.PUT", "q", "x")
        assert other.execute_command("Q.TAKE", "FROM", "q")[0][3] == "x"
        longest_s = max(longest_s, time.monotonic() - began)
        grown = resident_mib(n0) - before
        print(
            f"400 MB asked for, {grown:.0f} MiB kept, others waited {longest_s * 1000:.0f} ms at"
            " most"
        )
        assert grown < 120
        assert longest_s < QUICK_S


def test_replies_past_the_bound_cut_off_who_does_not_read_them(n0: Node) -> None:
    """What it was given is another's at once."""
    queues, each = [f"heavy-{number}" for number in range(5)], 170
    with n0.client() as client:
        for queue in queues:
            pipe = client.pipeline(transaction=False)
            for _ in range(each):
                pipe.execute_command("Q.PUT", queue, "x" * PAYLOAD)
            pipe.execute()
    before = resident_mib(n0)
    with socket.create_connection(("127.0.0.1", n0.base_port), 30) as slow, n0.client() as other:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        takes = b"".join(request("Q.TAKE", "COUNT", 200, "FROM", queue) for queue in queues)
        slow.sendall(request("AUTH", "admin", n0.secret) + takes)
        until(lambda: "peer cut off: it does not read its replies" in n0.log())
        for queue in queues:
            until(
                lambda queue=queue: other.execute_command("Q.STATS", queue)["ready"] == each,
                what="all are ready again",
            )
            other.execute_command("Q.PURGE", queue)
        print(
            f"80 MB given to one that did not read: {resident_mib(n0) - before:.0f} MiB more than"
            " before"
        )


def test_http_connections(n0: Node) -> None:
    """
    Half requests fill the door; one too many is told so, the RESP door does not care, and room
    comes back.
    """
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", n0.base_port + 1)
        held = [
            stack.enter_context(socket.create_connection(address, 30))
            for _ in range(HTTP_CONNECTIONS)
        ]
        for sock in held:
            sock.sendall(b"GET /health/live HTTP/1.1\r\nHost: ")
        answer = until(lambda: (found := n0.http("/v1/status")).status_code == 507 and found)
        assert n0.http("/health/live").status_code == 200
        assert n0.http("/metrics").status_code == 200
        assert answer.json()["error"] == "FULL"
        assert n0.say("PING") is True
    until(lambda: n0.http("/health/live").status_code == 200)
    assert n0.metric("tidewarden_http_refused_total") >= 1


def test_queues(n0: Node) -> None:
    with n0.client() as client:
        client.execute_command("Q.PUT", "big", "x")
        made = len(client.execute_command("Q.LIST"))
        for number in range(11 - made):
            with contextlib.suppress(redis.ResponseError):
                client.execute_command("Q.PUT", f"n{number}", "x")
        with pytest.raises(
            redis.ResponseError, match=r"FULL there is no queue one-more.*limits\.queues_max"
        ):
            client.execute_command("Q.PUT", "one-more", "x")
        assert client.execute_command("Q.PUT", "big", "x")
