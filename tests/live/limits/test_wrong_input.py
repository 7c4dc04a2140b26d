"""
Wrong input at each door while a cluster runs: a clear error each time, the nodes live, nothing is
lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from support.cluster.harness import LIMIT_S, STILL, Cluster, cluster, free_base_port, until
from support.cluster.nursery import Child
from support.doors.command_line import app
from typer.testing import CliRunner

CONFIG_EXIT = 4  # the command line's, for a configuration that cannot be used
TASKS = 5


@pytest.fixture(scope="module")
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with cluster(request, tmp_path_factory.mktemp("wrong"), extra=STILL) as made:
        node = made.leader()
        for number in range(TASKS):
            node.say("Q.PUT", "precious", number, "ID", f"p{number}", "DELAY", 3_600_000)
        yield made


@pytest.fixture
def nodes(started: Cluster) -> Iterator[Cluster]:
    """
    The cluster; after the test every node lives, the same one leads under the same epoch, every
    task is there.
    """
    until(
        lambda: all(node.status()["epoch"] for node in started.nodes.values()),
        what="all have heard of the leader",
    )
    before = {node.name: (node.pid, node.status()["epoch"]) for node in started.nodes.values()}
    yield started
    for node in started.nodes.values():
        assert node.http("/health/live").status_code == 200
        assert node.http("/health/ready").status_code == 200
        assert (node.pid, node.status()["epoch"]) == before[node.name]
        assert node.say("PING") is True
    assert started.audit("precious") == {"delayed": TASKS}
    assert not started.defects()


def exchange(
    port: int, *sent: bytes, limit_s: float = 60.0, half_close: bool = False, more_s: float = 0.3
) -> tuple[bytes, bool]:
    """
    What a raw connection answers to ``sent``, and whether it was closed by the other side.

    ``more_s``: how long what may follow the answer, or the end, is waited for.
    """
    got = b""
    with socket.create_connection(("127.0.0.1", port), limit_s) as sock:
        try:
            for piece in sent:
                sock.sendall(piece)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                got += piece
                sock.settimeout(more_s)
        except TimeoutError:
            return got, False
        except OSError:
            return got, True
    return got, True


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word), word) for word in words
    )


RESP: dict[str, tuple[bytes, bytes, bool]] = {
    # what is sent, how the answer begins, whether the connection is closed then
    "a browser": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"-NOAUTH Authentication required", True),
    "TLS": (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\n",
        b"-BADARG This port speaks no TLS",
        True,
    ),
    "an argument that is a number": (b"*2\r\n:1\r\n:2\r\n", b"-BADARG ", True),
    "an array in an array": (b"*1\r\n*1\r\n$4\r\nPING\r\n", b"-BADARG ", True),
    "a map": (b"%1\r\n$1\r\na\r\n$1\r\nb\r\n", b"-", True),
    "a negative length": (b"*1\r\n$-1\r\n", b"-BADARG ", True),
    "a length with words": (b"*1\r\n$4x\r\nPING\r\n", b"-BADARG ", True),
    "an announced gigabyte": (b"*2\r\n$4\r\nPING\r\n$1073741824\r\n", b"-TOOBIG ", True),
    "a million arguments": (b"*1000000\r\n", b"-TOOBIG ", True),
    "a wrong length": (b"*1\r\n$3\r\nPING\r\n", b"-BADARG ", True),
    "a line without end": (b"x" * 200_000, b"-TOOBIG ", True),
    "no AUTH": (request(b"Q.PUT", b"precious", b"x"), b"-NOAUTH ", False),
    "a wrong secret": (request(b"AUTH", b"admin", b"guess"), b"-WRONGPASS ", False),
    "an unknown verb": (request(b"FLUSHALL"), b"-NOAUTH Authentication required", False),
    "a verb with line ends": (request(b"A\r\n+OK\r\n"), b"-NOAUTH Authentication required", False),
}


def test_resp_garbage(nodes: Cluster) -> None:
    node = nodes.leader()
    for kind, (sent, answer, closed) in RESP.items():
        got, ended = exchange(node.base_port, sent, more_s=60.0 if closed else 0.3)
        print(f"{kind}: {got!r}{', closed' if ended else ''}")
        assert got.startswith(answer), kind
        assert got.count(b"\n") == 1, kind
        assert ended is closed, kind


VERBS: dict[str, tuple[tuple[object, ...], str]] = {
    "a put without payload": (("Q.PUT", "precious"), "BADARG Q.PUT"),
    "a priority of 100": (("Q.PUT", "precious", "x", "PRIORITY", 100), "BADARG"),
    "a delay that is no number": (("Q.PUT", "precious", "x", "DELAY", "soon"), "BADARG DELAY"),
    "an option twice": (("Q.PUT", "precious", "x", "ID", "a", "ID", "b"), "BADARG ID"),
    "an unknown option": (
        ("Q.PUT", "precious", "x", "COLOUR", "red"),
        "BADARG Q.PUT has no option",
    ),
    "a lane without a name": (("Q.PUT", "precious", "x", "LANE", ""), "BADARG"),
    "two due times": (("Q.PUT", "precious", "x", "DELAY", 1, "AT", 1), "BADARG"),
    "a queue's name with a blank": (("Q.PUT", "pre cious", "x"), "BADARG"),
    "a queue's name of braces": (("Q.PUT", "{precious}", "x"), "BADARG"),
    "a system queue": (("Q.TAKE", "FROM", "_tokens:x:y"), "DENIED"),
    "an empty name": (("Q.PUT", "", "x"), "BADARG"),
    "an id of 5,000 bytes": (("Q.PUT", "precious", "x", "ID", "i" * 5000), "BADARG"),
    "bytes that are no text": (("Q.PUT", b"\xff\xfe", "x"), "BADARG"),
    "a payload over the limit": (("Q.PUT", "precious", b"x" * 1_060_000), "TOOBIG"),
    "a take of a million": (("Q.TAKE", "COUNT", 1_000_000, "FROM", "precious"), "BADARG"),
    "a wait of a year": (("Q.TAKE", "WAIT", 31_536_000_000, "FROM", "precious"), "BADARG"),
    "a take from nowhere": (("Q.TAKE", "COUNT", 1), "BADARG"),
    "an ack of nothing held": (("Q.ACK", "precious", "p0", 1), "NOTHELD"),
    "half a pair": (("Q.ACK", "precious", "p0"), "BADARG"),
    "a lease of twenty digits": (("Q.ACK", "precious", "p0", "9" * 20), "BADARG"),
    "shards of a queue in use": (("Q.CONFIG", "precious", "SET", "shards", 4), "BADARG"),
    "durability quorum": (("Q.CONFIG", "precious", "SET", "durability", "quorum"), "BADARG"),
    "a peek at nothing": (("Q.PEEK", "precious", "nobody"), "NOTFOUND"),
    "a cursor of nonsense": (
        ("Q.PEEK", "precious", "STATE", "delayed", "AFTER", "9:9:9"),
        "BADARG",
    ),
    "an account without provider": (("T.PUT", "alice", "{}"), "BADARG"),
    "an unknown provider": (("T.PUT", "nobody/alice", '{"refresh_token": "x"}'), "NOTFOUND"),
    "an account that is no JSON": (("T.PUT", "p/alice", "{refresh_token"), "BADARG"),
    "a schedule that never fires": (
        ("S.PUT", "never", "CRON", "0 0 30 2 *", "precious", "x"),
        "BADARG",
    ),
    "a schedule that is none": (("S.PUT", "s", "CRON", "every day", "precious", "x"), "BADARG"),
}


def test_resp_verbs(nodes: Cluster) -> None:
    with nodes.leader().client() as client:
        for kind, (words, answer) in VERBS.items():
            with pytest.raises(redis.ResponseError) as caught:
                client.execute_command(*words)
            print(f"{kind}: {caught.value}")
            assert str(caught.value).startswith(answer), kind
            assert client.ping(), "the connection goes on"


def test_http_rubbish(nodes: Cluster) -> None:
    node = nodes.leader()
    port = node.base_port + 1
    for kind, sent, answer in (
        ("no HTTP", b"\x00\x01\x02\r\n\r\n", b"HTTP/1.0 400"),
        ("RESP", request(b"PING"), b"HTTP/1.0 400"),
        (
            "a line without end",
            b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"HTTP/1.",
        ),
        ("a head that a stranger may not send", b"GET /" + b"x" * 300_000, b""),
        ("a header of rubbish", b"GET /health/live HTTP/1.1\r\nHost\r\n\r\n", b"HTTP/1."),
        (
            "a length of nonsense",
            b"POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.",
        ),
        ("half a request", b"GET /health/live HTT", b""),
    ):
        got, _ = exchange(port, sent, limit_s=LIMIT_S, half_close=kind == "half a request")
        print(f"{kind}: {got[:90]!r}")
        assert got.startswith(answer)
        assert got[9:10] in (b"4", b"")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for path, headers, status in (
            ("/nothing", {"Authorization": f"Bearer {nodes.secret}"}, 404),
            ("/metrics", {}, 401),
            ("/v1/status", {"Authorization": "Basic eDp5"}, 401),
            ("/v1/tokens/p/alice", {"Authorization": "Bearer admin:guess"}, 401),
            ("/v1/tokens/p/alice", {"Authorization": f"Bearer {nodes.secret}"}, 404),
            ("/v1/tokens/p/alice?min_ttl=soon", {"Authorization": f"Bearer {nodes.secret}"}, 400),
        ):
            answer = client.get(path, headers=headers)
            print(f"{path}: {answer.status_code} {answer.text}")
            assert answer.status_code == status
            assert answer.json()["error"]
        answer = client.post(
            "/metrics", headers={"Authorization": f"Bearer {nodes.secret}"}, content=b"x"
        )
        assert answer.status_code == 405
        answer = client.delete("/health/live")
        assert answer.status_code == 405


class Harm:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_the_raft_port_runs_nothing(nodes: Cluster, tmp_path: Path) -> None:
    """
    Hostile pickles in every wrapping a stranger can make, frames of every length, and silence.
    """
    flag = tmp_path / "harm"
    body = zlib.compress(pickle.dumps(Harm(flag), 2))
    sent = (
        pickle.dumps(Harm(flag)),
        struct.pack("i", len(body)) + body,
        struct.pack("i", 2**31 - 1) + body,
        struct.pack("i", -1) + body,
        struct.pack("i", 0),
        b"*1\r\n$4\r\nPING\r\n",
        secrets.token_bytes(5000),
        b"",
    )
    for node in nodes.nodes.values():
        for data in sent:
            got, _ = exchange(node.base_port + 2, data, limit_s=0.2)
            assert b"harm" not in got
        refused = until(
            lambda node=node: (
                (found := int(node.status()["raft"]["strangers_refused"])) >= 4 and found
            )
        )
        print(f"{node.name}: {refused} strangers refused")
    assert not flag.exists()


# Starts that cannot succeed: the changes to a node's configuration, and what has to be said.
CHECKS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "an unknown setting": (
        {"node__nmae": '"n9"'},
        ("unknown setting node.nmae", "did you mean 'name'"),
    ),
    "an unknown section": (
        {"nodes__name": '"n9"'},
        ("unknown section 'nodes'", "did you mean 'node'"),
    ),
    "a port that is a text": ({"node__base_port": '"many"'}, ("node.base_port", "many")),
    "a port too high": ({"node__base_port": "70000"}, ("node.base_port", "70000", "65,531")),
    "replicas of an embedded store": (
        {"store__url": '"embedded"', "store__replicas": "2"},
        ("store.replicas", "found 2", "allowed: -1 or 0"),
    ),
    "peers without a secret": ({"cluster__secret_file": '""'}, ("cluster.secret_file", "secret")),
    "a store of another kind": ({"store__url": '"http://x"'}, ("store.url", "redis://")),
    "a host for everybody": (
        {"node__host": '"0.0.0.0"', "cluster__secret_file": '""'},
        ("cluster.secret_file",),
    ),
    "a stranger's name": ({"node__name": '"n77"'}, ("node.name", "n77", "n0, n1, n2")),
    "no TOML": ({"node__data_dir": '"'}, ("is not TOML", "line")),
}


def test_bad_files_are_refused_by_check(nodes: Cluster, tmp_path: Path) -> None:
    for kind, (changes, words) in CHECKS.items():
        path = tmp_path / f"{kind}.toml"
        path.write_text(nodes.config_text("n0", **changes))
        done = CliRunner().invoke(app, ["node", "--config", str(path), "--check"])
        print(f"{kind}: exit {done.exit_code}: {done.output}")
        assert done.exit_code == CONFIG_EXIT, kind
        flat = " ".join(done.output.split())
        for word in (*words, ".toml"):
            assert word in flat, kind
        assert nodes.secret not in done.output
        assert nodes.valkey.password not in done.output
    path.write_text(nodes.config_text("n0"))
    argv = [sys.executable, "-m", "tidewarden", "node", "--config", str(path), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "good. Node n0" in done.stdout


def test_starts_that_cannot_succeed(nodes: Cluster, tmp_path: Path) -> None:
    """
    A busy port, a second node on a folder, no folder, data of the future, a wrong store password:
    said, and no harm.
    """
    taken = next(iter(nodes.nodes.values()))
    holder = taken.status()["holder"]
    spare = str(free_base_port())

    def lone(folder: str, **changes: str) -> str:
        settings = {
            "cluster__members": "{}",
            "node__base_port": spare,
            "node__data_dir": json.dumps(folder),
            **changes,
        }
        return nodes.config_text("n0", **settings)

    with nodes.valkey.client() as store:
        store.set("{future}:format", "3")
    password = json.dumps(nodes.valkey.url().replace(nodes.valkey.password, "guess"))
    starts: dict[str, tuple[str, tuple[str, ...]]] = {
        "a busy port": (
            nodes.config_text("n0", node__data_dir=json.dumps(str(tmp_path / "busy"))),
            ("node.base_port", str(taken.base_port)),
        ),
        "a second node on a folder": (
            lone(str(taken.folder)),
            (str(taken.folder), "in use by another"),
        ),
        "a folder in a file": (lone("/dev/null/x"), ("node.data_dir", "/dev/null/x")),
        "data of the future": (
            lone(str(tmp_path / "f"), cluster__name='"future"'),
            ("format 3", "upgrade"),
        ),
        "a wrong store password": (
            lone(str(tmp_path / "p"), store__url=password),
            ("store.url", "password"),
        ),
    }
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        processes = []
        for number, (text, _) in enumerate(starts.values()):
            (tmp_path / f"{number}.toml").write_text(text)
            # A store that does not let it in is waited for four seconds, not thirty.
            processes.append(
                Child(tmp_path / f"{number}.toml", tmp_path / f"{number}.log", store_wait_s=4.0)
            )
            stack.callback(processes[-1].kill)
        for number, (kind, (_, words)) in enumerate(starts.items()):
            code = processes[number].wait(120)
            output = " ".join((tmp_path / f"{number}.log").read_text().split())
            print(
                f"{kind}: exit {code} within {time.monotonic() - begun:.1f} s:"
                f" {output[output.rfind('tidewarden: ') :]}"
            )
            assert code == CONFIG_EXIT, kind
            for word in words:
                assert word in output, kind
            assert "Traceback" not in output
            assert nodes.valkey.password not in output
    assert taken.status()["holder"] == holder, "whoever does not start takes nothing from who runs"
