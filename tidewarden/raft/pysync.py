"""
PySyncObj 0.3.17 as we use it: its wire, and one member. Its files are in ``files``, its rules in ``steady``; these three
alone touch its private names.

Importing it guards the library for the whole process: pickles are read by a whitelist, frames have a longest length,
dead links are noticed, and a ``.meta`` that cannot be read is an error instead of a forgotten vote.
Everything here runs in the tick thread; nothing here knows asyncio.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj import FAIL_REASON, SyncObjConf, replicated
from pysyncobj.node import Node, TCPNode
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection
from pysyncobj.tcp_server import SERVER_STATE
from pysyncobj.transport import TCPTransport

from tidewarden.clock import Clock

from . import files
from .decide import Facts, Sighting, State, Times
from .steady import FOLLOWER, Steady, library_now

logger = logging.getLogger("tidewarden.raft")

FRAME_BYTES_MAX = 1_048_576
"""Longest frame of a peer. The library sends its log in batches of 64 KiB, and ours is a few entries a day."""
KEEPALIVE = (1, 1, 3)
"""Idle seconds before a probe, seconds between probes, probes: the kernel's, so no pace applies."""
UNANSWERED_MS = 4000
"""A link whose bytes (or whose SYN) the other host's kernel left unanswered for so long is dead, milliseconds."""
STRANGERS_MAX = 64
"""Most connections at a time that have not proved to be a member's."""
COMPLAINT_S = 10.0
"""Seconds between two log lines about strangers at the port."""

SUCCESS: int = FAIL_REASON.SUCCESS
REQUEST_DENIED: int = FAIL_REASON.REQUEST_DENIED
MISSING_LEADER: int = FAIL_REASON.MISSING_LEADER
REASONS: dict[int, str] = {
    FAIL_REASON.QUEUE_FULL: "too many proposals wait",
    FAIL_REASON.MISSING_LEADER: "no leader is known",
    FAIL_REASON.DISCARDED: "another leader's entry took its place",
    FAIL_REASON.NOT_LEADER: "the leader changed",
    FAIL_REASON.LEADER_CHANGED: "the leader changed",
    FAIL_REASON.REQUEST_DENIED: "the member is not connected or not caught up",
    FAIL_REASON.UNKNOWN_OUTCOME: "its outcome is unknown",
}
STATES: tuple[State, State, State] = ("follower", "candidate", "leader")


class Connection(TcpConnection):  # type: ignore[misc]  # the library has no types
    """A connection with a longest frame, that notices a dead link, and says why it was refused."""

    def __init__(self, *args: Any, keepalive: tuple[int, int, int] | None = None, **kwargs: Any) -> None:
        self.refused: Callable[[str, str], None] | None = None
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

    def _TcpConnection__processRead(self) -> bool:
        # Stock reads until the socket is empty: a fast sender could hold the thread, and fill the memory, for ever.
        more: bool = super()._TcpConnection__processRead()
        buffer = self._TcpConnection__readBuffer
        if len(buffer) >= 4 and not 0 < struct.unpack_from("i", buffer)[0] <= FRAME_BYTES_MAX:
            self.refuse(f"it announced a frame that is empty or longer than {FRAME_BYTES_MAX} bytes")
            return False
        return more and len(buffer) < FRAME_BYTES_MAX

    def _TcpConnection__processParseMessage(self) -> Any:
        message = super()._TcpConnection__processParseMessage()
        if message is None and self.state == CONNECTION_STATE.DISCONNECTED and self.refused is not None:
            self.refused(self.address, "it sent what the cluster's secret does not open")
        return message


def _peer_of(sock: socket.socket | None) -> str:
    if sock is None:
        return "a member"
    try:
        return "{}:{}".format(*sock.getpeername()[:2])
    except OSError:
        return "somebody who is already gone"


class Transport(TCPTransport):  # type: ignore[misc]  # the library has no types
    """Lets nobody but members in: no utility messages, no read-only nodes."""

    def __init__(self, voter: Voter, own: TCPNode, others: set[TCPNode]) -> None:
        self._clock, self._times = voter.clock, voter.times
        self.strangers_refused = 0
        self._strangers: dict[Connection, float] = {}
        self._complained = self._rebound = float("-inf")
        self._looked = float("-inf")
        self._said: dict[Node, float] = {}
        self._fresh: dict[Node, float] = {}  # from when on silence counts
        super().__init__(voter, own, others)
        self._ready = False

    def _maybeBind(self) -> None:
        """Bind once; the stock method swallows the OSError and tries again for ever."""
        if not self._ready:
            self._listen()
            self._ready = True

    def _listen(self) -> None:
        try:
            self._server.bind()
            self._server._TcpServer__socket.listen(STRANGERS_MAX)  # stock: 5, so that a few strangers keep members out
        except OSError:
            self._server.unbind()
            raise

    def addNode(self, node: TCPNode) -> None:
        super().addNode(node)
        if node in self._connections:
            self._connections[node].refused = self._refused
            self._connections[node].address = node.address

    def _onNewIncomingConnection(self, conn: Connection) -> None:
        conn.refused = self._refused
        if len(self._unknownConnections) >= STRANGERS_MAX:
            conn.refuse(f"{STRANGERS_MAX} others have not said who they are either")
            return
        super()._onNewIncomingConnection(conn)
        self._strangers[conn] = self._clock.monotonic()

    def _onIncomingMessageReceived(self, conn: Connection, message: Any) -> None:
        if not conn.sendRandKey:
            if not (isinstance(message, bytes) and len(message) == 32):
                conn.refuse("it began with something else than a key")
                return
            super()._onIncomingMessageReceived(conn, message)
            return
        node = self._nodeAddrToNode.get(message) if isinstance(message, str) else None
        if node is None or self._shouldConnect(node):
            conn.refuse("it is none of cluster.members that should connect to this one")
            return
        old = self._connections.get(node)
        super()._onIncomingMessageReceived(conn, message)
        if old is not None and old is not conn:
            # Stock leaves the replaced socket in the poller, where it goes on delivering what is long past.
            old.setOnMessageReceivedCallback(None)
            old.setOnDisconnectedCallback(None)
            old.disconnect()

    def _onMessageReceived(self, node: Node, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            self._connections[node].refuse("it sent no Raft message")
            return
        super()._onMessageReceived(node, message)

    def _onNodeConnected(self, node: Node) -> None:
        self._fresh[node] = self._clock.monotonic()
        super()._onNodeConnected(node)

    def _connectIfNecessarySingle(self, node: Node) -> bool:
        if node in self._connections and self._connections[node].state == CONNECTION_STATE.DISCONNECTED:
            self._fresh[node] = self._clock.monotonic()
        connecting: bool = super()._connectIfNecessarySingle(node)
        return connecting

    def _watch_links(self, now: float) -> None:
        """
        Speak where silence would mean death, and close the links of the silent.

        The kernel would notice a black hole too, but answers bytes for a process that is stopped, and after a black
        hole goes on in its own ever longer intervals.
        """
        link_s = self._times.link_s
        if now - self._looked > link_s / 2:  # this process was stopped itself: what came meanwhile is yet to be read
            self._fresh = dict.fromkeys(self._connections, now)
        self._looked = now
        for node, conn in list(self._connections.items()):
            heard = max(self._fresh.setdefault(node, now), self._syncObj.heard.get(node.id, now - link_s))
            if conn.state != CONNECTION_STATE.DISCONNECTED and now - heard > link_s:
                conn.disconnect()
            elif now - self._said.get(node, now - link_s) > link_s / 4:
                self.send(node, {"type": "ping"})

    def send(self, node: Node, message: Any) -> bool:
        if not self._syncObj.isNodeConnected(node):
            return False  # stock would send it in the middle of a greeting
        self._said[node] = self._clock.monotonic()
        sent: bool = super().send(node, self._syncObj.outgoing(message))
        return sent

    def _onTick(self) -> None:
        super()._onTick()
        now = self._clock.monotonic()
        for conn, since in list(self._strangers.items()):
            if conn not in self._unknownConnections:
                del self._strangers[conn]
            elif now - since > self._times.stranger_s:
                del self._strangers[conn]
                conn.refuse(f"it did not say who it is within {self._times.stranger_s:g} s")
        self._watch_links(now)
        self._listen_again(now)

    def _listen_again(self, now: float) -> None:
        # Stock closes its listener for ever when one accept fails, as it does when the process is out of files.
        if self._server._TcpServer__state == SERVER_STATE.BINDED or now - self._rebound < self._times.retry_s:
            return
        self._rebound = now
        try:
            self._listen()
        except OSError as error:
            logger.error("cannot listen on the Raft port again: %s", error)

    def _refused(self, address: str, reason: str) -> None:
        now = self._clock.monotonic()
        if now - self._complained >= COMPLAINT_S:
            self._complained = now
            logger.warning("closed a connection of %s at the Raft port: %s", address, reason)
        self.strangers_refused += 1


class Voter(Steady):
    """
    One member's Raft: the library's object with our rules, our transport and our replicated facts.

    Raises: OSError: it cannot listen. Nothing is left open then.
    """

    transport: ClassVar[type] = Transport

    def __init__(self, own: str, addresses: Mapping[str, str], conf: SyncObjConf, times: Times, clock: Clock) -> None:
        # What is set before the library's constructor runs is ours; what is set after it is replicated state.
        self._names = {address: name for name, address in addresses.items()}
        self._addresses = dict(addresses)
        self._led_term, self._led_since = -1, float("-inf")
        others = [address for name, address in addresses.items() if name != own]
        try:
            super().__init__(addresses[own], others, conf, self.transport, times, clock)
        except OSError:
            self._SyncObj__raftLog._destroy()
            self.close()
            raise
        self.epoch, self.holder = 0, ""
        if not others:
            self._SyncObj__raftElectionDeadline = 0.0  # nobody to wait for

    @replicated  # type: ignore[untyped-decorator]  # the library has no types
    def claim(self, node: object, boot: object, seen: object) -> int:
        """Grant the next epoch to ``<node>.<boot>``; returns it, or 0 for arguments that make no claim."""
        before = Facts(self.epoch, self.holder)
        facts = before.claimed(node, boot, seen)
        self.epoch, self.holder = facts.epoch, facts.holder
        return 0 if facts is before else facts.epoch

    def sight(self, ticked: float) -> Sighting:
        """What is to be seen now; ``ticked``: when the last good tick was over."""
        leads = self._isLeader()
        if leads:
            self.leader_heard = ticked
            if self._led_term != self.raftCurrentTerm:
                self._led_term, self._led_since = self.raftCurrentTerm, ticked
        else:
            self._led_term = -1
        known = self._getLeader()
        return Sighting(
            state=STATES[self._SyncObj__raftState],
            term=self.raftCurrentTerm,
            leader=None if known is None else self._names.get(known.id),
            settled=leads and self.raftLastApplied >= self._SyncObj__noopIDx,
            commit=self.raftCommitIndex,
            facts=Facts(self.epoch, self.holder),
            ticked=ticked,
            leader_heard=self.leader_heard,
            led_since=self._led_since,
            heard={self._names[address]: at for address, at in self.heard.items()},
        )

    def strangers_refused(self) -> int:
        """How many connections were refused since the start."""
        refused: int = self._SyncObj__transport.strangers_refused
        return refused

    def leads(self) -> bool:
        """Whether the library calls this node leader: no proof of anything."""
        return bool(self._isLeader())

    def knows_leader(self) -> bool:
        """Whether the library believes in some leader."""
        return self._getLeader() is not None

    def hold_off(self) -> None:
        """Do not stand for election for one longest election time from now."""
        self._SyncObj__raftElectionDeadline = library_now() + self.times.election_max_s

    def step_down(self) -> None:
        """Be a follower of nobody yet, keeping term and vote."""
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self.hold_off()

    def hand_over(self, name: str | None) -> int:
        """
        Ask the member ``name`` (``None``: the one most caught up) to lead, and step down. Returns a fail reason, 0 when asked.

        The lease ends before the question leaves: the others vote for who was asked though they hear a leader.
        """
        answers: list[int] = []
        if name is not None and name not in self._addresses:
            return REQUEST_DENIED
        target = None if name is None else self._addresses[name]
        lease_until, self.lease_until = self.lease_until, float("-inf")
        self.transferLeadership(target, lambda _, reason: answers.append(reason))
        if answers[0] == SUCCESS:
            self.step_down()
        else:
            self.lease_until = lease_until
        return answers[0]

    def wish(self, name: str | None) -> int:
        """Have leadership handed to ``name``, here or, when another leads, there. Returns a fail reason, 0 when asked."""
        leader = self._getLeader()
        if self.leads():
            return self.hand_over(name)
        if leader is None or not self._SyncObj__transport.send(leader, {"type": "wish", "to": name}):
            return MISSING_LEADER
        return SUCCESS

    def give_up(self) -> None:
        """Hand leadership to whoever can take it and step down at once."""
        if self.leads():
            self.hand_over(None)
            self.step_down()

    def close(self) -> None:
        """Close the wake-up pipe, which the library leaks. After the last tick and the last proposal."""
        pipe = getattr(self, "_SyncObj__pipeNotifier", None)
        if pipe is not None:
            os.close(pipe._PipeNotifier__pipeR)
            os.close(pipe._PipeNotifier__pipeW)
            self._SyncObj__pipeNotifier = None


def configure(folder: Path, bind: str, password: str, times: Times) -> SyncObjConf:
    """
    The library's settings.

    Args: ``folder``: where journal and dump lie; ``bind``: ``host:port`` to listen on, nothing else;
    ``password``: encrypts and authenticates every frame.
    """
    return SyncObjConf(
        autoTick=False,
        appendEntriesPeriod=times.heartbeat_s,
        raftMinTimeout=times.election_min_s,
        raftMaxTimeout=times.election_max_s,
        leaderFallbackTimeout=times.fallback_s,
        # Followers are silent to each other, and the stock transport closes a silent link just when the first vote
        # request comes along it, which wastes the first election. Ours watches links itself.
        connectionTimeout=3600,
        connectionRetryTime=times.retry_s,
        tcp_keepalive=KEEPALIVE,
        appendEntriesUseBatch=False,  # a proposal leaves at once
        commandsWaitLeader=False,
        commandsQueueSize=1000,
        journalFile=str(folder / "raft.journal"),
        fullDumpFile=str(folder / "raft.dump"),
        useFork=False,  # a fork of a threaded process may hang
        logCompactionMinEntries=10**9,  # compaction is not crash-safe, and tens of entries a day need none
        logCompactionMinTime=10**9,
        dynamicMembershipChange=False,  # the library's guard against two changes at once does nothing
        bindAddress=bind,
        password=password,
        preferredAddrType="ipv4",
        dnsCacheTime=30,
        dnsFailCacheTime=5,
        maxBindRetries=1,
    )


def _guard() -> None:
    files.guard()
    pysyncobj.tcp_server.TcpConnection = pysyncobj.transport.TcpConnection = Connection


_guard()
