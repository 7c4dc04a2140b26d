"""
Measures what unauthenticated peers cost a node.

It counts processor time and memory, by port and kind of garbage.

    python -m benchmarks.strangers [--python PATH] [--seconds 3] [--only WORD …]

``tidewarden up`` runs three nodes; their leader is besieged, by one connection and by many, while a
neighbour who was let in sends PING. ``--python``: the interpreter that has the version to be
measured. A row each: connections, kilobytes that were sent in the time measured, processor time of
the node a kilobyte, and as a share of a core (what it uses without strangers taken off), memory in
all and a connection, the neighbour's longest PING, whether leadership moved.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.besiege import Shape
from benchmarks.cluster import Cluster, cluster_up
from benchmarks.connections import Broken
from benchmarks.targets import cpu_s, resident_bytes

LIMIT_ONE, LIMIT_ALL = 0.01, 0.10
NOISE = 0.005  # of a core: the clock of /proc ticks a hundred times a second
LIMIT_EACH_KIB, LIMIT_ALL_MIB = 64.0, 32.0
SETTLE_S = 2.0
PORTS = {"RESP": 0, "HTTP": 1, "Raft": 2}


def resp(*words: str) -> str:
    """A request."""
    return "".join([f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)])


def http(path: str, *headers: str, method: str = "GET", body: str = "") -> str:
    """A request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", body])


def frame(body: bytes) -> str:
    """As members send them."""
    return (struct.pack("i", len(body)) + body).decode("latin-1")


RUBBISH = secrets.token_bytes(1 << 16).replace(b"\x16", b"").decode("latin-1")
WRONG = resp("AUTH", "admin", "guess")
HELLO = resp("HELLO", "3", "AUTH", "admin", "guess")
BEARER = "Authorization: Bearer admin:guess"
CHUNKED = "Transfer-Encoding: chunked"
SHAPES = (
    Shape("RESP", "line ends", again="\n"),
    Shape("RESP", "blanks and line ends", again=" \r\n"),
    Shape("RESP", "empty arrays", again="*0\r\n"),
    Shape("RESP", "an unknown verb", again=resp("Q.PIT")),
    Shape("RESP", "unknown verbs", again="".join(resp(f"Q.PI{n}") for n in range(5000))),
    Shape("RESP", "inline verbs", again="x\n"),
    Shape("RESP", "PING", again=resp("PING")),
    Shape("RESP", "COMMAND DOCS", again=resp("COMMAND", "DOCS")),
    Shape("RESP", "HELLO without AUTH", again=resp("HELLO", "3")),
    Shape("RESP", "RESET", again=resp("RESET")),
    Shape("RESP", "QUIT", again=resp("QUIT")),
    Shape("RESP", "wrong AUTH, pipelined", again=WRONG),
    Shape("RESP", "wrong AUTH, nothing read", again=WRONG, reads=False),
    Shape("RESP", "wrong HELLO AUTH", again=HELLO),
    Shape("RESP", "wrong AUTH, new lines", hello=WRONG, stays_s=0.05),
    Shape("RESP", "PING, nothing read", again=resp("PING"), reads=False),
    Shape("RESP", "an announced GiB", hello="*1\r\n$1073741824\r\n", again="x"),
    Shape("RESP", "16 KiB, again and again", again=resp("ECHO", "x" * 16_000)),
    Shape("RESP", "many arguments", again=resp("AUTH", *["x"] * 2000)),
    Shape(
        "RESP",
        "a byte at a time",
        again=resp("AUTH", "u", "x" * 4000),
        piece_bytes=1,
        rate_bytes=3000,
    ),
    Shape("RESP", "random bytes", again=RUBBISH),
    Shape("RESP", "come and go", stays_s=0.001),
    Shape("RESP", "silent", connections=1500),
    Shape("HTTP", "health", again=http("/health/live"), piece_bytes=len(http("/health/live"))),
    Shape("HTTP", "health, pipelined", again=http("/health/live")),
    Shape("HTTP", "health, nothing read", again=http("/health/live"), reads=False),
    Shape("HTTP", "metrics", again=http("/metrics")),
    Shape("HTTP", "a wrong secret", again=http("/metrics", BEARER)),
    Shape("HTTP", "no such path", again=http("/" + "x" * 50)),
    Shape("HTTP", "many headers", again=http("/", *(f"x{n}: {'y' * 50}" for n in range(100)))),
    Shape("HTTP", "a head without end", hello="GET / HTTP/1.1\r\n", again="a: b\r\n"),
    Shape(
        "HTTP", "chunks", hello=http("/v1/tokens/p/a", CHUNKED, method="PUT"), again="1\r\nx\r\n"
    ),
    Shape(
        "HTTP",
        "a body",
        hello=http("/v1/tokens/p/a", "Content-Length: 900000", method="PUT"),
        again="x",
    ),
    Shape(
        "HTTP",
        "another node's path",
        again=http("/v1/peers", "Content-Length: 4", method="POST", body="aaaa"),
    ),
    Shape("HTTP", "a byte at a time", again=http("/health/live"), piece_bytes=1, rate_bytes=3000),
    Shape("HTTP", "random bytes", again=RUBBISH),
    Shape("HTTP", "come and go", stays_s=0.001),
    Shape("HTTP", "silent", connections=900),
    Shape("Raft", "random bytes", again=RUBBISH),
    Shape("Raft", "a frame of a MiB", hello=frame(secrets.token_bytes(1 << 20))),
    Shape("Raft", "half a frame of a MiB", hello=frame(bytes(1 << 20))[: 1 << 19], connections=60),
    Shape("Raft", "a long token", hello=frame(b"gAAAAAB" + b"a" * 1_048_560)),
    Shape("Raft", "small frames", again=frame(b"gAAAAAB" + b"a" * 100)),
    Shape("Raft", "a byte at a time", again="\x01", piece_bytes=1, rate_bytes=3000),
    Shape("Raft", "come and go", stays_s=0.001),
    Shape("Raft", "silent", connections=500),
)


class Neighbour:
    """A user who sends PING at the same node."""

    def __init__(self, port: int, secret: str) -> None:
        self._address, self._secret = ("127.0.0.1", port), secret
        self._ended = threading.Event()
        self._took_s: list[float] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        ping = resp("PING").encode()
        while not self._ended.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._address, 30) as sock:
                sock.sendall(resp("AUTH", "admin", self._secret).encode())
                sock.recv(100)
                while not self._ended.wait(0.01):
                    began = time.perf_counter()
                    sock.sendall(ping)
                    if not sock.recv(100):
                        break
                    self._took_s.append(time.perf_counter() - began)

    def longest_ms(self) -> float:
        """Of those since this was asked last."""
        found, self._took_s = self._took_s, []
        return 1000 * max(found, default=float("inf"))

    def end(self) -> None:
        """Hang up."""
        self._ended.set()
        self._thread.join(60)


@contextlib.contextmanager
def besieged(shape: Shape, port: int, connections: int) -> Iterator[subprocess.Popen[str]]:
    """So many connections at this port."""
    argv = [sys.executable, "-m", "benchmarks.besiege"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(shape.described(port, connections) + "\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, int]:
    """What it has sent so far. Raises: Broken."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise Broken("who besieges it has ended")
    found: dict[str, int] = json.loads(line)
    return found


@dataclass(frozen=True)
class Found:
    """One row."""

    shape: Shape
    connections: int
    sent_kb: float
    us_per_kb: float
    share: float
    grown_mib: float
    each_kib: float
    ping_ms: float
    moved: bool

    @property
    def kept(self) -> bool:
        """Whether all limits were."""
        share = LIMIT_ONE if self.connections == 1 else LIMIT_ALL
        memory = self.grown_mib <= LIMIT_ALL_MIB and (
            self.connections == 1 or self.each_kib <= LIMIT_EACH_KIB
        )
        return self.share <= share + NOISE and memory and not self.moved

    def row(self) -> str:
        """For people."""
        return (
            f"{self.shape.door:5} {self.shape.name:26} {self.connections:5} {self.sent_kb:9,.0f}"
            f" {self.us_per_kb:9,.1f} {100 * self.share:7.1f} {self.grown_mib:7.1f}"
            f" {self.each_kib:8.1f} {self.ping_ms:8.0f} {'MOVED' if self.moved else 'stayed':>7}"
            f" {'kept' if self.kept else 'MISSED':>7}"
        )


HEAD = (
    f"{'door':5} {'shape':26} {'conns':>5} {'KB sent':>9} {'us/KB':>9} {'core %':>7} {'MiB':>7}"
    f" {'KiB each':>8} {'PING ms':>8} {'leader':>7} {'limits':>7}"
)


async def measure(cluster: Cluster, shape: Shape, connections: int, seconds: float) -> Found:
    """Besiege the leader, whose share of a core is measured just before, too."""
    port, epoch = await cluster.calm()
    status = await cluster.status(port)
    assert status is not None
    pid = int(status["pid"])
    neighbour = await asyncio.to_thread(Neighbour, port, cluster.secret)
    before, used_s, began = resident_bytes(pid), cpu_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    quiet = (cpu_s(pid) - used_s) / (time.perf_counter() - began)
    with besieged(shape, port + PORTS[shape.door], connections) as process:
        await asyncio.sleep(SETTLE_S)
        neighbour.longest_ms()
        sent, used_s, began, most = (
            (await asyncio.to_thread(told, process)),
            cpu_s(pid),
            time.perf_counter(),
            before,
        )
        while time.perf_counter() - began < seconds:
            await asyncio.sleep(0.1)
            most = max(most, resident_bytes(pid))
        used_s, took_s = cpu_s(pid) - used_s, time.perf_counter() - began
        after = await asyncio.to_thread(told, process)
    await asyncio.to_thread(neighbour.end)
    now, now_epoch = await cluster.calm()
    share = max(0.0, used_s / took_s - quiet)
    sent_kb = (after["sent_bytes"] - sent["sent_bytes"]) / 1000
    grown = max(0, most - before)
    return Found(
        shape,
        connections,
        sent_kb,
        1e6 * share * took_s / max(sent_kb, 1.0),
        share,
        grown / (1 << 20),
        grown / 1024 / connections,
        neighbour.longest_ms(),
        (now, now_epoch) != (port, epoch),
    )


def rows(words: list[str]) -> Iterator[tuple[Shape, int]]:
    """Shapes whose door and name have one of these words, each by one connection and by many."""
    for shape in SHAPES:
        if not words or any(word in f"{shape.door} {shape.name}" for word in words):
            yield from ((shape, connections) for connections in (1, shape.connections))


async def run(options: argparse.Namespace, folder: Path) -> int:
    """
    Run every kind of garbage.

    Returns how many rows missed a limit. Nodes that do not come to rest after one are given up for
    others.
    """
    missed, left = 0, list(rows(options.only))
    while left:
        async with cluster_up(Path(tempfile.mkdtemp(dir=folder)), options.python) as cluster:
            await asyncio.sleep(5.0)
            print(HEAD, flush=True)
            while left:
                shape, connections = left.pop(0)
                try:
                    found = await measure(cluster, shape, connections, options.seconds)
                except Broken as broken:
                    missed += 1
                    print(
                        f"{shape.door:5} {shape.name:26} {connections:5} MISSED: {broken}",
                        flush=True,
                    )
                    break
                missed += not found.kept
                print(found.row(), flush=True)
    return missed


def main() -> None:
    """See above."""
    parser = machine.arguments("What strangers cost a node.")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="the interpreter that has the version to be measured",
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured of each row, after two to settle"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="shapes whose door and name have one of these words"
    )
    options = parser.parse_args()
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder)
        missed = machine.run(run(options, folder))
    one, share = (
        f"{100 * LIMIT_ONE:g} % of a core",
        f"{100 * LIMIT_ALL:g} % and {LIMIT_ALL_MIB:g} MiB",
    )
    print(
        f"\none stranger: limit ≤ {one}; all together: limit ≤ {share}: {missed} rows missed a"
        " limit"
    )


if __name__ == "__main__":
    main()
