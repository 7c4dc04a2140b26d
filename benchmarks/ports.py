"""Free ports for servers that are about to be started."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import socket
from collections import deque

BLOCK = 10
FIRST, LAST = 10_000, 32_700  # below those that the kernel gives to outgoing connections
CLAIMS_MAX = 300  # kept at a time; each is an open file

_claims: deque[socket.socket] = deque()


def free_ports(count: int, *, also: int = 0) -> int:
    """
    Return the first of ``count`` consecutive free ports.

    No other process gets them here while this one lives.

    ``also``: as many are free at this distance above, too. Nobody comes between the look and the
    server's own bind: a name in the kernel's abstract namespace is the claim on a block of ten, and
    ends with its process however that ends.
    """
    places = (LAST - FIRST - count - also) // BLOCK
    while True:
        base = FIRST + secrets.randbelow(places) * BLOCK  # tests seed `random`, and alike
        ports = [start + number for start in {base, base + also} for number in range(count)]
        with contextlib.ExitStack() as claims, contextlib.suppress(OSError):
            taken = [
                claims.enter_context(_claim(block)) for block in {port // BLOCK for port in ports}
            ]
            with contextlib.ExitStack() as looks:
                for port in ports:
                    looks.enter_context(socket.create_server(("127.0.0.1", port)))
            claims.pop_all()
            _claims.extend(taken)
            while len(_claims) > CLAIMS_MAX:
                _claims.popleft().close()
            return base


@atexit.register
def _let_go() -> None:
    """Or the interpreter complains of each claim that it finds open at its end."""
    while _claims:
        _claims.popleft().close()


def _claim(block: int) -> socket.socket:
    """Raises: OSError: another process has it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(f"\0tidewarden-ports-{block}")
    except OSError:
        made.close()
        raise
    return made
