"""
Bounds the cost of peers that are not let in yet at a node's doors, each and together.

Their processor time is measured where their bytes are read and charged to two budgets, a peer's own
and that of all. A peer that has used its budget up is not read for a while, whatever it sent. The
cost of a peer before it was let in is given back: a thousand users who come at once are not
strangers, and do not wait for one another.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config.addresses import client_network
from tidewarden.cpu_budget import CpuBudget

SHARE = 0.05  # of a core, for all of them
# what is measured is half of the hundredth that one may cost: the kernel has its part
SHARE_EACH = 0.005
BURST_S = 0.25
BURST_EACH_S = 0.008
# of the budget of all, for peers that have just come: who logs in is not behind those who do not
KEPT_S = BURST_S / 2
SLICE_S = 0.002  # of budget, with which the first of those who wait are read again
PLACES = 1024  # so many at a time, of which each keeps less than 32 KiB
GRACE_S = 1.0  # a peer that has been here for less is not evicted for another
LOOKED_AT = 16  # of the oldest peers, for one that may be evicted
OWED_S = 0.05  # until it is looked again, where all of these have sent what is not read yet
CHUNK_BYTES = 1024  # read of such a peer at a time
ACCEPT_S = 0.000_15  # what it costs to take a peer in and to forget it
READ_S = 0.000_02  # what a read costs beside what is made of it, the loop's and the kernel's part
LOGIN_COST_S = 0.003  # what it costs at most to come in, a TLS handshake too
HOLD_EVERY_S = 0.01
# the most that one turn charges to a peer's own budget: no request takes more, so what does was
# a collection of garbage, for which one peer would not be read for up to half a minute
TURN_S = 0.01
READ_AGAIN_S = 0.000_1  # the least that is thought to become of reading somebody again


class UnauthenticatedPeer:
    """
    Bounds the cost of one peer until it is let in, or goes.

    ``over``: that has happened. It is read while neither its budget nor its protocol
    (:meth:`pause_reading`) is against it.
    """

    __slots__ = (
        "_admission",
        "_budget",
        "_held",
        "_inner",
        "_timer",
        "_transport",
        "_unwanted",
        "door",
        "farewell",
        "host",
        "over",
        "peer",
        "since",
        "spent_s",
    )

    def __init__(self, admission: AdmissionControl, door: object, peer: str) -> None:
        self._admission = admission
        self._budget = CpuBudget(SHARE_EACH, BURST_EACH_S)
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._inner: Any = None
        self._held = False
        self._unwanted = False
        self.door = door
        self.farewell = b""
        """The bytes that it is told when it is sent away."""
        self.peer = peer
        self.host = client_network(peer)
        self.since = admission.clock.monotonic()
        self.spent_s = 0.0
        self.over = False

    def attach(self, transport: asyncio.Transport, inner: Any) -> None:
        """Take the peer's transport; its bytes go to ``inner``."""
        self._transport, self._inner = transport, inner

    def run(self, work: Callable[[Any], object], argument: Any) -> None:
        """Do work for the peer, which pays for it."""
        meter = self._admission.meter
        began = meter()
        try:
            work(argument)
        finally:
            self.charge(meter() - began + READ_S)

    def charge(self, cost_s: float) -> None:
        """Charge processor time that was spent on the peer."""
        if self.over:
            return
        self.spent_s += cost_s
        admission = self._admission
        now = admission.clock.monotonic()
        self._budget.spend(min(cost_s, TURN_S), now)
        admission.budget.spend(cost_s, now)
        least_s = -KEPT_S if self.is_logging_in(now) else KEPT_S
        if self._budget.left_s(now) < 0 or admission.budget.left_s(now) < least_s:
            self.hold(now)
        if admission.budget.left_s(now) < 0:
            admission.hold_all(now)

    def is_logging_in(self, now: float) -> bool:
        """
        Return whether the peer has just come, and cost no more than a user does.

        Such a peer may end what it has begun before others begin.
        """
        return self.spent_s < LOGIN_COST_S and now - self.since < GRACE_S

    def hold(self, now: float) -> None:
        """Read nothing of the peer until there is budget for it."""
        if self._held or self._transport is None:
            return
        self._held = True
        self._admission.holds(self)
        self._turn(not self._unwanted, False)
        self._wait(now)

    def pause_reading(self) -> None:
        """Stop reading, as the peer's protocol asks."""
        self._turn(not (self._held or self._unwanted), False)
        self._unwanted = True

    def resume_reading(self) -> None:
        """Read again, as the peer's protocol asks."""
        if self._unwanted:
            self._unwanted = False
            self._turn(False, not self._held)

    def release(self) -> None:
        """Read the peer again."""
        if self._held:
            self._held = False
            self._admission.reads(self)
            self._turn(False, not self._unwanted)

    def authenticated(self) -> None:
        """
        Note that the peer is a user now, who pays for its former cost.

        Its protocol is given its bytes as they come.
        """
        if self.over:
            return
        self._admission.give_back(self.spent_s)
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._turn(not (self._held or self._unwanted), False)
            transport.set_protocol(self._inner)
            transport.resume_reading()
        self._end()

    def gone(self) -> None:
        """Note that the peer has hung up."""
        if not self.over:
            self._end()

    @property
    def owed(self) -> bool:
        """
        Return whether bytes of the peer lie unread because this process is slow, not for its cost.
        """
        if self._held or self._unwanted or self._transport is None:
            return False
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
        return any(unread)

    def evict(self) -> None:
        """Send the peer away, so that others may come."""
        transport = self._transport
        self.gone()
        if transport is not None and self.farewell and transport.can_write_eof():  # Not by TLS.
            transport.write(self.farewell)
            transport.close()
        elif transport is not None:
            transport.abort()

    def _end(self) -> None:
        self.over = True
        self._transport = self._inner = None
        if self._timer is not None:
            self._timer.cancel()
        self._admission.forget(self)

    def _wait(self, now: float) -> None:
        """Wait for the peer's own budget, and then in turn with others for that of all."""
        self._timer = None
        if self.over:
            return
        if wait_s := self._budget.wait_s(
            now, BURST_EACH_S / 2 if self._budget.left_s(now) < 0 else 0.0
        ):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                wait_s, lambda: self._wait(self._admission.clock.monotonic())
            )
        else:
            self._admission.queue(self)

    def _turn(self, was: bool, on: bool) -> None:
        if was != on and self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if on else self._transport.pause_reading)()


class AdmissionControl:
    """
    Bounds what all unauthenticated peers of a process cost, at whichever door.

    Args:
        clock: for budgets.
        share: of a core, for all of them.
        places: how many there may be.
        meter: seconds of processor time that this thread has used.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        share: float = SHARE,
        places: int = PLACES,
        meter: Callable[[], float] = time.thread_time,
    ) -> None:
        self.clock = clock
        self.meter = meter
        self.budget = CpuBudget(share, BURST_S)
        self.held_total = 0  # times that one was not read for a while
        self.evicted_total = 0  # those that others came after
        self.on_room: set[Callable[[], None]] = set()
        self._places = places
        self._count = 0
        self._hosts: dict[
            str, dict[UnauthenticatedPeer, None]
        ] = {}  # each one's peers, the oldest first
        self._read: dict[UnauthenticatedPeer, None] = {}  # those that are not held back
        self._held_all_at = float("-inf")
        self._waiting: deque[UnauthenticatedPeer] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def spent(self) -> bool:
        """
        Return whether the budget of all is used up.

        Users who come in at once fill places, but get it back.
        """
        return self.budget.left_s(self.clock.monotonic()) < 0

    def wait_s(self) -> float:
        """
        Return for how many seconds no peer should be accepted; 0 means that there is room.

        It is 0, too, after a peer was closed to make room. Until then new peers stay in the
        kernel's queue, which costs nothing.
        """
        now = self.clock.monotonic()
        if wait_s := self.budget.wait_s(now):
            return max(wait_s, SLICE_S)
        return 0.0 if self._count < self._places else self.evict()

    def enter(self, door: object, peer: str) -> UnauthenticatedPeer:
        """Admit ``peer``, ``host:port``, which has come to ``door``."""
        unauthenticated = UnauthenticatedPeer(self, door, peer)
        self._hosts.setdefault(unauthenticated.host, {})[unauthenticated] = None
        self._count += 1
        self._read[unauthenticated] = None
        self.budget.spend(ACCEPT_S, unauthenticated.since)
        unauthenticated.spent_s = ACCEPT_S
        return unauthenticated

    def evict(self, door: object = None) -> float:
        """
        Close the oldest unauthenticated peer of the host with the most of them.

        So others may come. One whose bytes this process has yet to read has done its part: a
        crowd that logs in at a slow node is not sent away for that.

        Args:
            door: at which; None: at any.

        Returns: 0.0, or the seconds after which one will have been here for long enough to be sent
        away.
        """
        hosts: Iterable[Collection[UnauthenticatedPeer]] = self._hosts.values()
        if door is not None:
            hosts = [[one for one in host if one.door is door] for host in hosts]
        wait_s, now = GRACE_S, self.clock.monotonic()
        crowd: Collection[UnauthenticatedPeer] = max(hosts, key=len, default=())
        for peer in islice(crowd, LOOKED_AT):
            if (young_s := peer.since + GRACE_S - now) > 0:
                return min(wait_s, young_s)
            if not peer.owed:
                self.evicted_total += 1
                peer.evict()
                return 0.0
            wait_s = OWED_S
        return wait_s

    def forget(self, unauthenticated: UnauthenticatedPeer) -> None:
        """Forget a peer that is authenticated or gone."""
        host = self._hosts[unauthenticated.host]
        del host[unauthenticated]
        if not host:
            del self._hosts[unauthenticated.host]
        self._count -= 1
        self._read.pop(unauthenticated, None)
        for tell in list(self.on_room):
            tell()

    def hold_all(self, now: float) -> None:
        """
        Read no stranger for now, because the budget is used up.

        A thousand quiet peers that ask all at once would else be read once each before one of them
        is held back, and use the budget up for minutes, in which no user could come in.
        """
        if now - self._held_all_at < HOLD_EVERY_S:
            return
        self._held_all_at = now
        everybody = self.budget.left_s(now) < -KEPT_S
        for unauthenticated in list(self._read):
            if everybody or not unauthenticated.is_logging_in(now):
                unauthenticated.hold(now)

    def holds(self, unauthenticated: UnauthenticatedPeer) -> None:
        """Note that a peer is held back."""
        self.held_total += 1
        self._read.pop(unauthenticated, None)

    def reads(self, unauthenticated: UnauthenticatedPeer) -> None:
        """Note that a peer is read again."""
        self._read[unauthenticated] = None

    def give_back(self, cost_s: float) -> None:
        """Give back the cost of a user: peers that wait for the budget are read sooner."""
        self.budget.give_back(cost_s)
        if (
            self._timer is not None
            and self.budget.left_s(self.clock.monotonic()) > KEPT_S + SLICE_S
        ):
            self._timer.cancel()
            self._release()

    def queue(self, unauthenticated: UnauthenticatedPeer) -> None:
        """Read a peer again as soon as the budget of all allows it."""
        self._waiting.append(unauthenticated)
        if self._timer is None:
            self._release()

    def _release(self) -> None:
        """
        Read as many waiting peers again as the budget is likely to bear, the first ones first.
        """
        self._timer = None
        left_s = self.budget.left_s(self.clock.monotonic()) - KEPT_S
        while self._waiting and (left_s > 0 or self._waiting[0].over):
            unauthenticated = self._waiting.popleft()
            if not unauthenticated.over:
                left_s -= READ_AGAIN_S
                unauthenticated.release()
        if self._waiting:
            wait_s = self.budget.wait_s(self.clock.monotonic(), KEPT_S + SLICE_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._release)
