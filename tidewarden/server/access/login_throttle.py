"""
What failed logins cost those who send them: by host, growing, forgotten in time.

No clock and no loop in here.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict

FACTOR_MAX = 20  # the longest delay, in those of a first failure
FORGET_S = 60.0  # a host that fails no more for so long begins anew
# answers to one host that are held back at a time; past it nothing is checked for it
HELD_BACK_MAX = 64
HOSTS_MAX = 10_000
SAID_S = 1.0  # one host's failures are logged at most so often


def host_of(address: str) -> str:
    """
    Return the client that stands behind ``host:port``, for counting.

    It is an IPv4 address, an IPv6 network of 64 bits, which is what one customer gets, or whatever
    else it is.
    """
    host = address.rpartition(":")[0] or address
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if ip.version == 4 or ip.is_loopback:
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))


class ThrottledHost:
    """
    What one host has done.

    ``turn``: one check at a time is made for it, so that it does not keep others waiting.
    """

    __slots__ = ("failures", "held_back", "last", "said", "turn")

    def __init__(self) -> None:
        self.failures = 0
        self.held_back = 0
        self.last = self.said = float("-inf")
        self.turn = asyncio.Lock()

    @property
    def crowded(self) -> bool:
        """Whether so many answers are held back that nothing more is checked."""
        return self.held_back >= HELD_BACK_MAX

    def fail(self, now: float) -> int:
        """
        Count one more failure at ``now`` and return how many first delays its answer takes.

        ``now`` is in seconds of the monotonic clock.
        """
        if now - self.last > FORGET_S:
            self.failures = 0
        self.last = now
        self.failures += 1
        return min(1 << min(self.failures - 1, 10), FACTOR_MAX)

    def say(self, now: float) -> bool:
        """Whether this failure is logged."""
        if now - self.said < SAID_S:
            return False
        self.said = now
        return True


class LoginThrottle:
    """
    Delays the answers to wrong secrets, by host.

    It keeps hosts that tried a secret that was not known to be right, up to a maximum; the longest
    quiet are forgotten.
    """

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, ThrottledHost] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    def of(self, address: str) -> ThrottledHost:
        """The host behind ``host:port``."""
        name = host_of(address)
        host = self._hosts.get(name)
        if host is None:
            if len(self._hosts) >= HOSTS_MAX:
                self._hosts.popitem(last=False)
            host = self._hosts[name] = ThrottledHost()
        self._hosts.move_to_end(name)
        return host
