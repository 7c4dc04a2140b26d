"""Strangers at Raft's port of a running cluster: nobody is elected, nothing grows, members still find each other, and it is counted."""

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
from live.harness import STILL, Cluster, Node, cluster, until
from live.nursery import link_password
from pysyncobj.encryptor import getEncryptor

from tidewarden.raft.wire import COMPLAINT_S, FRAME_BYTES_MAX

pytestmark = pytest.mark.live

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
    sealed = {f"{kind}, sealed": framed(seal.encrypt(body)) for kind, body in (("harm", harm), ("a bomb", bomb))}
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
        until(lambda: first.ready() and first.status()["leader"] == leader.name, what="the member is back")
        assert leader.say("Q.PUT", "q", "x", "ID", "a") == "a"
        after = leader.status()
    finally:
        stop.set()
        for thread in attackers:
            thread.join()
        for sock in dripping:
            sock.close()
    assert (after["role"], after["epoch"], after["term"]) == ("leader", status["epoch"], status["term"])
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
