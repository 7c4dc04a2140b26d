"""Whether anything comes on a connection."""

from __future__ import annotations

import socket


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
