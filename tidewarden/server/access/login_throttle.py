"""Delays the answers to failed logins: by host, longer with each new try, forgotten in time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from tidewarden.clock import Clock
from tidewarden.config.addresses import client_network
from tidewarden.log import OncePer

FACTOR_MAX = 20  # the longest delay, in those of a first failure
FORGET_S = 60.0  # a host that fails no more for so long begins anew
# answers to one host that are held back at a time; past it nothing is checked for it
HELD_BACK_MAX = 64
TRIED_MAX = 4  # of a host's last attempts are known again
HOSTS_MAX = 10_000
SAID_S = 1.0  # one host's failures are logged at most so often


class ThrottledHost:
    """
    Remembers the logins that one host has tried.

    ``turn``: one check at a time is made for it, so that it does not keep others waiting.
    """

    __slots__ = ("failures", "held_back", "last", "logged", "tried", "turn")

    def __init__(self, logged: OncePer) -> None:
        self.logged = logged  # lets one failure a second pass
        self.failures = 0
        self.held_back = 0
        self.tried: tuple[bytes, ...] = ()
        self.last = float("-inf")
        self.turn = asyncio.Lock()

    @property
    def crowded(self) -> bool:
        """Return whether so many answers are held back that no further login is checked."""
        return self.held_back >= HELD_BACK_MAX

    def fail(self, now: float, attempt: bytes) -> int:
        """
        Count one more failure at ``now`` and return how many first delays its answer takes.

        ``attempt`` stands for the user and the secret that were tried. The same ones again try
        nothing new: clients repeat a login by themselves, some of them ten times. ``now`` is in
        seconds of the monotonic clock.
        """
        if now - self.last > FORGET_S:
            self.failures, self.tried = 0, ()
        self.last = now
        if attempt in self.tried:
            return 1
        self.tried = (*self.tried[1 - TRIED_MAX :], attempt)
        self.failures += 1
        return min(1 << min(self.failures - 1, 10), FACTOR_MAX)


class LoginThrottle:
    """
    Delays the answers to wrong secrets, by host.

    It keeps hosts that tried a secret that was not known to be right, up to a maximum; the longest
    quiet are forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hosts: OrderedDict[str, ThrottledHost] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    def of(self, address: str) -> ThrottledHost:
        """Return the throttle of the host behind ``host:port``."""
        name = client_network(address)
        host = self._hosts.get(name)
        if host is None:
            if len(self._hosts) >= HOSTS_MAX:
                self._hosts.popitem(last=False)
            host = self._hosts[name] = ThrottledHost(OncePer(self._clock, SAID_S))
        self._hosts.move_to_end(name)
        return host
