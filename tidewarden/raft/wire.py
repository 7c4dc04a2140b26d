"""
Keeps PySyncObj's links: bounded frames, dead links noticed, strangers kept out.

Only a peer that has the cluster's secret is let in. A peer that has it and is no member here may be
one of a later version, so it is let in as a guest; what a guest may say is for ``voter`` to judge.
"""

from __future__ import annotations

import functools
import logging
import socket
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from pysyncobj.node import Node, TCPNode
from pysyncobj.poller import POLL_EVENT_TYPE
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection
from pysyncobj.tcp_server import SERVER_STATE
from pysyncobj.transport import TCPTransport

from tidewarden.clock import Clock
from tidewarden.config.addresses import ANY_PORT_MAX, parse_address
from tidewarden.cpu_budget import CpuBudget
from tidewarden.log import OncePer

from .port_probes import PortProbes
from .state import Times

logger = logging.getLogger("tidewarden.raft")

FRAME_BYTES_MAX = 1_048_576
"""
Longest frame of a peer. The library sends its log in batches of 64 KiB, and ours is a few entries a
day.
"""
KEEPALIVE = (1, 1, 3)
"""Idle seconds before a probe, seconds between probes, probes: the kernel's, so no pace applies."""
UNANSWERED_MS = 4000
"""
A link whose bytes (or whose SYN) the other host's kernel left unanswered for so long is dead,
milliseconds.
"""
STRANGERS_MAX = 64
"""Most connections at a time that have not proved to be a member's."""
STRANGER_FRAME_BYTES_MAX = 2048
"""Longest frame of one: a greeting is a key, and then an address."""
STRANGERS_SHARE = 0.03
"""Of a core, for all of them; past it none is read, and nobody accepted."""
STRANGERS_BURST_S = 0.1
TICK_S = 0.000_1
"""What it costs to wake this thread, beside what is done then."""
ACCEPTED_MAX = 16
"""Connections accepted in one tick."""
BACKLOG = 512
"""Of connections that the kernel keeps, for members not to be lost among strangers."""
GUESTS_MAX = 16
"""Most connections at a time of those who have the secret and are no members here."""
INFLATED_BYTES_MAX = 8 << 20
"""
Longest message of a peer. A frame of 1 MiB could hold a GiB; the library's own messages have some
64 KiB.
"""
PLAIN_BYTES_MAX = 1024
"""Longest message that is not compressed."""
HOUSEKEEPING_S = 0.05
"""Between two looks after links that are all well; a message of a peer is no reason for one."""
COMPLAINT_S = 10.0
"""Seconds between two log lines about strangers at the port."""

Message = dict[str, Any]


class LinkOwner(Protocol):
    """Tells the transport what it needs of the member whose links it keeps."""

    clock: Clock
    times: Times

    def on_port_refused(self, node: TCPNode) -> None:
        """Note that no process has a member's port, whose link has ended."""

    def awaits_acks(self) -> bool:
        """Tell, once for each heartbeat, whether nothing but its answers is waited for."""


class BoundedZlib:
    """
    Stands in for ``zlib`` in the library: inflates what a peer has compressed up to a bound.

    Short messages, as heartbeats are, are not compressed: that takes as long as their encryption.
    """

    error = zlib.error

    @staticmethod
    def compress(data: bytes, level: int = -1) -> bytes:
        """
        Return bytes that :meth:`decompress`, and any zlib, makes ``data`` of.

        Up to :data:`PLAIN_BYTES_MAX` they are a stream of one stored block (RFC 1950 and 1951).
        """
        size = len(data)
        if size > PLAIN_BYTES_MAX:
            return zlib.compress(data, level)
        head = struct.pack("<HBHH", 0x0178, 1, size, size ^ 0xFFFF)
        return head + data + struct.pack(">I", zlib.adler32(data))

    @staticmethod
    def decompress(data: bytes) -> bytes:
        """
        Return the decompressed bytes.

        Raises: zlib.error: the bytes are not compressed, cut short, or longer than
        :data:`INFLATED_BYTES_MAX`.
        """
        inflater = zlib.decompressobj()
        found = inflater.decompress(data, INFLATED_BYTES_MAX)
        if not inflater.eof:
            raise zlib.error(f"longer than {INFLATED_BYTES_MAX} bytes, or cut short")
        return found


class RaftConnection(TcpConnection):  # type: ignore[misc]  # the library has no types
    """Bounds the length of frames, notices a dead link, and says why it was refused."""

    def __init__(
        self, *args: Any, keepalive: tuple[int, int, int] | None = None, **kwargs: Any
    ) -> None:
        self.refused: Callable[[str, str], None] | None = None
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.paid: Callable[[RaftConnection, float], None] | None = None
        """Told what each turn cost, in seconds of processor time, while it is a stranger's."""
        self.address = _peer_of(kwargs.get("socket"))
        super().__init__(*args, keepalive=keepalive or KEEPALIVE, **kwargs)

    def setSockoptKeepalive(self) -> None:
        super().setSockoptKeepalive()
        sock = self._TcpConnection__socket
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)

    def connect(self, host: str, port: int) -> bool:
        connecting: bool = super().connect(host, port)
        if not connecting:
            self.disconnect()  # closes the socket that stock leaves to the garbage collector
        return connecting

    def refuse(self, reason: str) -> None:
        """Close it and report why."""
        address = self.address
        self.disconnect()
        if self.refused is not None:
            self.refused(address, reason)

    def read(self, on: bool) -> None:
        """Have the poller look at it, or not."""
        poller, number = self._TcpConnection__poller, self.fileno()
        if number is not None:
            poller.unsubscribe(number)
            if on:
                every = POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.WRITE | POLL_EVENT_TYPE.ERROR
                poller.subscribe(number, self._TcpConnection__processConnection, every)

    def _TcpConnection__processConnection(self, descr: int, event: int) -> None:
        paid = self.paid
        if paid is None:
            super()._TcpConnection__processConnection(descr, event)
            return
        began = time.thread_time()
        super()._TcpConnection__processConnection(descr, event)
        paid(self, time.thread_time() - began)

    def _TcpConnection__processRead(self) -> bool:
        # Stock reads until the socket is empty: a fast sender could hold the thread, and fill the
        # memory, for ever.
        more: bool = super()._TcpConnection__processRead()
        buffer = self._TcpConnection__readBuffer
        most = self.frame_bytes_max
        if len(buffer) >= 4 and not 0 < struct.unpack_from("i", buffer)[0] <= most:
            self.refuse(f"it announced a frame that is empty or longer than {most} bytes")
            return False
        return more and len(buffer) < most

    def _TcpConnection__processParseMessage(self) -> Any:
        message = super()._TcpConnection__processParseMessage()
        if (
            message is None
            and self.state == CONNECTION_STATE.DISCONNECTED
            and self.refused is not None
        ):
            self.refused(self.address, "it sent what the cluster's secret does not open")
        return message


def _is_address(message: Any) -> bool:
    """Return whether the message names a member as members do: ``host:port``."""
    return isinstance(message, str) and parse_address(message, ANY_PORT_MAX) is not None


def _peer_of(sock: socket.socket | None) -> str:
    if sock is None:
        return "a member"
    try:
        return "{}:{}".format(*sock.getpeername()[:2])
    except OSError:
        return "somebody who is already gone"


class RaftTransport(TCPTransport):  # type: ignore[misc]  # the library has no types
    """Lets only members in: no utility messages, no read-only nodes."""

    def __init__(self, voter: LinkOwner, own: TCPNode, others: set[TCPNode]) -> None:
        self._clock, self._times = voter.clock, voter.times
        self.strangers_refused = 0
        self._strangers: dict[RaftConnection, float] = {}
        self._budget = CpuBudget(STRANGERS_SHARE, STRANGERS_BURST_S)
        # strangers that are not read until there is budget again
        self._held: set[RaftConnection] = set()
        self._accepts = False
        self._accepted = 0
        self._complaints = OncePer(voter.clock, COMPLAINT_S)
        self._rebound = self._kept = float("-inf")
        self._looked = float("-inf")
        self._said: dict[Node, float] = {}
        self._fresh: dict[Node, float] = {}  # from when on silence counts
        # since when there is no link to a member that should have made one
        self._apart: dict[Node, float] = {}
        self._guests: set[Node] = set()
        super().__init__(voter, own, others)
        self._probes = PortProbes(self._syncObj._poller, self._clock, voter.on_port_refused)
        self._ready = False

    def _maybeBind(self) -> None:
        """Bind once; the stock method swallows the OSError and tries again for ever."""
        if not self._ready:
            self._listen()
            self._ready = True

    def _listen(self) -> None:
        try:
            self._server.bind()
            # stock: 5, so that a few strangers keep members out
            self._server._TcpServer__socket.listen(BACKLOG)
            self._accept_on()
        except OSError:
            self._server.unbind()
            raise

    def _accept_on(self) -> None:
        self._accepts = True
        number = self._server._TcpServer__fileno
        self._syncObj._poller.subscribe(
            number, self._accept, POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.ERROR
        )

    def _accept(self, descr: int, event: int) -> None:
        """
        Accept connections that wait, a few at a time, while there is budget for strangers.

        One at a time would wake this thread as often.
        """
        now = self._clock.monotonic()
        for _ in range(ACCEPTED_MAX):
            if self._budget.left_s(now) < 0:
                self._accepts = False
                self._syncObj._poller.unsubscribe(descr)
                return
            before, began = self._accepted, time.thread_time()
            self._server._TcpServer__onNewConnection(descr, event)
            if self._accepted == before:
                return  # nobody is left, or the listener failed
            self._budget.spend(time.thread_time() - began + TICK_S, now)

    def _paid(self, conn: RaftConnection, cost_s: float) -> None:
        now = self._clock.monotonic()
        self._budget.spend(cost_s + TICK_S, now)
        if conn.paid is not None and self._budget.left_s(now) < 0:
            conn.read(False)
            self._held.add(conn)

    def _go_on(self, now: float) -> None:
        """Read strangers, and accept others, again as soon as there is budget for it."""
        if self._budget.left_s(now) < 0:
            return
        for conn in self._held:
            conn.read(True)
        self._held.clear()
        if not self._accepts and self._server._TcpServer__state == SERVER_STATE.BINDED:
            self._accept_on()

    def _known(self, conn: RaftConnection) -> None:
        """Lift the bounds of a stranger from a connection."""
        conn.paid, conn.frame_bytes_max = None, FRAME_BYTES_MAX
        self._held.discard(conn)

    def addNode(self, node: TCPNode) -> None:
        if node in self._guests:
            self._guests.discard(node)
            if self._shouldConnect(node):
                self._hang_up(self._connections.pop(node))
        super().addNode(node)
        if node in self._connections:
            self._connections[node].refused = self._refused
            self._connections[node].address = node.address

    def dropNode(self, node: Node) -> None:
        super().dropNode(node)
        self._probes.end(node)
        for known in (self._said, self._fresh, self._apart):
            known.pop(node, None)

    def destroy(self) -> None:
        super().destroy()
        self._probes.close()
        for guest in list(self._guests):
            self._hang_up(self._connections.pop(guest))
        self._guests.clear()

    def _hang_up(self, conn: RaftConnection) -> None:
        """Close a connection that another has taken the place of."""
        conn.setOnMessageReceivedCallback(None)
        conn.setOnDisconnectedCallback(None)
        conn.disconnect()

    def _onNewIncomingConnection(self, conn: RaftConnection) -> None:
        conn.refused = self._refused
        self._accepted += 1
        # the latest may be a member, who will say so at once
        if len(self._unknownConnections) >= STRANGERS_MAX:
            next(one for one in self._strangers if one in self._unknownConnections).refuse(
                "others came after it"
            )
        super()._onNewIncomingConnection(conn)
        conn.paid, conn.frame_bytes_max = self._paid, STRANGER_FRAME_BYTES_MAX
        self._strangers[conn] = self._clock.monotonic()

    def _onIncomingMessageReceived(self, conn: RaftConnection, message: Any) -> None:
        if not conn.sendRandKey:
            if not (isinstance(message, bytes) and len(message) == 32):
                conn.refuse("it began with something else than a key")
                return
            super()._onIncomingMessageReceived(conn, message)
            return
        node = self._nodeAddrToNode.get(message) if isinstance(message, str) else None
        if node is not None and self._shouldConnect(node):
            conn.disconnect()  # it tried because nobody came; this one tries all the time
            return
        old = self._connections.get(
            TCPNode(message) if node is None and _is_address(message) else node
        )
        if node is None:
            if not self._receive(conn, message):
                return
        else:
            super()._onIncomingMessageReceived(conn, message)
        self._known(conn)
        if old is not None and old is not conn:
            # stock leaves it in the poller, where it goes on delivering what is long past
            self._hang_up(old)

    def _receive(self, conn: RaftConnection, address: Any) -> bool:
        """Let a peer in that has the secret, says where it is, and is no member here."""
        if not _is_address(address) or len(self._guests) >= GUESTS_MAX:
            conn.refuse(
                "it does not say which member it is"
                if len(self._guests) < GUESTS_MAX
                else "there are others"
            )
            return False
        guest = TCPNode(address)
        self._unknownConnections.discard(conn)
        self._guests.add(guest)
        self._connections[guest] = conn
        conn.setOnMessageReceivedCallback(functools.partial(self._onMessageReceived, guest))
        self._onNodeConnected(guest)
        return True

    def _onDisconnected(self, conn: RaftConnection) -> None:
        guest = self._connToNode(conn)
        if guest not in self._guests:
            super()._onDisconnected(conn)
            return
        self._guests.discard(guest)
        del self._connections[guest]
        self._onNodeDisconnected(guest)

    def _onMessageReceived(self, node: Node, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            self._connections[node].refuse("it sent no Raft message")
            return
        super()._onMessageReceived(node, message)

    def _onNodeConnected(self, node: Node) -> None:
        self._fresh[node] = self._clock.monotonic()
        self._probes.end(node)
        super()._onNodeConnected(node)

    def _onNodeDisconnected(self, node: Node) -> None:
        super()._onNodeDisconnected(node)
        if node in self._nodes:
            self._probes.begin(node)

    def _reach_out(self, now: float) -> None:
        """
        Connect where the other should: it may not know yet that this one is a member, or not know
        it any more.
        """
        for node in self._nodes:
            conn = self._connections.get(node)
            if self._shouldConnect(node) or (
                conn is not None and conn.state != CONNECTION_STATE.DISCONNECTED
            ):
                self._apart.pop(node, None)
            elif now - self._apart.setdefault(node, now) > self._times.orphan_s:
                self._apart[node] = self._fresh[node] = now
                conn = RaftConnection(
                    self._syncObj._poller, timeout=self._syncObj.conf.connectionTimeout
                )
                conn.encryptor = self._syncObj.encryptor
                conn.refused, conn.address = self._refused, node.address
                conn.setOnConnectedCallback(functools.partial(self._onOutgoingConnected, conn))
                conn.setOnMessageReceivedCallback(functools.partial(self._onMessageReceived, node))
                conn.setOnDisconnectedCallback(functools.partial(self._onDisconnected, conn))
                self._connections[node] = conn
                conn.connect(node.ip, node.port)

    def _connectIfNecessarySingle(self, node: Node) -> bool:
        if (
            node in self._connections
            and self._connections[node].state == CONNECTION_STATE.DISCONNECTED
        ):
            self._fresh[node] = self._clock.monotonic()
        connecting: bool = super()._connectIfNecessarySingle(node)
        return connecting

    def _watch_links(self, now: float) -> None:
        """
        Speak where silence would mean death, and close the links of the silent.

        The kernel would notice a black hole too, but answers bytes for a process that is stopped,
        and after a black hole goes on in its own ever longer intervals.
        """
        link_s = self._times.link_s
        # this process was stopped itself: what came meanwhile is yet to be read
        if now - self._looked > link_s / 2:
            self._fresh = dict.fromkeys(self._connections, now)
        self._looked = now
        for node, conn in list(self._connections.items()):
            heard = max(
                self._fresh.setdefault(node, now), self._syncObj.heard.get(node.id, now - link_s)
            )
            if conn.state != CONNECTION_STATE.DISCONNECTED and now - heard > link_s:
                conn.disconnect()
            elif now - self._said.get(node, now - link_s) > link_s / 4:
                self.send(node, {"type": "ping"})

    def send(self, node: Node, message: Any) -> bool:
        if not self._syncObj.isNodeConnected(node):
            return False  # stock would send it in the middle of a greeting
        self._said[node] = self._clock.monotonic()
        voter = self._syncObj
        sent: bool = super().send(node, voter.outgoing(message) | voter.carried(node, message))
        return sent

    @property
    def is_calm(self) -> bool:
        """Tell whether every member is linked, no other peer is there, and no port is probed."""
        return (
            not (self._strangers or self._held or self._guests or self._probes.busy)
            and self._accepts
            and len(self._syncObj._SyncObj__connectedNodes) == len(self._nodes)
        )

    def _onTick(self) -> None:
        if self._syncObj.awaits_acks() and self.is_calm:
            time.sleep(self._times.acks_s)
        now = self._clock.monotonic()
        if 0 <= now - self._kept < min(HOUSEKEEPING_S, self._times.link_s / 20) and self.is_calm:
            return
        self._kept = now
        super()._onTick()
        self._go_on(now)
        self._probes.tick(now)
        for conn, since in list(self._strangers.items()):
            if conn not in self._unknownConnections:
                del self._strangers[conn]
            elif now - since > self._times.stranger_s:
                del self._strangers[conn]
                conn.refuse(f"it did not say who it is within {self._times.stranger_s:g} s")
        self._watch_links(now)
        self._reach_out(now)
        self._listen_again(now)

    def _listen_again(self, now: float) -> None:
        # Stock closes its listener for ever when one accept fails, as it does when the process is
        # out of files.
        if (
            self._server._TcpServer__state == SERVER_STATE.BINDED
            or now - self._rebound < self._times.retry_s
        ):
            return
        self._rebound = now
        try:
            self._listen()
        except OSError as error:
            logger.error("cannot listen on the Raft port again: %s", error)

    def _refused(self, address: str, reason: str) -> None:
        if self._complaints.passes():
            logger.warning("closed a connection of %s at the Raft port: %s", address, reason)
        self.strangers_refused += 1
