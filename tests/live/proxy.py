"""
A TCP proxy for tests, in threads: it can hold the bytes of one connection, let them go, and cut every connection.

Each direction is a :class:`Way`, which can delay what passes, hold it back, slice it, lose it for good, or reset at random.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["up", "down"]
"""``up``: from the client to the server."""
RST = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST


@dataclass
class Trap:
    """
    Waits for ``pattern`` in ``direction``, then holds that connection from the read that completed the pattern on.

    ``held`` is what was caught; ``replies`` is what came the other way on the same connection since.
    """

    pattern: bytes
    direction: Direction
    held: bytes = b""
    replies: bytes = b""
    caught: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def wait(self, limit_s: float = 60.0) -> bytes:
        """What was caught; fails when nothing is in time."""
        assert self.caught.wait(limit_s), f"{self.pattern!r} did not pass within {limit_s} s"
        return self.held

    def release(self) -> None:
        """Let it go on its way."""
        self.free.set()


@dataclass
class Way:
    """What happens to the bytes of one direction, on every connection of a proxy."""

    delay_s: float = 0.0
    """Each read waits so long before it is written on; what comes meanwhile is the next read."""
    slice_bytes: int = 0
    """Written on in pieces of so many bytes; 0: as they came."""
    reset_chance: float = 0.0
    """Of each read, that it is thrown away and its connection reset."""
    lost: bool = False
    """A black hole: nothing passes, nobody is told. A connection that lost a byte stays in it until it is cut."""
    open: threading.Event = field(default_factory=threading.Event)
    """Cleared: what comes is held back until it is set."""
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.open.set()

    def calm(self) -> None:
        """Bytes pass as they come."""
        self.delay_s, self.slice_bytes, self.reset_chance, self.lost = 0.0, 0, 0.0, False
        self.open.set()


class Proxy:
    """
    Forwards every connection to its port to ``(host, target)``. Threads only; :meth:`close` ends them.

    ``listening`` makes the socket for the port given; without it one on ``host``. Port 0: a free one.
    ``connect`` makes the connection on for one from that address, instead of one to ``(host, target)``.
    ``of_peer``: the ways of connections from some addresses; all others have ``ways``.
    """

    def __init__(
        self,
        target: int,
        host: str = "127.0.0.1",
        *,
        port: int = 0,
        listening: Callable[[int], socket.socket] | None = None,
        connect: Callable[[str], socket.socket] | None = None,
    ) -> None:
        self._connect = connect or (lambda _peer: socket.create_connection((host, target), 20))
        self.ways: dict[Direction, Way] = {"up": Way(), "down": Way()}
        self.of_peer: dict[str, dict[Direction, Way]] = {}
        self._server = listening(port) if listening else socket.create_server((host, port))
        self.port: int = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._traps: list[Trap] = []
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    def trap(self, pattern: bytes, direction: Direction = "up") -> Trap:
        """Hold the next connection on which ``pattern`` passes."""
        trap = Trap(pattern, direction)
        with self._lock:
            self._traps.append(trap)
        return trap

    def cut(self, *, reset: bool = True) -> int:
        """Close every connection, with RST or with FIN; how many there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut(reset=reset)
        return len(links)

    def calm(self) -> None:
        """Bytes pass both ways; connections that lost some in a black hole are reset, for they can never be whole again."""
        for ways in (self.ways, *self.of_peer.values()):
            for way in ways.values():
                way.calm()
        with self._lock:
            lost = [link for link in self._links if link.lost]
        for link in lost:
            link.cut(reset=True)

    def close(self) -> None:
        """Stop listening and close everything."""
        self._closed = True
        self.calm()
        with self._lock:
            traps = list(self._traps)
        for trap in traps:
            trap.release()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._server.close()
        self.cut()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.join()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, (peer, *_) = self._server.accept()
            except OSError:
                return
            try:
                server = self._connect(peer)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
                client.close()
                continue
            server.settimeout(None)
            for end in (client, server):  # else the kernel holds back small pieces on its own account
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, client, server, self.of_peer.get(peer, self.ways))
            with self._lock:
                self._links.add(link)
            link.start()

    # What links call.

    def caught(self, seen: bytes, direction: Direction) -> Trap | None:
        with self._lock:
            for trap in self._traps:
                if trap.direction == direction and not trap.caught.is_set() and trap.pattern in seen:
                    return trap
        return None

    def longest(self) -> int:
        with self._lock:
            return max((len(trap.pattern) for trap in self._traps), default=0)

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)


class Link:
    """One connection through the proxy: two sockets, a thread a direction; the last of them closes the sockets."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, ways: dict[Direction, Way]) -> None:
        self._proxy, self._ways = proxy, ways
        self._ends: dict[Direction, tuple[socket.socket, socket.socket]] = {
            "up": (client, server),
            "down": (server, client),
        }
        self._trap: Trap | None = None
        self._reset = False
        self.lost = False
        self._open = 2
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._pump, args=(direction,), name=f"proxy {direction}", daemon=True)
            for direction in self._ends
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def cut(self, *, reset: bool) -> None:
        """End both directions."""
        self._reset = reset
        for end, _ in self._ends.values():
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)  # what the last close() then sends
                end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    def _pump(self, direction: Direction) -> None:
        source, target = self._ends[direction]
        try:
            self._forward(direction, source, target)
        finally:
            if not self._reset:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
            with self._lock:
                self._open -= 1
                last = self._open == 0
            if last:
                for end in (source, target):
                    end.close()
                self._proxy.forget(self)

    def _forward(self, direction: Direction, source: socket.socket, target: socket.socket) -> None:
        before, reachable = b"", True
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            trap = self._trap
            if trap is not None and trap.direction != direction:
                trap.replies += data
            if not data:
                return
            found = self._proxy.caught(before + data, direction)
            if found is not None:
                self._trap = found
                found.held = data
                found.caught.set()
                found.free.wait()
            before = (before + data)[-max(0, self._proxy.longest() - 1) or len(before + data) :]
            way = self._ways[direction]
            way.open.wait()
            if way.delay_s:
                time.sleep(way.delay_s)
            if self.lost or way.lost:
                self.lost = True
                continue
            if way.reset_chance and way.dice.random() < way.reset_chance:
                self.cut(reset=True)
                return
            try:
                if reachable:
                    step = way.slice_bytes or len(data)
                    for start in range(0, len(data), step):
                        target.sendall(data[start : start + step])
            except OSError:
                reachable = False  # what still comes is read all the same: it may be the answer to a held call
