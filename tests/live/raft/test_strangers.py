"""
Strangers at the doors of a running cluster: nobody is elected, nothing grows, users are served,
members still find each other.

docs/performance.md says how much processor time each shape of rubbish cost.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from pysyncobj.encryptor import getEncryptor
from support.cluster.harness import ADMIN, STILL, Cluster, Node, cluster, until
from support.cluster.nursery import link_password
from support.doors.doubles import framed as framed_resp

from tidewarden.raft.wire import COMPLAINT_S, FRAME_BYTES_MAX

HALF_OPEN = 500
GROWTH_MIB = 40  # far below one bomb that goes off


@pytest.fixture
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(request, tmp_path, extra=STILL) as made:
        yield made


class Harm:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def framed(body: bytes) -> bytes:
    return struct.pack("i", len(body)) + body


def assaults(made: Cluster, flag: Path) -> dict[str, bytes]:
    """What is sent; those that are sealed come from somebody who knows the cluster's secret."""
    password = link_password((made.folder / "cluster.key").read_text().strip(), "tidewarden")
    seal: Fernet = getEncryptor(password)
    harm, bomb = zlib.compress(pickle.dumps(Harm(flag), 2)), zlib.compress(b"\0" * (64 << 20))
    assert len(bomb) < FRAME_BYTES_MAX // 2
    sealed = {
        f"{kind}, sealed": framed(seal.encrypt(body))
        for kind, body in (("harm", harm), ("a bomb", bomb))
    }
    return sealed | {
        "harm": framed(harm),
        "a bomb": framed(bomb),
        "an announced GiB": struct.pack("i", 1 << 30) + bytes(2 << 20),
        "a negative length": struct.pack("i", -5) + bytes(100),
        "rubbish": secrets.token_bytes(1 << 20),
    }


def resident_mib(node: Node) -> float:
    status = Path(f"/proc/{node.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def again_and_again(stop: threading.Event, act: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_cluster_under_siege(three: Cluster, tmp_path: Path) -> None:
    begun, leader = time.monotonic(), three.leader()
    first, second = three.others(leader)
    before = {node.name: (resident_mib(node), len(node.log())) for node in three.nodes.values()}
    status = leader.status()
    address, flag = ("127.0.0.1", leader.base_port + 2), tmp_path / "harm"
    sent = assaults(three, flag)
    stop = threading.Event()
    dripping = [socket.create_connection(address, 30) for _ in range(5)]

    def assault() -> None:
        for data in sent.values():
            with contextlib.suppress(OSError), socket.create_connection(address, 30) as sock:
                sock.sendall(data)
        time.sleep(0.05)

    def half_open() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(HALF_OPEN):
                stack.enter_context(socket.create_connection(address, 30))
            stop.wait(0.2)

    def drip() -> None:
        for sock in dripping:
            sock.sendall(b"\x01")
        time.sleep(0.02)

    attackers = [again_and_again(stop, act) for act in (assault, half_open, drip)]
    try:
        until(lambda: int(leader.status()["raft"]["strangers_refused"]) > HALF_OPEN)
        # A member that comes back in the midst of them is let in.
        first.kill()
        until(lambda: first.name not in three.statuses())
        first.start()
        until(
            lambda: first.ready() and first.status()["leader"] == leader.name,
            what="the member is back",
        )
        assert leader.say("Q.PUT", "q", "x", "ID", "a") == "a"
        after = leader.status()
    finally:
        stop.set()
        for thread in attackers:
            thread.join()
        for sock in dripping:
            sock.close()
    assert (after["role"], after["epoch"], after["term"]) == (
        "leader",
        status["epoch"],
        status["term"],
    )
    assert not flag.exists()
    refused = int(leader.status()["raft"]["strangers_refused"])
    size_mib, seen = before[leader.name]
    grown = resident_mib(leader) - size_mib
    lines = sum("at the Raft port" in line for line in leader.messages(seen))
    print(f"{refused} refused, {grown:+.0f} MiB, {lines} lines of log")
    assert refused > HALF_OPEN
    assert grown < GROWTH_MIB
    assert lines <= 3 + (time.monotonic() - begun) / COMPLAINT_S
    assert second.status()["leader"] == leader.name


RESP_SHAPES = {
    "line ends": b"\n",
    "blanks and line ends": b" \r\n",
    "empty arrays": b"*0\r\n",
    "unknown verbs": framed_resp(("Q.PIT",)),
    "wrong logins": framed_resp(("AUTH", ADMIN, "guess")),
    "verbs in vain": framed_resp(("COMMAND", "DOCS")),
    "long requests": framed_resp(("ECHO", "x" * 16_000)),
}
HTTP_SHAPES = {
    "health": b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "wrong logins": (
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin:guess\r\n\r\n"
    ),
    "a body": (
        b"PUT /v1/tokens/p/a HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + b"x" * 900_000
    ),
}
SIEGE_S = 4.0
FLOODS = 6  # connections of each shape
SILENT = 1200  # more than there are places for strangers
# of a core, of the leader, with what it does for users and for Raft; all of it, when nothing bounds
# it
CPU_SHARE = 0.5


class Flood:
    """Sends the same on and on, and reads what it is told; comes again when it is hung up on."""

    def __init__(self, address: tuple[str, int], data: bytes) -> None:
        self._address = address
        self._data = data * (1 + 200_000 // len(data))
        self._sock: socket.socket | None = None
        self.sent = 0

    def turn(self) -> None:
        """As much as goes at once."""
        if self._sock is None:
            self._sock = socket.create_connection(self._address, 5)
            self._sock.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                self.sent += self._sock.send(self._data[self.sent % len(self._data) :])
            with contextlib.suppress(BlockingIOError):
                if not self._sock.recv(1 << 20):
                    raise ConnectionResetError
        except OSError:
            self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def cpu_s(node: Node) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_doors_under_siege(three: Cluster) -> None:
    """
    Every shape at once at the leader's RESP and HTTP doors, and more silent connections than there
    are places.
    """
    leader = three.leader()
    status, before_mib = leader.status(), resident_mib(leader)
    floods = [
        Flood(("127.0.0.1", leader.base_port + number), data)
        for number, shapes in enumerate((RESP_SHAPES, HTTP_SHAPES))
        for data in shapes.values()
        for _ in range(FLOODS)
    ]
    stop = threading.Event()

    def flood() -> None:
        for one in floods:
            with contextlib.suppress(OSError):
                one.turn()

    def be_silent() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(SILENT):
                stack.enter_context(socket.create_connection(("127.0.0.1", leader.base_port), 5))
            stop.wait(2.0)

    attackers = [again_and_again(stop, act) for act in (flood, be_silent)]
    used_s = cpu_s(leader)
    try:
        began, served = time.monotonic(), 0
        while time.monotonic() - began < SIEGE_S or served < 3:
            with leader.client() as client:  # a fresh login, from where the strangers are
                assert client.execute_command("Q.PUT", "q", "x", "ID", f"t{served}") == f"t{served}"
                assert client.execute_command("Q.TAKE", "FROM", "q")
            served += 1
        until(lambda: leader.metric("tidewarden_resp_strangers_held_back_total") > 0)
        until(lambda: leader.metric("tidewarden_resp_strangers_sent_away_total") > 0)
        # Whom the kernel's queue has no place for asks again: TCP by itself does so ever more rarely.
        after = until(leader.status, what="a login is served")
        grown_mib = resident_mib(leader) - before_mib
    finally:
        stop.set()
        for thread in attackers:
            thread.join()
        for one in floods:
            one.close()
    used_s, took_s = cpu_s(leader) - used_s, time.monotonic() - began
    sent_mb = sum(one.sent for one in floods) / 1e6
    print(
        f"{sent_mb:.0f} MB sent, {used_s:.1f} s of processor time in {took_s:.1f} s,"
        f" {grown_mib:+.0f} MiB, {served} logins served"
    )
    assert (after["role"], after["epoch"], after["term"]) == (
        "leader",
        status["epoch"],
        status["term"],
    )
    assert grown_mib < GROWTH_MIB + 32
    assert used_s < CPU_SHARE * took_s + 1.0
    until(lambda: leader.metric("tidewarden_resp_strangers") < 100, what="they are gone")
