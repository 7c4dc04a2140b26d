"""Asks the hosts of members whose links have ended whether a process still has the port."""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from pysyncobj.node import TCPNode
from pysyncobj.poller import POLL_EVENT_TYPE

from tidewarden.clock import Clock

PROBES_S = (0.0, 0.02, 0.05, 0.15)
"""
So long after a link's end its other end is tried, seconds. A process that is being ended may close
its port after its links.
"""
GIVEN_UP_S = 1.0
"""A host that has not answered by then is away, or its packets are."""


class PortProbes:
    """
    Tries to connect to members whose links have ended; ``refused(node)`` hears whose port refused.

    The kernel of a host refuses at once where no process has the port. A process that is stopped or
    slow keeps it. All methods run in the thread that polls.
    """

    def __init__(self, poller: Any, clock: Clock, refused: Callable[[TCPNode], None]) -> None:
        self._poller, self._clock, self._refused = poller, clock, refused
        self._due: dict[TCPNode, deque[float]] = {}
        """When each is tried again; the last time is when it is given up."""
        self._tried: dict[TCPNode, socket.socket] = {}
        """Of those whose kernels have not answered."""

    @property
    def busy(self) -> bool:
        """Tell whether any member is being probed."""
        return bool(self._due)

    def begin(self, node: TCPNode) -> None:
        """Probe a member whose link has just ended."""
        if node in self._due:
            return
        now = self._clock.monotonic()
        self._due[node] = deque(now + after_s for after_s in (*PROBES_S, GIVEN_UP_S))
        self.tick(now)

    def end(self, node: TCPNode) -> None:
        """Stop probing a member: it is heard again, or is none any more."""
        self._due.pop(node, None)
        self._close(node)

    def close(self) -> None:
        """Stop probing."""
        for node in list(self._due):
            self.end(node)

    def tick(self, now: float) -> None:
        """Try the probes that are due."""
        for node, due in list(self._due.items()):
            if due[0] > now:
                continue
            due.popleft()
            if not due:
                self.end(node)
            elif node not in self._tried:
                self._try(node)

    def _try(self, node: TCPNode) -> None:
        host = node.ip
        if host is None:  # its name is not to be resolved
            return
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # this process is out of files
            return
        self._tried[node] = sock
        try:
            said = sock.connect_ex((host, node.port))
        except OSError as error:
            said = error.errno or errno.EINVAL
        if said != errno.EINPROGRESS:
            self._answered(node, said)
            return
        self._poller.subscribe(
            sock.fileno(),
            lambda _descr, _event: self._polled(node, sock),
            POLL_EVENT_TYPE.WRITE | POLL_EVENT_TYPE.ERROR,
        )

    def _polled(self, node: TCPNode, sock: socket.socket) -> None:
        if self._tried.get(node) is sock:
            self._answered(node, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _answered(self, node: TCPNode, said: int) -> None:
        """Take the answer of a host's kernel, or of this one, to a probe; 0: it is connected."""
        self._close(node)
        if said == errno.ECONNREFUSED:
            self.end(node)
            self._refused(node)

    def _close(self, node: TCPNode) -> None:
        sock = self._tried.pop(node, None)
        if sock is not None:
            self._poller.unsubscribe(sock.fileno())
            sock.close()
