"""
Resolves members' host names beside Raft's thread.

Stock asks the name server in the thread that ticks: one that is silent takes seconds to give up, at
each attempt to reach a member that is away, and a leader that does not tick for so long leads no
more.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable

logger = logging.getLogger("tidewarden.raft")

KNOWN_S = 1.0
"""
How long an answer is taken for true: names are asked for only to connect, and a container comes
back with another address.
"""
UNKNOWN_S = 1.0
"""How long a failure is."""
HOSTS_MAX = 1000
"""Names that are remembered: members may come and go under ever other ones."""


class Resolver:
    """
    Answers at once with the addresses that were found last.

    What is too old is looked up meanwhile, each name once at a time.

    ``lookup``: the addresses of a name. Raises: OSError: there are none.
    """

    def __init__(self, lookup: Callable[[str], list[str]], now: Callable[[], float]) -> None:
        self._lookup, self._now = lookup, now
        self._found: dict[str, list[str]] = {}
        self._until: dict[str, float] = {}
        self._asking: set[str] = set()
        self._failing: set[str] = set()

    def resolve(self, host: str) -> str | None:
        """
        Return an address of ``host``, of several another at each call; None: not known, or not yet.
        """
        if _is_address(host):
            return host
        if len(self._until) >= HOSTS_MAX and host not in self._until:
            for known in (self._found, self._until, self._failing):
                known.clear()
        if host not in self._asking and self._now() >= self._until.get(host, float("-inf")):
            self._asking.add(host)
            threading.Thread(
                target=self._ask, args=(host,), name=f"where {host} is", daemon=True
            ).start()
        found = self._found.get(host)
        if not found:
            return None
        found.append(found.pop(0))
        return found[-1]

    def _ask(self, host: str) -> None:
        try:
            self._found[host] = self._lookup(host)
            self._failing.discard(host)
            self._until[host] = self._now() + KNOWN_S
        except (OSError, UnicodeError) as error:
            # UnicodeError: of a name that is too long, or not of a name's letters
            if host not in self._failing:
                logger.warning("the member's host %r is not found: %s", host, error)
            self._failing.add(host)
            self._until[host] = self._now() + UNKNOWN_S
        finally:
            self._asking.discard(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def looked_up(host: str) -> list[str]:
    """Return the addresses of a name, those of IPv4 if it has any."""
    rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    old = [str(row[4][0]) for row in rows if row[0] == socket.AF_INET]
    return sorted(set(old or [str(row[4][0]) for row in rows]))
