"""
The Raft port against strangers and against peers that know the cluster's secret but not their
place.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pickle
import random
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pysyncobj.journal
import pysyncobj.pickle
import pytest
from cryptography.fernet import Fernet
from pysyncobj import SyncObjConf
from pysyncobj.encryptor import getEncryptor
from support.inspect import PAID, addresses_of, config_of, ticker_of, times_of, voter_of

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import Cluster, Config, Node
from tidewarden.config.load import Raft as RaftSection
from tidewarden.raft import RaftMember, files, wire
from tidewarden.raft.member import link_password

SECRET = "a cluster secret of the tests"


@functools.cache
def sealing() -> Fernet:
    """That of the members; to stretch the secret takes longer than most of these tests."""
    return getEncryptor(link_password(SECRET, "tidewarden"))


class Harm:
    """Unpickling it makes the folder ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


class Peer:
    """One connection to a member's Raft port; with ``encrypt`` it knows the cluster's secret."""

    def __init__(self, port: int, encrypt: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.cipher = sealing() if encrypt else None
        self.key = b""

    def send(self, message: object, protocol: int = 2) -> None:
        data = zlib.compress(pickle.dumps((self.key, message) if self.key else message, protocol))
        if self.cipher is not None:
            data = self.cipher.encrypt_at_time(data, 10**9)
        self.socket.sendall(struct.pack("i", len(data)) + data)

    def receive(self) -> Any:
        (length,) = struct.unpack("i", self._exactly(4))
        data = self._exactly(length)
        return pickle.loads(zlib.decompress(self.cipher.decrypt(data) if self.cipher else data))

    def greet(self) -> None:
        """Exchange keys, as a member does before it says who it is."""
        self.send(b"k" * 32)
        self.key = self.receive()[1]

    def is_closed(self) -> bool:
        """Whether the other side closes the connection, having sent nothing more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def hear(self, kind: str) -> None:
        """Wait for a message of this kind."""
        while self.receive()[1]["type"] != kind:
            pass

    def hear_end(self) -> None:
        """Wait until the other side closes the connection, whatever it sends before."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(4096):
                pass

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "closed"
            data += more
        return data


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """
    ``await member()`` starts a lone member; with ``peer=True`` one of two, the other of which is
    not there.
    """
    running: list[RaftMember] = []

    async def start(pace: float = 1.0, peer: bool = False) -> RaftMember:
        base = free_ports(4)
        members = {"n0": f"127.0.0.1:{base}", "n1": "127.0.0.2:9"} if peer else {}
        config = Config(
            cluster=Cluster(members=members),
            node=Node(base_port=base, data_dir=str(tmp_path / "n0")),
            raft=RaftSection(pace=pace),
        )
        raft = RaftMember(config, SECRET, SystemClock(), lambda: None)
        await raft.start()
        running.append(raft)
        if not peer:
            await asyncio.wait_for(raft.elected(), 20)
        return raft

    yield start
    for raft in running:
        await raft.stop()


def port_of(raft: RaftMember) -> int:
    return config_of(raft).node.raft_port


async def closed(peer: Peer) -> bool:
    return await asyncio.to_thread(peer.is_closed)


async def refused(raft: RaftMember, count: int) -> None:
    """Wait until ``count`` connections were refused."""
    end = time.monotonic() + 20
    while raft.status()["strangers_refused"] < count:
        assert time.monotonic() < end, raft.status()
        await asyncio.sleep(0.01)


async def test_a_hostile_pickle_runs_no_code(member: Callable[..., Any], tmp_path: Path) -> None:
    raft = await member()
    flag = tmp_path / "harmed"
    # knows nothing of frames
    with socket.create_connection(("127.0.0.1", port_of(raft)), timeout=10) as bare:
        bare.sendall(pickle.dumps(Harm(flag)))
        bare.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(bare.recv, 1) == b""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for encrypt in (False, True):  # knows the frames; knows the secret, too
            peer = Peer(port_of(raft), encrypt)
            peer.send(Harm(flag), protocol)
            assert await closed(peer)
            peer.socket.close()
    late = Peer(port_of(raft), encrypt=True)
    await asyncio.to_thread(late.greet)
    late.send(Harm(flag))
    assert await closed(late)
    late.socket.close()
    assert not flag.exists()
    assert raft.is_leader()
    assert await raft.claim(1, 0) == 1


async def test_without_the_whitelist_the_same_pickle_would_run(tmp_path: Path) -> None:
    flag = tmp_path / "harmed"
    data = pickle.dumps(Harm(flag), 2)
    for read in (pysyncobj.pickle.loads, pysyncobj.journal.loads, files.loads):
        with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir is not allowed"):
            read(data)
    assert not flag.exists()
    pickle.loads(data)
    assert flag.exists()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\0" * 64,
        b"\xff" * 64,
        struct.pack("i", 2**31 - 1) + b"x" * 1000,
        struct.pack("i", wire.FRAME_BYTES_MAX + 1),
        struct.pack("i", 100) + b"x" * 100,
        random.Random(1).randbytes(200_000),
    ],
    ids=["http", "zeros", "ones", "2 GiB", "over the limit", "no token", "noise"],
)
async def test_garbage_closes_its_own_connection_and_nothing_else(
    member: Callable[..., Any], garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    raft = await member()
    peer = Peer(port_of(raft), encrypt=False)
    with contextlib.suppress(ConnectionError):  # closed before all of it was sent
        peer.socket.sendall(garbage)
    assert await closed(peer)
    peer.socket.close()
    await refused(raft, 1)
    assert "closed a connection of 127.0.0.1:" in caplog.text
    assert SECRET not in caplog.text
    assert await raft.claim(1, 0) == 1


def test_the_most_entries_that_a_leader_sends_at_once_fit_a_frame() -> None:
    """Its batches are bounded by their commands' bytes alone, and an election's has but one."""
    size = SyncObjConf().appendEntriesBatchSizeBytes
    entries = [(b"\x01", 10**6 + number, 10**6 + number) for number in range(size)]
    data = pysyncobj.pickle.dumps((b"k" * 32, {"type": "append_entries", "entries": entries}))
    assert len(data) < wire.INFLATED_BYTES_MAX / 2
    assert len(sealing().encrypt(zlib.compress(data, 3))) < wire.FRAME_BYTES_MAX / 2


async def test_strangers_are_read_and_accepted_as_their_budget_allows(
    member: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted is how often one of them had the thread's attention: each time costs."""
    # the budget bears five at once, and then three in two seconds
    monkeypatch.setattr(wire, "TICK_S", 0.02)
    raft = await member()
    turns = 0
    paid = getattr(wire.RaftTransport, PAID)

    def counted(subject: wire.RaftTransport, conn: wire.RaftConnection, cost_s: float) -> None:
        nonlocal turns
        turns += 1
        paid(subject, conn, cost_s)

    monkeypatch.setattr(wire.RaftTransport, PAID, counted)
    began = time.monotonic()
    peers = [Peer(port_of(raft), encrypt=False) for _ in range(12)]
    while time.monotonic() - began < 2.0:
        for peer in peers:
            peer.socket.send(b"\x01")
        await asyncio.sleep(0.01)
    allowed = (wire.STRANGERS_BURST_S + wire.STRANGERS_SHARE * (time.monotonic() - began)) / 0.02
    assert turns <= allowed + len(peers) * 2
    assert await raft.claim(1, 0) == 1
    for peer in peers:
        peer.socket.close()
    monkeypatch.setattr(wire, "TICK_S", 0.000_1)
    known = await asyncio.to_thread(greeted, port_of(raft))
    known.socket.close()


def greeted(port: int) -> Peer:
    """One with the secret, once it has its key."""
    peer = Peer(port, encrypt=True)
    peer.greet()
    return peer


async def test_who_has_the_secret_may_send_long_frames(member: Callable[..., Any]) -> None:
    raft = await member()
    peer = await asyncio.to_thread(greeted, port_of(raft))
    peer.send("127.0.0.9:9")
    peer.send({"type": "nothing of ours", "rubbish": os.urandom(100_000)})
    await asyncio.to_thread(peer.hear, "ping")
    assert raft.status()["strangers_refused"] == 0
    peer.socket.close()


async def test_a_frame_of_the_longest_length_is_gathered_and_no_more(
    member: Callable[..., Any],
) -> None:
    raft = await member()
    peer = Peer(port_of(raft), encrypt=False)
    most = wire.STRANGER_FRAME_BYTES_MAX
    peer.socket.sendall(struct.pack("i", most) + b"x" * (most - 1))
    assert await raft.claim(1, 0) == 1
    assert raft.status()["strangers_refused"] == 0
    peer.socket.sendall(b"x")
    assert await closed(peer)
    peer.socket.close()


@pytest.mark.parametrize(
    "message",
    [
        ["status"],
        ["add", "127.0.0.1:9"],
        ["remove", "127.0.0.1:9"],
        ["transfer"],
        ["set_version", 1],
        "readonly",
        7,
        {},
    ],
    ids=str,
)
async def test_the_secret_alone_opens_no_command(
    member: Callable[..., Any], message: object
) -> None:
    raft = await member()
    peer = Peer(port_of(raft), encrypt=True)
    await asyncio.to_thread(peer.greet)
    peer.send(message)
    assert await closed(peer)
    peer.socket.close()
    await refused(raft, 1)
    assert await raft.claim(1, 0) == 1


async def test_a_key_of_another_kind_is_refused(member: Callable[..., Any]) -> None:
    raft = await member()
    for message in (["status"], b"short", 0):
        peer = Peer(port_of(raft), encrypt=True)
        peer.send(message)
        assert await closed(peer)
        peer.socket.close()


async def test_a_member_is_heard_and_its_older_connection_closed(
    member: Callable[..., Any],
) -> None:
    raft = await member(pace=0.5, peer=True)
    own = addresses_of(raft)
    assert own["n0"] < own["n1"]  # the greater address connects to the lesser
    peers = []
    for _ in range(2):
        peer = Peer(port_of(raft), encrypt=True)
        await asyncio.to_thread(peer.greet)
        peer.send(own["n1"])
        peers.append(peer)
        await asyncio.to_thread(peer.hear, "pre_vote")
    await asyncio.to_thread(peers[0].hear_end)
    heartbeat = {
        "type": "append_entries",
        "term": 10**6,
        "commit_index": 1,
        "entries": [],
        "prevLogIdx": 1,
    }
    peers[1].send(heartbeat | {"prevLogTerm": 0})
    end = time.monotonic() + 20
    while raft.leader() != "n1":
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    assert raft.role() == "follower"
    assert raft.has_quorum()
    assert raft.term == 10**6
    peers[1].send("no message")
    while raft.role() != "orphan":
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    assert raft.leader() is None
    for peer in peers:
        peer.socket.close()


async def test_a_link_that_falls_silent_is_closed_and_one_that_speaks_is_not(
    member: Callable[..., Any],
) -> None:
    raft = await member(pace=0.5, peer=True)
    peer = Peer(port_of(raft), encrypt=True)
    await asyncio.to_thread(peer.greet)
    peer.send(addresses_of(raft)["n1"])
    kinds = set()
    began = time.monotonic()
    while time.monotonic() < began + 3 * times_of(raft).link_s or "ping" not in kinds:
        assert time.monotonic() < began + 20
        peer.send({"type": "ping"})
        kinds.add((await asyncio.to_thread(peer.receive))[1]["type"])
    assert kinds == {"pre_vote", "ping"}  # it asks for ever, and stands in no term
    assert raft.term == 0
    await asyncio.to_thread(peer.hear_end)
    peer.socket.close()


async def test_the_silent_and_the_many_are_sent_away(member: Callable[..., Any]) -> None:
    raft = await member(pace=0.2)
    silent = [Peer(port_of(raft), encrypt=False) for _ in range(wire.STRANGERS_MAX + 5)]
    await refused(raft, len(silent))
    for peer in silent:
        assert await closed(peer)
        peer.socket.close()
    assert raft.is_leader()


async def test_a_listener_that_was_lost_is_opened_again(member: Callable[..., Any]) -> None:
    raft = await member()
    server = voter_of(raft)._SyncObj__transport._server
    lost = server._TcpServer__socket
    ticker_of(raft).ask(lambda _: server.unbind())
    end = time.monotonic() + 20
    while server._TcpServer__socket is lost or server._TcpServer__state != 1:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    socket.create_connection(("127.0.0.1", port_of(raft)), timeout=10).close()
    assert raft.is_leader()
