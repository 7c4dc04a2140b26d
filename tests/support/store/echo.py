"""A server that sends back what it gets, and what comes on a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def echoing(server: socket.socket) -> Iterator[list[str]]:
    """Serve on this socket until the block ends; yields the addresses of those who came."""
    seen: list[str] = []

    def echo(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            while data := peer.recv(65536):
                peer.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, (address, _) = server.accept()
                seen.append(address)
                threading.Thread(target=echo, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()


def said(line: socket.socket, words: bytes) -> bytes:
    """Send this; returns what comes back, as much as was sent."""
    line.sendall(words)
    found = b""
    while len(found) < len(words):
        data = line.recv(65536)
        assert data, "closed"
        found += data
    return found


def silent(line: socket.socket, seconds: float = 0.2) -> bool:
    """Whether nothing comes for a while."""
    limit_s = line.gettimeout()
    line.settimeout(seconds)
    try:
        line.recv(1)
    except TimeoutError:
        return True
    finally:
        line.settimeout(limit_s)
    return False
