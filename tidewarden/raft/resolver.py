"""
Where members are whose addresses are names: asked anew whenever one is to be reached, and never waited for.

PySyncObj asks the name service in the thread that ticks, which stands still for as long as the answer takes, and goes by what it
heard for half a minute: a container that came back with another address was out of the cluster for so long.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidewarden.clock import Clock

FRESH_S = 1.0
"""An answer is good for so long; older ones are asked for again."""
PATIENCE_S = 1.0
"""So long an answer is waited for before an older one is taken in its place."""

Lookup = Callable[[str, None], Sequence[Any]]


@dataclass(slots=True)
class _Known:
    addresses: Sequence[str] = ()
    asked: float = float("-inf")
    answered: float = float("-inf")
    under_way: bool = False


class Resolver:
    """What stands in for PySyncObj's own. One thread calls it; answers come from others, a name's one at a time."""

    def __init__(self, clock: Clock, lookup: Lookup = socket.getaddrinfo) -> None:
        self._clock = clock
        self._lookup = lookup
        self._known: dict[str, _Known] = {}

    def resolve(self, host: str) -> str | None:
        """An address of ``host``, an IPv4 one if it has any; None: not known yet, or it has none. Try again then."""
        if _is_address(host):
            return host
        known, now = self._known.setdefault(host, _Known()), self._clock.monotonic()
        if not known.under_way and now - known.answered > FRESH_S:
            known.under_way, known.asked = True, now
            threading.Thread(target=self._ask, args=(host, known), name=f"resolve {host}", daemon=True).start()
        if known.under_way and now - known.asked <= PATIENCE_S:
            return None
        return random.choice(known.addresses) if known.addresses else None

    def _ask(self, host: str, known: _Known) -> None:
        """In a thread of its own. A name service that fails leaves what was known before."""
        with contextlib.suppress(OSError, UnicodeError):
            found = self._lookup(host, None)
            first = [entry[4][0] for entry in found if entry[0] == socket.AF_INET]
            known.addresses = sorted(set(first or (str(entry[4][0]) for entry in found)))
        known.answered = self._clock.monotonic()
        known.under_way = False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        return False
