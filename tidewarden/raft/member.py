"""One member of the cluster's Raft, as asyncio sees it."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
from collections.abc import Callable
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Config
from tidewarden.errors import BadArg, ConfigError, Draining, Internal, NoLeader

from . import refusals, report, state
from .building import build
from .operations import Operations
from .proposals import Proposals
from .ticker import Ticker
from .voter import Voter

logger = logging.getLogger("tidewarden.raft")

BEAT_S = 0.1
"""Between two signs of life of the event loop, at pace 1."""
JOIN_S = 10.0
"""Longest wait for the thread's end."""


class RaftMember:
    """
    Who leads the cluster, and the few facts that its members have agreed on.

    All methods are for the event loop that ran :meth:`start`. ``on_change`` is called there at any
    change of role, leader, term, quorum or committed facts. Nothing that this class says is a
    permission: see ``decide``.
    """

    def __init__(
        self, config: Config, secret: str, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        """
        Args: ``secret``: the cluster's secret, the same on every member; the link is encrypted with
        a key made of it.

        Raises: ConfigError: the members cannot be used, or there is no secret.
        """
        if not secret:
            raise ConfigError(
                [
                    "cluster.secret_file: found no secret; allowed: a secret, the same on every"
                    " member"
                ]
            )
        self.name = config.node.name
        self._config, self._secret, self._clock, self._on_change = config, secret, clock, on_change
        self._times = state.Times.at(config.raft.pace)
        self._seeds = state.addresses(
            self.name, config.node.host, config.node.raft_port, dict(config.cluster.members)
        )
        self._ticker: Ticker | None = None
        self._voter: Voter | None = None
        self._lock: int | None = None
        self._beating: asyncio.Task[None] | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._questions = Proposals(self._times.claim_s)
        self._steering = Operations(
            self.name,
            self._questions,
            self._times,
            clock,
            self.leader,
            lambda: list(self._addresses),
            self._sight,
        )
        self._told: tuple[object, ...] = ()
        self._compared = False

    async def start(self) -> None:
        """
        Listen on ``node.host:raft_port``, read the journal in ``node.data_dir`` and take part.

        Raises: ConfigError: the port is not free, the folder cannot be used or is another
        process's, or its Raft files cannot be read.
        """
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Voter] = loop.create_future()

        def started(voter: Voter | None, error: Exception | None) -> None:
            if voter is not None and ready.done():
                voter.close()  # the start was given up meanwhile, and the thread with it
            elif voter is not None:
                ready.set_result(voter)
            elif error is not None and not ready.done():
                ready.set_exception(error)

        self._ticker = Ticker(
            self._build, self._times, self._clock, loop, started, lambda _: self._notice()
        )
        self._ticker.thread.start()
        try:
            self._voter = await ready
        except BaseException:
            await self.stop(gracefully=False)
            raise
        self._beating = loop.create_task(self._beat(), name="raft beat")

    async def stop(self, gracefully: bool = True) -> None:
        """
        Leave, handing leadership over first if ``gracefully``. The journal stays. Safe to call
        twice.
        """
        ticker, self._ticker = self._ticker, None
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        if ticker is not None:
            ticker.stop(gracefully)
            await asyncio.to_thread(ticker.thread.join, JOIN_S)
            if ticker.thread.is_alive():
                logger.error("Raft's thread did not end within %g s; its files stay locked", JOIN_S)
                return
        if self._voter is not None:
            self._voter.close()
            self._voter = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._wake()

    # What is to be seen.

    def role(self) -> state.Role:
        """
        ``leader``, ``follower``, ``candidate``, or ``orphan``: no leader was heard for two election
        times.
        """
        sight = self._sight()
        return (
            "follower" if sight is None else state.role(sight, self._clock.monotonic(), self._times)
        )

    def is_leader(self) -> bool:
        """Whether this node believes that it leads, and its Raft thread is alive."""
        return self.role() == "leader"

    def leader(self) -> str | None:
        """Name of the member that leads; ``None`` when this node knows of none."""
        sight = self._sight()
        return (
            None
            if sight is None
            else state.leader(sight, self._clock.monotonic(), self._times, self.name)
        )

    @property
    def term(self) -> int:
        """Raft's current term here; grows with every election that this node hears of."""
        sight = self._sight()
        return 0 if sight is None else sight.term

    def has_quorum(self) -> bool:
        """
        Whether a majority stood behind the leader within the last election time, as far as this
        node can know.
        """
        sight = self._sight()
        return sight is not None and state.quorum(
            sight, self._clock.monotonic(), self._times, self.name
        )

    def heard_s(self) -> float:
        """Seconds since a leader was heard; 0 on the leader; since the start when none ever was."""
        sight = self._sight()
        if sight is None:
            return math.inf
        return 0.0 if self.is_leader() else self._clock.monotonic() - sight.leader_heard

    def peer_heard_s(self, name: str) -> float:
        """
        On the leader: seconds since that member last answered, from the leadership's start on; 0
        for itself.
        """
        sight = self._sight()
        if name == self.name:
            return 0.0
        return (
            math.inf if sight is None else state.peer_heard_s(sight, self._clock.monotonic(), name)
        )

    def lease_s(self) -> float:
        """
        Seconds for which no other member can be elected; 0: none are left. Infinite for a leader
        without peers.

        Counted from when was sent what a majority acknowledged, on a clock that stands still while
        the machine sleeps. Ends at once when this node gives leadership up, so it is looked at anew
        before each use.
        """
        voter = self._voter
        return 0.0 if voter is None else max(0.0, voter.lease_until - self._clock.monotonic())

    def committed(self) -> dict[str, Any]:
        """
        ``epoch`` (0: none yet), ``holder`` (``<node>.<boot>``) and ``members`` (name → Raft
        address).
        """
        sight = self._sight()
        facts = state.Committed() if sight is None else sight.facts
        return {"epoch": facts.epoch, "holder": facts.holder, "members": self._addresses}

    @property
    def _addresses(self) -> dict[str, str]:
        """
        The members' Raft addresses by name: as committed, or on their way; before the first version
        as configured.
        """
        sight = self._sight()
        return (
            dict(self._seeds)
            if sight is None or sight.members is None
            else sight.members.addresses()
        )

    def seats(self) -> dict[str, state.MemberView]:
        """Every member as this one knows it, by name."""
        sight = self._sight()
        found = None if sight is None else sight.members
        if found is None:
            return {
                name: state.MemberView(address, votes=True, met=False)
                for name, address in self._seeds.items()
            }
        return {
            name: state.MemberView(seat.address, seat.votes, bool(seat.mark))
            for name, seat in found.seats.items()
        }

    def base_addresses(self) -> dict[str, str]:
        """Every member's ``host:base_port`` by name."""
        return {name: state.base_address(seat.address) for name, seat in self.seats().items()}

    def estranged(self) -> str:
        """
        Why this node is no member of its cluster any more, or not yet, for people; "" when it is
        one.
        """
        sight = self._sight()
        return "" if sight is None else refusals.estranged(sight, self._config)

    async def watch(self) -> None:
        """
        Run until cancelled.

        Raises: ConfigError: the cluster does not know this node, or knows its name by another
        folder, and it was not told to wait until it is let in.
        """
        while True:
            sight = self._sight()
            if sight is not None and (problem := refusals.fatal(sight, self._config)):
                raise ConfigError([problem])
            await sleep(self._clock, self._times.orphan_s / 4)

    def status(self) -> dict[str, Any]:
        """
        Everything an operator may ask of Raft, in plain values; times that never were are ``None``.
        """
        return report.status(self, self._sight(), self._clock.monotonic(), self._voter)

    # What can be asked for.

    async def elected(self) -> None:
        """
        Return as soon as this node leads and has committed an entry of its own term.

        Raises: Draining: Raft is stopped.
        """
        while True:
            sight = self._sight()
            if sight is None:
                raise Draining("Raft is not running on this node.")
            if sight.settled and self.is_leader():
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def claim(self, boot: int, seen: int) -> int:
        """
        Commit a claim of this node's, in its ``boot``, above the epoch ``seen`` at the store.

        Returns: the epoch, greater than ``seen`` and than every epoch granted before. Raises:
        NoLeader: this node does not lead, or no longer does; the claim may still be committed, and
        harms nobody. Timeout: likewise, not in time. BadArg: no epoch can follow ``seen``.
        """
        if not 0 <= seen < state.EPOCH_MAX - 1:
            raise BadArg(f"seen: found {seen}; allowed: 0 to {state.EPOCH_MAX - 2}.")
        if self._voter is None or not self.is_leader():
            raise NoLeader("This node does not lead.")
        term = self.term
        epoch = await self._questions.propose(
            self._ticker, functools.partial(self._voter.claim, self.name, boot, seen)
        )
        if not isinstance(epoch, int) or epoch <= seen:
            raise Internal(f"A claim above epoch {seen} was answered with {epoch!r}.")
        if term != self.term or not self.is_leader():
            raise NoLeader("This node ceased to lead while its claim was committed.")
        return epoch

    async def transfer(self, node: str | None) -> str:
        """
        Have the member ``node`` lead (``None``: another), whoever leads now. Returns: the new
        leader's name.

        Raises: NoLeader, NotFound, Timeout: see :class:`Operations`. Draining.
        """
        return await self._steering.transfer(self._ticker, node)

    async def join(self, name: str, address: str) -> int:
        """
        Let the node ``name`` join, whose ``host:base_port`` is ``address``. Returns: the members'
        version that has it.

        Raises: BadArg: no such address. Exists, NoLeader, NoQuorum: see :class:`Operations`.
        """
        raft_address = state.raft_address(name, address)
        return await self._steering.join(self._ticker, self._voter, name, raft_address)

    async def leave(self, name: str) -> int:
        """
        Have the member ``name`` leave. Returns: the members' version without it.

        Raises: NotFound, NoLeader, NoQuorum: see :class:`Operations`.
        """
        return await self._steering.leave(self._ticker, self._voter, name)

    # Between the loop and the thread.

    def _sight(self) -> state.RaftView | None:
        return None if self._ticker is None else self._ticker.latest

    async def _beat(self) -> None:
        """Show the thread that this loop turns, and notice what changes by time alone."""
        loop = asyncio.get_running_loop()
        while self._ticker is not None:
            self._ticker.beat = self._clock.monotonic()
            loop.call_soon(self._notice)
            await sleep(self._clock, BEAT_S * self._config.raft.pace)

    def _notice(self) -> None:
        sight = self._sight()
        if sight is None:
            return
        told = (
            self.role(),
            self.leader(),
            sight.term,
            sight.settled,
            sight.facts,
            self.has_quorum(),
            sight.members,
            sight.members_committed,
            sight.removed_because,
        )
        if told == self._told:
            return
        if self._told[:3] != told[:3]:
            logger.info("raft: %s in term %d, leader %s", told[0], sight.term, told[1] or "unknown")
        self._told = told
        self._compare(sight)
        self._wake()
        self._on_change()

    def _compare(self, sight: state.RaftView) -> None:
        """Say once that the configuration's members are not the cluster's."""
        if self._compared or sight.members is None:
            return
        self._compared = True
        if text := refusals.difference(sight.members, self._seeds):
            logger.warning("%s", text)

    def _build(self) -> Voter:
        def taken(lock: int) -> None:
            self._lock = lock

        return build(self._config, self._secret, self._seeds, self._clock, taken)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
