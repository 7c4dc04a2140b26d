"""
Rubbish at the door of a whole node, whose memory and descriptors are watched while another
connection works on.

Briefly in ``make test``; ``make soak`` does it for longer (FUZZ_EXAMPLES).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cluster.harness import ADMIN, CALM, Node, cluster, until
from support.doors.doubles import framed
from support.doors.resp_fuzz import ALL, Answers, broken, ending, stream

pytestmark = pytest.mark.timeout(3600)

LONG = int(os.environ.get("FUZZ_EXAMPLES", "20000"))
LIMIT_S = 20.0
EACH_S = 0.3
CPU_SHARE = 0.4  # of a core: a tenth for strangers, and what somebody's work costs beside them
# what a node may keep of many thousand requests: the queues they made, the allocator's pieces
GROWTH_KB = 16_000
PROVIDER = """
[providers.p]
token_url = "http://127.0.0.1:9/token"
client_id = "x"
auth = "none"
"""


@pytest.fixture(scope="module")
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    with cluster(request, tmp_path_factory.mktemp("fuzz"), nodes=1, extra=CALM + PROVIDER) as made:
        found = made.leader()
        found.secret = made.secret
        yield found


NUMBERS = itertools.count()


class Well:
    """A thread whose tasks come and go, whatever others do at the door."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None
        self.done = 0

    def __enter__(self) -> Well:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        until(lambda: self.done > 10 or self.failure, 60, what="somebody's tasks come and go")
        self._stop.set()
        self._thread.join(60)
        assert self.failure is None, repr(self.failure)

    def _run(self) -> None:
        try:
            with self._node.client() as client:
                while not self._stop.is_set():
                    self.work(client)
        except BaseException as error:
            self.failure = error

    def work(self, client: redis.Redis) -> None:
        """One task's life; every answer is as it should be."""
        name = f"w{next(NUMBERS)}"
        assert client.execute_command("Q.PUT", "well", f"payload {name}", "ID", name) == name
        ((queue, task_id, lease, payload, attempt, *_),) = client.execute_command(
            "Q.TAKE", "WAIT", 15_000, "FROM", "well"
        )
        assert (queue, task_id, payload, attempt) == ("well", name, f"payload {name}", 1)
        assert client.execute_command("Q.ACK", "well", name, lease) == "OK"
        self.done += 1
        time.sleep(0.01)


class Hostile:
    """Connections that send what they like."""

    def __init__(self, node: Node) -> None:
        self._address = ("127.0.0.1", node.base_port)
        self._login = (ADMIN, node.secret)
        self._sent = self._dialled = 0

    def dial(self, *, let_in: bool = True) -> socket.socket:
        # Each from a host of its own: what guesses of secrets cost one host, up to five seconds
        # each, is not looked at here.
        self._dialled += 1
        host = f"127.{1 + self._dialled // 62_500 % 250}.{self._dialled // 250 % 250}.{1 + self._dialled % 250}"
        sock = socket.create_connection(self._address, LIMIT_S, source_address=(host, 0))
        if let_in:
            sock.sendall(framed(("AUTH", *self._login)))
            assert sock.recv(5) == b"+OK\r\n"
        return sock

    def requests(self, requests: list[list[bytes]], cuts: list[int]) -> None:
        """Requests of one who was let in: an answer to each."""
        self._sent += 1
        marker = b"marker %d" % self._sent
        data = b"".join(framed(request) for request in requests)
        with self.dial() as sock:
            self.send(sock, data + ending(marker.decode(), self._login), cuts)
            answers = self.listen(sock, marker)
        if marker in answers.replies and not {request[0].upper() for request in requests} & {
            b"CLIENT",
            b"RESET",
        }:
            assert len(answers.replies) == len(requests) + 4, "one reply for each request"

    def bytes(self, data: bytes, cuts: list[int], end: str) -> None:
        """Bytes of anybody."""
        with self.dial(let_in=end != "stranger") as sock:
            self.send(sock, data, cuts)
            if end == "leave":
                return
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            self.listen(sock, b"none of this name")

    @staticmethod
    def send(sock: socket.socket, data: bytes, cuts: list[int]) -> None:
        edges = [*sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
        start = 0
        with contextlib.suppress(ConnectionError):  # hung up on already
            for stop in edges:
                sock.sendall(data[start:stop])
                start = stop

    @staticmethod
    def listen(sock: socket.socket, marker: bytes) -> Answers:
        answers = Answers()
        with contextlib.suppress(ConnectionResetError):
            while got := sock.recv(65536):
                if marker in answers.feed(got):
                    return answers
            answers.over()
        return answers


def resources(node: Node) -> tuple[int, int]:
    """Kilobytes of memory of its own, and open descriptors."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    kilobytes = int(status.partition("RssAnon:")[2].split()[0])
    # A node lets nobody but root look at its descriptors.
    return kilobytes, len(os.listdir(f"/proc/{node.pid}/fd")) if os.geteuid() == 0 else 0


def connections(node: Node) -> int:
    """Those of clients."""
    return int(node.metric("tidewarden_resp_connections"))


def play(node: Node, examples: int) -> None:
    """So many examples of each kind, while somebody works."""
    hostile = Hostile(node)
    many = settings(
        max_examples=examples, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @many
    @given(
        st.lists(broken(ALL), min_size=1, max_size=12), st.lists(st.integers(0, 5000), max_size=3)
    )
    def play_requests(requests: list[list[bytes]], cuts: list[int]) -> None:
        hostile.requests(requests, cuts)

    @many
    @given(
        stream(),
        st.lists(st.integers(0, 100_000), max_size=6),
        st.sampled_from(["half close", "leave", "stranger"]),
    )
    def play_bytes(data: bytes, cuts: list[int], end: str) -> None:
        hostile.bytes(data, cuts, end)

    with Well(node):
        play_requests()
        play_bytes()


def cpu_s(node: Node) -> float:
    """Processor time it has used, all its threads."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def besiege(node: Node, examples: int) -> None:
    """
    So many shapes of rubbish, each sent on and on by somebody whom nobody has let in: what they
    cost is bounded.
    """
    hostile, sent = Hostile(node), 0

    @settings(
        max_examples=examples, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(stream())
    def send_on(data: bytes) -> None:
        nonlocal sent
        many = (data or b"\n") * (1 + 200_000 // len(data or b"\n"))
        until_s = time.monotonic() + EACH_S
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), hostile.dial(let_in=False) as sock:
                sock.settimeout(0.01)
                while time.monotonic() < until_s:
                    with contextlib.suppress(TimeoutError):
                        sent += sock.send(many[sent % len(data or b"\n") :])
                    with contextlib.suppress(TimeoutError):
                        if not sock.recv(1 << 18):
                            break

    with Well(node):
        used_s, began = cpu_s(node), time.monotonic()
        send_on()
        used_s, took_s = cpu_s(node) - used_s, time.monotonic() - began
    print(f"{sent / 1e6:.0f} MB in {took_s:.1f} s: {used_s:.1f} s of processor time")
    assert used_s < CPU_SHARE * took_s + 1.0


def flood(node: Node, rounds: int) -> None:
    """
    What is large, deep or unfinished: announced lengths, nesting, halves of requests, replies that
    nobody reads.
    """
    hostile = Hostile(node)
    dice = random.Random(1)
    pieces = [
        b"*2147483647\r\n", b"*2016\r\n" + b"$1\r\nx\r\n" * 2000, b"*1\r\n$2147483647\r\n", b"*1\r\n$1114000\r\n" + b"x" * 500_000,
        b"*1\r\n" * 100_000, b"x" * 500_000, b"*" * 500_000, b"*2\r\n$4\r\nECHO\r\n$1000000\r\n" + b"x" * 999_999,
        framed("COMMAND DOCS") * 2000, framed("INFO") * 500, framed("MULTI") + framed(("ECHO", b"x" * 10_000)) * 900,
        framed("Q.TAKE WAIT 3600000 FROM nothing") + framed("PING") * 900, framed("L.ACQUIRE l 50 WAIT 3600000") * 50,
        framed("Q.WAIT q nobody 3600000") * 3, framed(("Q.PUT", "q", b"x" * 1_000_000, "TTL", "1")) * 3,
    ]  # fmt: skip
    with Well(node):
        for _ in range(rounds):
            open_now = []
            for data in dice.sample(pieces, len(pieces)):
                sock = hostile.dial(let_in=dice.random() < 0.8)
                sock.settimeout(0.1)
                open_now.append(sock)
                with contextlib.suppress(OSError):  # hung up on, or not read any more
                    sock.sendall(data)
                if dice.random() < 0.3:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_WR)
            for sock in open_now:
                sock.close()


def settled(node: Node) -> tuple[int, int]:
    """The node's resources once nobody is there but who asks."""
    until(lambda: connections(node) == 0, 60, what="the hostile are gone")
    return resources(node)


def assert_unharmed(node: Node, before: tuple[int, int]) -> None:
    kilobytes, descriptors = settled(node)
    print(f"memory {before[0]} → {kilobytes} kB, descriptors {before[1]} → {descriptors}")
    assert node.metric("tidewarden_resp_errors_total", "INTERNAL") == 0
    assert kilobytes - before[0] < GROWTH_KB
    assert descriptors <= before[1] + 2
    assert node.say("PING") is True


def test_a_node_is_unharmed(node: Node) -> None:
    play(node, 15)
    flood(node, 1)
    before = settled(node)
    play(node, 40)
    flood(node, 1)
    besiege(node, 15)
    assert_unharmed(node, before)


@pytest.mark.soak
def test_a_node_is_unharmed_for_long(node: Node) -> None:
    play(node, 2000)
    flood(node, 10)
    before = settled(node)
    play(node, LONG)
    flood(node, 200)
    besiege(node, 300)
    assert_unharmed(node, before)
