"""
A TCP proxy for tests, in threads: it can hold the bytes of one connection, let them go, and cut
every connection, or one.

Each direction is a :class:`Way`, which can delay what passes, hold it back, slice it, lose it for
good, or reset at random. Connections to a store say who they are (CLIENT SETNAME): those of one
name have ways of their own, and can be cut alone, with a request that does not arrive or an answer
that does not come (:class:`Loss`).
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import hiredis

Direction = Literal["up", "down"]
"""``up``: from the client to the server."""
Part = Literal["request", "reply", "message"]
"""What a connection is cut with: see :class:`Loss`."""
NAMED = re.compile(rb"SETNAME\r\n\$\d+\r\n([^\r\n]+)\r\n")
NAMED_WITHIN = 4096
"""Of the first bytes of a connection: it says its name there, or never."""
RST = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST


@dataclass
class Trap:
    """
    Waits for ``pattern`` in ``direction``, then holds that connection from the read that completed
    the pattern on.

    ``held`` is what was caught; ``replies`` is what came the other way on the same connection
    since.
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
class Loss:
    """
    Cuts one connection alone, once: the next one whose name ends with ``of`` and on which
    ``pattern`` passes (empty: anything).

    ``request``: it goes up, and does not reach the server. ``reply``: it goes up and is executed;
    its answer, and what came before that since, does not reach the client. ``message``: it comes
    down, and does not reach the client.
    """

    of: str
    part: Part
    pattern: bytes = b""
    reset: bool = True
    met: bool = False
    """A connection is about to be cut for it."""
    happened: threading.Event = field(default_factory=threading.Event)

    def wait(self, limit_s: float = 60.0) -> None:
        """Fails when nothing was lost in time."""
        assert self.happened.wait(limit_s), (
            f"no {self.part} with {self.pattern!r} on {self.of} within {limit_s} s"
        )


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
    """
    A black hole: nothing passes, nobody is told. A connection that lost a byte stays in it until it
    is cut.
    """
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
    Forwards every connection to its port to ``(host, target)``. Threads only; :meth:`close` ends
    them.

    ``listening`` makes the socket for the port given; without it one on ``host``. Port 0: a free
    one. ``connect`` makes the connection on for one from that address, instead of one to ``(host,
    target)``. ``of_peer``: the ways of connections from some addresses; all others have ``ways``.
    Those of a name have :meth:`named` besides.
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
        self._losses: list[Loss] = []
        self._named: dict[str, dict[Direction, Way]] = {}
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    def trap(self, pattern: bytes, direction: Direction = "up") -> Trap:
        """Hold the next connection on which ``pattern`` passes."""
        trap = Trap(pattern, direction)
        with self._lock:
            self._traps.append(trap)
        return trap

    def lose(self, of: str, part: Part, pattern: bytes = b"", *, reset: bool = True) -> Loss:
        """
        Cut the next connection of that name with what it asks, what it is answered, or what it
        hears.
        """
        loss = Loss(of, part, pattern, reset)
        with self._lock:
            self._losses.append(loss)
        return loss

    def named(self, of: str) -> dict[Direction, Way]:
        """
        The ways of connections whose name ends with it, those that are yet to be made included.
        """
        with self._lock:
            return self._named.setdefault(of, {"up": Way(), "down": Way()})

    def cut(self, of: str = "", *, reset: bool = True) -> int:
        """
        Close every connection, or those whose name ends so, with RST or with FIN; how many there
        were.
        """
        with self._lock:
            links = [link for link in self._links if link.is_of(of)]
        for link in links:
            link.cut(reset=reset)
        return len(links)

    def calm(self) -> None:
        """
        Bytes pass both ways, and what has not been lost yet is not going to be. Connections that
        lost some in a black hole are reset, for they can never be whole again.
        """
        with self._lock:
            named = list(self._named.values())
            self._losses = [
                loss for loss in self._losses if loss.met and not loss.happened.is_set()
            ]
        for ways in (self.ways, *self.of_peer.values(), *named):
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
            # else the kernel holds back small pieces on its own account
            for end in (client, server):
                if end.family != socket.AF_UNIX:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, client, server, self.of_peer.get(peer, self.ways))
            with self._lock:
                self._links.add(link)
            link.start()

    # What links call.

    def caught(self, seen: bytes, direction: Direction) -> Trap | None:
        with self._lock:
            for trap in self._traps:
                if (
                    trap.direction == direction
                    and not trap.caught.is_set()
                    and trap.pattern in seen
                ):
                    return trap
        return None

    def losing(self, link: Link, seen: bytes, direction: Direction) -> Loss | None:
        """What this connection is to be cut for, with what has been seen just now."""
        with self._lock:
            for loss in self._losses:
                its = "down" if loss.part == "message" else "up"
                if (
                    its == direction
                    and not loss.met
                    and link.is_of(loss.of)
                    and loss.pattern in seen
                ):
                    loss.met = True
                    return loss
        return None

    def ways_of(self, link: Link, direction: Direction) -> list[Way]:
        """Of connections of its name."""
        with self._lock:
            return [ways[direction] for name, ways in self._named.items() if link.is_of(name)]

    def longest(self) -> int:
        with self._lock:
            return max((len(one.pattern) for one in (*self._traps, *self._losses)), default=0)

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)


class Tally:
    """Counts the requests and the answers of a connection that speaks RESP."""

    def __init__(self) -> None:
        self._readers: dict[Direction, hiredis.Reader] = {
            "up": hiredis.Reader(notEnoughData=...),
            "down": hiredis.Reader(notEnoughData=...),
        }
        self._counts: dict[Direction, int] = {"up": 0, "down": 0}

    def see(self, direction: Direction, data: bytes) -> None:
        reader = self._readers[direction]
        # it speaks something else, and nobody asks for its count
        with contextlib.suppress(hiredis.ProtocolError):
            reader.feed(data)
            while reader.gets() is not ...:
                self._counts[direction] += 1

    @property
    def asked(self) -> int:
        """How many requests there were, one included of which only a part has come yet."""
        return self._counts["up"] + self._readers["up"].has_data()

    @property
    def answered(self) -> int:
        return self._counts["down"]


class Link:
    """
    One connection through the proxy: two sockets, a thread a direction; the last of them closes the
    sockets.
    """

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, ways: dict[Direction, Way]
    ) -> None:
        self._proxy, self._ways = proxy, ways
        self._ends: dict[Direction, tuple[socket.socket, socket.socket]] = {
            "up": (client, server),
            "down": (server, client),
        }
        self._first = b""
        self._name: str | None = None
        self._tally = Tally()
        self._trap: Trap | None = None
        self._loss: Loss | None = None
        self._owed = 0
        self._reset = False
        self.lost = False
        self._open = 2
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._pump, args=(direction,), name=f"proxy {direction}", daemon=True
            )
            for direction in self._ends
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def is_of(self, name: str) -> bool:
        """
        Whether it goes by that name, or by one that ends so after a hyphen; by no name: every
        connection.
        """
        return not name or (self._name is not None and f"-{self._name}".endswith(f"-{name}"))

    def cut(self, *, reset: bool) -> None:
        """End both directions."""
        self._reset = reset
        for end, _ in self._ends.values():
            with contextlib.suppress(OSError):
                if reset:
                    # what the last close() then sends
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
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
            self._learn(direction, data)
            found = self._proxy.caught(before + data, direction)
            if found is not None:
                self._trap = found
                found.held = data
                found.caught.set()
                found.free.wait()
            if self._loses(direction, before + data):
                continue
            before = (before + data)[-max(0, self._proxy.longest() - 1) or len(before + data) :]
            slice_bytes = self._held_up(direction)
            if slice_bytes is None:
                continue
            try:
                if reachable:
                    step = slice_bytes or len(data)
                    for start in range(0, len(data), step):
                        target.sendall(data[start : start + step])
            except OSError:
                # what still comes is read all the same: it may be the answer to a held call
                reachable = False

    def _learn(self, direction: Direction, data: bytes) -> None:
        """What it is called, and how much it has asked and was answered."""
        self._tally.see(direction, data)
        if direction == "up" and self._name is None and len(self._first) < NAMED_WITHIN:
            self._first += data
            if found := NAMED.search(self._first):
                self._name = found[1].decode()

    def _loses(self, direction: Direction, seen: bytes) -> bool:
        """Whether what was read just now goes no further, for this connection is cut."""
        if direction == "down" and self._loss is not None:
            if self._tally.answered >= self._owed:
                self._end_by(self._loss)
            return True
        loss = None if self._loss is not None else self._proxy.losing(self, seen, direction)
        if loss is None:
            return False
        if loss.part == "reply":
            self._owed, self._loss = self._tally.asked, loss
            return False
        self._end_by(loss)
        return True

    def _end_by(self, loss: Loss) -> None:
        self.lost = True  # nor does what was read behind it get anywhere
        self.cut(reset=loss.reset)
        loss.happened.set()

    def _held_up(self, direction: Direction) -> int | None:
        """
        Wait as its ways have it. Into how many bytes what was read is sliced (0: none), or None: it
        is lost.
        """
        ways = [self._ways[direction], *self._proxy.ways_of(self, direction)]
        for way in ways:
            way.open.wait()
        if delay_s := sum(way.delay_s for way in ways):
            time.sleep(delay_s)
        if self.lost or any(way.lost for way in ways):
            self.lost = True
            return None
        if any(way.reset_chance and way.dice.random() < way.reset_chance for way in ways):
            self.lost = (
                # What stands behind it in the socket's buffer gets nowhere either: there is no gap
                # in TCP.
                True
            )
            self.cut(reset=True)
            return None
        return min((way.slice_bytes for way in ways if way.slice_bytes), default=0)
