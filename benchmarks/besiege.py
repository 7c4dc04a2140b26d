"""
A process that sends garbage for ``benchmarks.strangers``.

It is bounded in connections, bytes and time, and uses loopback only.

    python -m benchmarks.besiege < a description

On each further line of standard input it says what it has sent so far; at the end of that it goes.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

TICK_S = 0.01
END_S = 120.0
SENT_BYTES_MAX = 1 << 30
CONNECTS_A_SECOND_MAX = 1000


@dataclass(frozen=True)
class Shape:
    """
    What is sent at a door.

    Args:
        hello: what each connection begins with.
        again: what it sends over and over.
        piece_bytes: so much in one write.
        rate_bytes: a second and connection, at most.
        reads: whether it reads what it is answered.
        stays_s: hangs up after so long and comes again; 0: only when it is hung up on.
        tls: encrypts; ``handshakes``: and does nothing else.
    """

    door: str
    name: str
    hello: str = ""
    again: str = ""
    piece_bytes: int = 65_536
    rate_bytes: int = 2_000_000
    reads: bool = True
    stays_s: float = 0.0
    tls: bool = False
    connections: int = 32

    def described(self, port: int, connections: int) -> str:
        """As its process is told."""
        return json.dumps({**asdict(self), "port": port, "connections": connections})


@dataclass
class Line:
    """One connection."""

    sock: socket.socket
    since: float
    sent: int = 0
    hello: bytes = b""
    position: int = 0


@dataclass
class Siege:
    """All of them."""

    shape: Shape
    port: int
    lines: dict[int, Line] = field(default_factory=dict)
    sent_bytes: int = 0
    connects: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.hello = self.shape.hello.encode("latin-1")
        again = self.shape.again.encode("latin-1")
        self.again = again * (1 + 2 * self.shape.piece_bytes // len(again)) if again else b""
        self.period = len(again)
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def connect(self, now: float) -> None:
        """One more."""
        self.connects += 1
        try:
            sock = socket.create_connection(("127.0.0.1", self.port), 0.2)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.shape.tls:
                sock = self.context.wrap_socket(sock, server_hostname="localhost")
            sock.setblocking(False)
        except OSError:
            self.failed += 1
            return
        self.lines[sock.fileno()] = Line(sock, now, hello=self.hello)

    def end(self, fd: int) -> None:
        """One less."""
        with contextlib.suppress(OSError):
            self.lines.pop(fd).sock.close()

    def turn(self, now: float) -> None:
        """Whatever is due."""
        allowed = CONNECTS_A_SECOND_MAX * (now - self.began) - self.connects
        while len(self.lines) < self.shape.connections and allowed > 0:
            failed = self.failed
            self.connect(now)
            allowed = 0 if self.failed > failed else allowed - 1
        for fd, line in list(self.lines.items()):
            try:
                if self.shape.reads:
                    self.hear(fd, line)
                if fd in self.lines:
                    self.send(line, now)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError:
                self.end(fd)
            if fd in self.lines and self.shape.stays_s and now - line.since > self.shape.stays_s:
                self.end(fd)

    def hear(self, fd: int, line: Line) -> None:
        """Read what there is."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while data := line.sock.recv(1 << 18):
                if len(data) < 1 << 18:
                    return
            self.end(fd)

    def send(self, line: Line, now: float) -> None:
        """Send as much as it may by now."""
        while line.hello:
            count = line.sock.send(line.hello)
            self.sent_bytes += count
            line.hello = line.hello[count:]
        size = self.shape.piece_bytes
        while self.again and line.sent + size <= self.shape.rate_bytes * (
            now - line.since + TICK_S
        ):
            if self.sent_bytes > SENT_BYTES_MAX:
                return
            count = line.sock.send(self.again[line.position : line.position + size])
            line.position = (line.position + count) % self.period
            line.sent += count
            self.sent_bytes += count

    def said(self) -> str:
        """For whoever asks."""
        return json.dumps(
            {
                "sent_bytes": self.sent_bytes,
                "connects": self.connects,
                "failed": self.failed,
                "open": len(self.lines),
            }
        )


def asked() -> Iterator[bool]:
    """Each turn: whether somebody wants to know; ends with standard input."""
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], TICK_S)
        if ready and not sys.stdin.readline():
            return
        yield bool(ready)


def main() -> None:
    """See above."""
    described = json.loads(sys.stdin.readline())
    siege = Siege(port=described.pop("port"), shape=Shape(**described))
    for wanted in asked():
        if wanted:
            print(siege.said(), flush=True)
        if time.monotonic() - siege.began > END_S:
            return
        siege.turn(time.monotonic())


if __name__ == "__main__":
    main()
