"""Runs one member of the cluster's Raft, as asyncio sees it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock, rest
from tidewarden.config.load import Config
from tidewarden.errors import BadArg, ConfigError, Draining, Internal, NoLeader, Timeout
from tidewarden.histograms import ELECTIONS, Family

from . import folder, pysync, state
from .operations import Operations
from .operator_status import operator_status
from .proposals import Proposals
from .store_facts import StoreFacts
from .store_queries import LOOK, StoreQueries
from .ticker import Ticker
from .voter import Voter

logger = logging.getLogger("tidewarden.raft")

BEAT_S = 0.1
"""Between two signs of life of the event loop, at pace 1."""
JOIN_S = 10.0
"""Longest wait for the thread's end."""


@dataclass(frozen=True, slots=True)
class Running:
    """Holds what is there of a member between its start and its stop."""

    ticker: Ticker
    voter: Voter
    proposals: Proposals
    operations: Operations
    stores: StoreQueries
    beating: asyncio.Task[None]


class RaftMember:
    """
    Says who leads the cluster, and the few facts that its members have agreed on.

    All methods are for the event loop that ran :meth:`start`. ``on_change`` is called there at any
    change of role, leader, term, quorum or committed facts. Nothing that this class says is a
    permission: see ``state``.
    """

    def __init__(
        self,
        config: Config,
        secret: str,
        clock: Clock,
        on_change: Callable[[], None],
        on_stores: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args: ``secret``: the cluster's secret, the same on every member; the link is encrypted with
        a key made of it. ``on_stores``: see :attr:`on_stores`.

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
        self.on_stores = on_stores
        """
        Called in the loop when the facts about the stores, the voters, who has ended or what any
        member reports of its store changed, and once after the start; another may be put here at
        any time.
        """
        self._config, self._secret, self._clock, self._on_change = config, secret, clock, on_change
        self._times = state.Times.at(config.raft.pace)
        self._seeds = state.addresses(
            self.name, config.node.host, config.node.raft_port, dict(config.cluster.members)
        )
        self._running: Running | None = None
        """None before the start and after the stop."""
        self._lock: int | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._told: tuple[object, ...] = ()
        self.elections = Family(ELECTIONS)
        self._led_by: tuple[str, int] | None = None
        self._led_until = 0.0
        self._compared = False
        self._apart = ""
        self._facts_last = StoreFacts()  # after the stop

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

        ticker = Ticker(
            self._open, self._times, self._clock, loop, started, lambda _: self._notice()
        )
        ticker.thread.start()
        try:
            voter = await ready
        except BaseException:
            await self._end(ticker, gracefully=False)
            raise
        proposals = Proposals(ticker, self._times.claim_s)
        operations = Operations(
            self.name,
            proposals,
            voter,
            self._times,
            self._clock,
            self.leader,
            lambda: list(self._addresses),
            self._view,
        )
        stores = StoreQueries(
            ticker,
            voter,
            proposals,
            self._clock,
            self._config.raft.pace,
            self._tell_stores,
        )
        beating = loop.create_task(self._beat(ticker), name="raft beat")
        self._running = Running(ticker, voter, proposals, operations, stores, beating)

    async def stop(self, gracefully: bool = True) -> None:
        """
        Leave the Raft group, handing leadership over first if ``gracefully``.

        The journal stays. It is safe to call twice.
        """
        running, self._running = self._running, None
        if running is None:
            return
        running.beating.cancel()
        self._facts_last = running.stores.facts
        try:
            ended = await self._end(running.ticker, gracefully)
        except BaseException:
            self._running = running  # the next call goes on
            raise
        if ended:
            running.proposals.end()
            running.voter.close()
        self._wake()

    async def _end(self, ticker: Ticker, gracefully: bool) -> bool:
        """End the thread, then let the folder go. Returns: whether the thread has ended."""
        ticker.stop(gracefully)
        await asyncio.to_thread(ticker.thread.join, JOIN_S)
        if ticker.thread.is_alive():
            logger.error("Raft's thread did not end within %g s; its files stay locked", JOIN_S)
            return False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        return True

    # What is to be seen.

    def role(self) -> state.Role:
        """
        Return ``leader``, ``follower``, ``candidate`` or ``orphan``.

        ``orphan``: no leader was heard for two election times.
        """
        view = self._view()
        return (
            "follower" if view is None else state.role(view, self._clock.monotonic(), self._times)
        )

    def is_leader(self) -> bool:
        """Return whether this node believes that it leads, and its Raft thread is alive."""
        return self.role() == "leader"

    def leader(self) -> str | None:
        """Return the member that leads; ``None`` when this node knows of none."""
        view = self._view()
        return (
            None
            if view is None
            else state.leader(view, self._clock.monotonic(), self._times, self.name)
        )

    @property
    def term(self) -> int:
        """Return Raft's current term here; it grows with every election that this node hears of."""
        view = self._view()
        return 0 if view is None else view.term

    def has_quorum(self) -> bool:
        """
        Return whether a majority stood behind the leader within the last election time.

        This node answers as far as it can know.
        """
        view = self._view()
        return view is not None and state.quorum(
            view, self._clock.monotonic(), self._times, self.name
        )

    def heard_s(self) -> float:
        """
        Return the seconds since a leader was heard.

        0 on the leader; since the start when none ever was.
        """
        view = self._view()
        if view is None:
            return math.inf
        return 0.0 if self.is_leader() else self._clock.monotonic() - view.leader_heard

    def peer_heard_s(self, name: str) -> float:
        """
        Return, on the leader, the seconds since that member last answered; 0 for itself.

        They count from the leadership's start on.
        """
        view = self._view()
        if name == self.name:
            return 0.0
        return math.inf if view is None else state.peer_heard_s(view, self._clock.monotonic(), name)

    def lease_s(self) -> float:
        """
        Return the seconds for which no other member can be elected; 0: none are left.

        They are infinite for a leader without peers.

        Counted from when was sent what a majority acknowledged, on a clock that stands still while
        the machine sleeps. Ends at once when this node gives leadership up, so it is looked at anew
        before each use.
        """
        running = self._running
        return (
            0.0
            if running is None
            else max(0.0, running.voter.lease_until - self._clock.monotonic())
        )

    def committed(self) -> dict[str, Any]:
        """
        Return the committed ``epoch``, ``holder`` and ``members``.

        ``epoch``: 0 means none yet; ``holder``: ``<node>.<boot>``; ``members``: name → Raft
        address.
        """
        view = self._view()
        facts = state.Committed() if view is None else view.facts
        return {"epoch": facts.epoch, "holder": facts.holder, "members": self._addresses}

    @property
    def _addresses(self) -> dict[str, str]:
        """Return the members' Raft addresses by name: committed, on their way, or configured."""
        view = self._view()
        return (
            dict(self._seeds) if view is None or view.members is None else view.members.addresses()
        )

    def seats(self) -> dict[str, state.MemberView]:
        """Return every member as this one knows it, by name."""
        view = self._view()
        found = None if view is None else view.members
        if found is None:
            return {
                name: state.MemberView(address, votes=True, met=False)
                for name, address in self._seeds.items()
            }
        return {
            name: state.MemberView(seat.address, seat.votes, bool(seat.mark))
            for name, seat in found.seats.items()
        }

    def not_member_because(self) -> str:
        """
        Return why this node is no member of its cluster any more, or not yet, for people.

        It is "" when the node is a member.
        """
        view = self._view()
        return "" if view is None else state.not_member_because(view, self._config)

    def quorum_fault(self) -> str:
        """Say to people which members a majority lacks; empty: one can be heard."""
        view, now = self._view(), self._clock.monotonic()
        if view is None:
            return ""
        return state.quorum_fault(view, now, self._clock.unix_ms(), self._times, self.name)

    async def watch(self) -> None:
        """
        Run until cancelled.

        Raises: ConfigError: the cluster does not know this node, or knows its name by another
        folder, and it was not told to wait until it is let in.
        """
        while True:
            view = self._view()
            if view is not None and (problem := state.must_not_start_because(view, self._config)):
                raise ConfigError([problem])
            await rest(self._clock, self._times.orphan_s / 4)

    def status(self) -> dict[str, Any]:
        """
        Return everything an operator may ask of Raft, in plain values.

        Times that never were are ``None``.
        """
        running, view = self._running, self._view()
        if running is None or view is None:
            return operator_status(self, heard_s=self.heard_s(), lease_s=self.lease_s())
        return operator_status(
            self,
            commit=view.commit,
            heard_s=self.heard_s(),
            lease_s=self.lease_s(),
            tick_age_s=round(self._clock.monotonic() - view.ticked, 3),
            strangers_refused=running.voter.strangers_refused(),
            members_version=0 if view.members is None else view.members.version,
            seat_waits=view.seat_waits,
            trouble="; ".join(filter(None, (self.quorum_fault(), self._apart))),
        )

    # What can be asked for.

    async def elected(self) -> None:
        """
        Return as soon as this node leads and has committed an entry of its own term.

        Raises: Draining: Raft is stopped.
        """
        while True:
            view = self._view()
            if view is None:
                raise Draining("Raft is not running on this node.")
            if view.settled and self.is_leader():
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
        running = self._running
        if running is None or not self.is_leader():
            raise NoLeader("This node does not lead.")
        term = self.term
        epoch = await running.proposals.propose(
            functools.partial(running.voter.claim, self.name, boot, seen)
        )
        if not isinstance(epoch, int) or epoch <= seen:
            raise Internal(f"A claim above epoch {seen} was answered with {epoch!r}.")
        if term != self.term or not self.is_leader():
            raise NoLeader("This node ceased to lead while its claim was committed.")
        return epoch

    async def transfer(self, node: str | None) -> str:
        """
        Transfer leadership to ``node`` (``None``: another), whichever member leads now.

        Returns: the new leader's name.

        Raises: NoLeader, NotFound, Timeout: see :class:`Operations`. Draining.
        """
        return await self._operations().transfer(node)

    async def join(self, name: str, address: str) -> int:
        """
        Let the node ``name`` join, whose ``host:base_port`` is ``address``.

        Returns: the members' version that has it.

        Raises: BadArg: no such address. Exists, NoLeader, NoQuorum: see :class:`Operations`.
        """
        raft_address = state.raft_address(name, address)
        return await self._operations().join(name, raft_address)

    async def leave(self, name: str) -> int:
        """
        Have the member ``name`` leave. Returns: the members' version without it.

        Raises: BadArg: its store is the primary. NotFound, NoLeader, NoQuorum: see
        :class:`Operations`.
        """
        with contextlib.suppress(NoLeader, Timeout):  # then whoever leads soon refuses it
            facts = await self.look_stores()
            if facts.primary == name:
                raise BadArg(f"{facts.membership_fault(name, self.voters() - {name})}.")
        return await self._operations().leave(name)

    # The embedded stores.

    def store_facts(self) -> StoreFacts:
        """Return the facts about the stores as applied here; after the stop, the last ones."""
        return self._facts_last if self._running is None else self._running.stores.facts

    def voters(self) -> frozenset[str]:
        """
        Return who votes, by the newest version of the members that this node has.

        None while the cluster is not founded, as far as it knows.
        """
        return frozenset() if self._running is None else self._running.stores.voters

    async def look_stores(self) -> StoreFacts:
        """
        Return facts that are no older than this call, as a majority has committed them.

        Raises: NoLeader, Timeout: nobody knows just now. Draining: Raft is stopped.
        """
        return await self.store_command(LOOK)

    async def store_command(self, command: tuple[Any, ...]) -> StoreFacts:
        """
        Commit a command of :func:`~tidewarden.raft.store_facts.applied`, whichever member leads.

        Returns: the facts once it is applied here, whether it was taken or not. Raises: NoLeader,
        Timeout: its fate is unknown, it may be committed also later. Draining: Raft is stopped.
        """
        return await self._stores().command(command)

    def ended(self) -> frozenset[str]:
        """Return the members whose processes are known to have ended."""
        return frozenset() if self._running is None else self._running.stores.ended

    def say_store(self, report: tuple[Any, ...], now: bool = False, stands_s: float = 0.0) -> None:
        """
        Say something of this node's own store to all members; to be called at each look at it.

        They are told at once if ``now`` or if it is new, else each 0.08 s at pace 1. For
        ``stands_s``, or until the next call, it counts as said anew whenever the others hear this
        node, as long as the loop turns; nothing is said for longer: who is silent is seen to be.
        Raises: BadArg: it is no report, or long.
        """
        if self._running is not None:
            self._running.stores.say(report, now, stands_s)

    def store_reports(self) -> dict[str, tuple[float, tuple[Any, ...]]]:
        """
        Return what each member last said of its store: when it was heard (monotonic), and what.

        This node's own is among them. Members that never said anything are not.
        """
        return {} if self._running is None else self._running.stores.reports(self.name)

    # Between the loop and the thread.

    def _stores(self) -> StoreQueries:
        if self._running is None:
            raise Draining("Raft is not running on this node.")
        return self._running.stores

    def _operations(self) -> Operations:
        if self._running is None:
            raise Draining("Raft is not running on this node.")
        return self._running.operations

    def _view(self) -> state.RaftView | None:
        return None if self._running is None else self._running.ticker.latest

    async def _beat(self, ticker: Ticker) -> None:
        """Show the thread that this loop turns, and notice what changes by time alone."""
        loop = asyncio.get_running_loop()
        while True:
            ticker.beat = self._clock.monotonic()
            if self._running is not None:
                self._running.stores.beat()
            loop.call_soon(self._notice)
            await rest(self._clock, BEAT_S * self._config.raft.pace)

    def _notice(self) -> None:
        view = self._view()
        if view is None or self._running is None:
            return
        self._running.stores.notice()
        self._time_election(view)
        told = (
            self.role(),
            self.leader(),
            view.term,
            view.settled,
            view.facts,
            self.has_quorum(),
            view.members,
            view.members_committed,
            view.removed_because,
            apart := state.apart_because(view, self._clock.monotonic(), self._times),
        )
        if told == self._told:
            return
        if apart and apart != self._apart:
            logger.critical("%s", apart)
        self._apart = apart
        if self._told[:3] != told[:3]:
            logger.info("raft: %s in term %d, leader %s", told[0], view.term, told[1] or "unknown")
        self._told = told
        self._compare(view)
        self._wake()
        self._on_change()

    def _time_election(self, view: state.RaftView) -> None:
        """Count for how long no member led, once another does than before."""
        leader, now = self.leader(), self._clock.monotonic()
        if leader is None:
            return
        if (leader, view.term) != self._led_by:
            if self._led_by is not None:
                self.elections.of().observe(max(0.0, now - self._led_until))
            self._led_by = leader, view.term
        self._led_until = now - self.heard_s()

    def _tell_stores(self) -> None:
        if self._running is not None:  # what was under way when it stopped is told nobody
            self.on_stores()

    def _compare(self, view: state.RaftView) -> None:
        """Say once that the configuration's members are not the cluster's."""
        if self._compared or view.members is None:
            return
        self._compared = True
        if text := state.seeds_differ_because(view.members, self._seeds):
            logger.warning("%s", text)

    def _open(self) -> Voter:
        """Build the voter, in the thread that will tick it."""

        def taken(lock: int) -> None:
            self._lock = lock

        return open_voter(self._config, self._secret, self._seeds, self._clock, taken)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def open_voter(
    config: Config,
    secret: str,
    seeds: Mapping[str, str],
    clock: Clock,
    taken: Callable[[int], None],
) -> Voter:
    """
    Open the member that ``config`` describes; ``seeds``: Raft addresses by name.

    ``taken`` is told the descriptor that keeps the folder locked, before anything else can fail.
    Raises: ConfigError: the folder, its files, the host or the port.
    """
    if not __debug__:
        raise ConfigError(
            ["python -O: found; allowed: without, for PySyncObj's replay protection is assertions"]
        )
    node, times = config.node, state.Times.at(config.raft.pace)
    path = Path(node.data_dir)
    taken(folder.take(path))
    folder.check(path)
    try:
        socket.getaddrinfo(node.host, node.raft_port)
    except OSError as error:
        raise ConfigError(
            [f"node.host: found {node.host!r}, {error.strerror}; allowed: a local address"]
        ) from None
    conf = pysync.configure(
        path, f"{node.host}:{node.raft_port}", link_password(secret, config.cluster.name), times
    )
    try:
        return Voter(node.name, seeds, conf, times, clock, node.role == "joining")
    except OSError as error:
        found = (
            f"{node.base_port}, and {node.host}:{node.raft_port} (Raft, + 2) cannot be listened on"
        )
        why = error.strerror or str(error)
        raise ConfigError(
            [f"node.base_port: found {found}: {why}; allowed: a base of free ports"]
        ) from error


def link_password(secret: str, cluster: str) -> str:
    """
    Derive the password of Raft's links from the cluster's secret.

    It is stretched, for the library's own salt is in its source, the same for everybody.
    """
    salt = f"tidewarden raft {cluster}".encode()
    return hashlib.scrypt(secret.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32).hex()
