"""Knows the consumers of one process: their connections, their leases, and how to end them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import msgspec

from tidewarden.clock import Clock, in_turns
from tidewarden.peer_line import UnreachableNode
from tidewarden.queue import Queues
from tidewarden.queue.sessions.session import Held, Session
from tidewarden.server.access.peer import Peer
from tidewarden.server.access.users import DEFAULT_NAME
from tidewarden.server.door_peers import Peers

from .questions import (
    PAGE_BYTES,
    Ask,
    Consumer,
    ConsumersTold,
    EndAsk,
    Holder,
    Holding,
    KillAsk,
    ListAsk,
    WhoAsk,
    asker_of,
    greatest,
    listed,
    mark_of,
)

RESP = "resp"
"""The door at which consumers are ended, by a connection that may be one of those."""


ASKED_MAX = 32
"""
The most questions that read all consumers and wait for their turn: each takes time and memory.
"""


class Connected(Protocol):
    """Is a connection of a door at which one takes."""

    id: int
    peer: Peer
    session: Session | None

    def abort(self) -> None: ...
    def hang_up(self) -> None: ...


@dataclass(slots=True)
class _Party:
    """The connections of this process that hold together; none: what HTTP holds."""

    id: str
    session: Session
    links: list[tuple[str, Connected]] = field(default_factory=list)


class ProcessConsumers:
    """
    Answers questions about the consumers at this process's doors, from its memory alone.

    Args:
        node: whose process this is.
        queues: have the sessions.
        process: its number within the node, of ``processes``.
    """

    def __init__(
        self, node: str, queues: Queues, clock: Clock, process: int = 0, processes: int = 1
    ) -> None:
        self._node = node
        self._queues = queues
        self._clock = clock
        self.numbers: Iterator[int] = itertools.count(processes + process, processes)
        self.doors: list[Peers[Any]] = []
        self._asked = 0
        self._reading = asyncio.Lock()

    async def answer(self, ask: Ask) -> ConsumersTold:
        """
        Answer a question; others have their turn meanwhile.

        Those that read all consumers are answered one after the other, and refused, by an answer
        that names the node as silent, where :data:`ASKED_MAX` wait: any user may ask them.
        """
        match ask:
            case ListAsk() | WhoAsk():
                if self._asked >= ASKED_MAX:
                    why = f"{ASKED_MAX} such questions are under way"
                    return ConsumersTold(silent=(UnreachableNode(self._node, why),))
                self._asked += 1
                try:
                    async with self._reading:
                        return await self._read(ask)
                finally:
                    self._asked -= 1
            case KillAsk():
                return ConsumersTold(closed=await self._kill(ask))
            case EndAsk():
                await self._queues.sessions.stopped(ask.session)
                await self._kill(KillAsk(ask.asker, session=ask.session))
                return ConsumersTold()

    async def _read(self, ask: ListAsk | WhoAsk) -> ConsumersTold:
        if isinstance(ask, ListAsk):
            return await self._listed(ask)
        return ConsumersTold(holders=tuple(await self._holders(ask)))

    def _links(self) -> Iterator[tuple[str, Connected]]:
        """List all connections with the names of their doors, each once: at its own process."""
        for peers in self.doors:
            for one in list(peers.connections):
                if one not in peers.relayed:
                    yield peers.door, one

    async def _parties(self) -> list[_Party]:
        """List the consumers here, in the order of their ids."""
        found: dict[str, _Party] = {}
        seen = set[int]()
        async for door, one in in_turns(self._links()):
            if (session := one.session) is None:
                continue
            seen.add(id(session))
            shared = session.shared
            name = f"{self._node}:{one.id}" if shared is None else str(UUID(shared.uuid))
            found.setdefault(name, _Party(name, session)).links.append((door, one))
        async for session in in_turns(list(self._queues.sessions.open_ones)):
            if id(session) not in seen and session.uuid and session.held:
                name = str(UUID(session.uuid))
                found.setdefault(name, _Party(name, session))
        return sorted(found.values(), key=lambda party: party.id)

    async def _listed(self, ask: ListAsk) -> ConsumersTold:
        told: list[Consumer] = []
        size = 0
        async for party in in_turns(await self._parties(), 1):
            if party.id <= ask.after:
                continue
            if ask.user and party.session.user != ask.user:
                continue
            consumer = await self._consumer(party, ask.queue)
            if ask.queue and not _is_in(consumer, ask.queue):
                continue
            if len(told) == ask.count or (told and size > PAGE_BYTES):
                return ConsumersTold(consumers=tuple(told), more=True)
            told.append(consumer)
            size += len(msgspec.msgpack.encode(consumer))
        return ConsumersTold(consumers=tuple(told))

    async def _consumer(self, party: _Party, queue: str) -> Consumer:
        """Describe a consumer, with what it has in ``queue`` before all else."""
        session = party.session
        waits = {queue for _, one in party.links for queue in _waits(one.session)}
        tasks, holds = await self._held(session, queue)
        since_s = [one.peer.since for _, one in party.links]
        return Consumer(
            **self._client(session, *(party.links[0] if party.links else ("http", None))),
            id=party.id,
            session="" if session.shared is None else party.id,
            connections=len(party.links),
            connected_ms=self._unix_ms(min(since_s)) if since_s else 0,
            tasks=tasks,
            holds=holds,
            waits=listed(waits, queue),
            settled=sum(one.session.settled for _, one in party.links if one.session is not None)
            if party.links
            else session.settled,
        )

    def _client(self, session: Session, door: str, one: Connected | None) -> dict[str, Any]:
        """Describe a connection; None: requests of HTTP."""
        client: dict[str, Any] = {"node": self._node, "door": door, "client": 0}
        client["user"] = session.user
        if one is not None:
            peer = one.peer
            client |= {
                "client": one.id,
                "address": peer.address,
                "name": peer.name,
                "library": peer.agent.get("lib-name", ""),
                "version": peer.agent.get("lib-ver", ""),
                "host": peer.agent.get("host", "") or peer.host,
                "pid": peer.agent.get("pid", ""),
            }
        return client

    async def _held(self, session: Session, asked: str) -> tuple[int, list[Holding]]:
        """Return how many leases a session holds, and in which queues; ended ones do not count."""
        found: dict[str, Holding] = {}
        clock = self._queues.catalog.lease_clock
        now_ms, total = clock.known_ms() + clock.lag_ms, 0
        async for (queue, _), (_, end_ms, taken) in _held_by(session):
            if end_ms <= now_ms:
                continue
            total += 1
            since_ms = self._since_ms(taken)
            if (one := found.get(queue)) is None:
                found[queue] = Holding(queue, 1, since_ms, end_ms)
            else:
                since_ms = min(one.since_ms, since_ms) or max(one.since_ms, since_ms)
                end_ms = min(one.lease_end_ms, end_ms)
                found[queue] = Holding(queue, one.tasks + 1, since_ms, end_ms)
        return total, greatest(found.values(), asked)

    async def _kill(self, ask: KillAsk) -> int:
        """Close connections: what they held is released, or has its session's grace."""
        closed = 0
        async for door, one in in_turns(self._links()):
            if not _fits(one, ask):
                continue
            if door != RESP or asker_of(self._node, one.peer.address) != ask.asker:
                _release(one)
                one.abort()
            elif ask.spares:
                continue
            else:  # it is to read how many
                _release(one)
                one.hang_up()
            closed += 1
        return closed

    async def _holders(self, ask: WhoAsk) -> list[Holder]:
        """Find the holders of leases, and the first connection of each session."""
        wanted, found = set(ask.leases), list[Holder]()
        numbers = {number for number, _ in wanted}
        sessions = {str(UUID(bytes=uuid)) for uuid in ask.sessions}
        async for party in in_turns(await self._parties()):
            session = party.session
            client = self._client(session, *(party.links[0] if party.links else ("http", None)))
            if party.id in sessions:
                found.append(Holder(**client, session=party.id))
            async for (queue, task), (lease, _, taken) in _held_by(session):
                if lease not in numbers or queue != ask.queue:
                    continue
                named = task.encode("utf-8", "surrogateescape")
                if (lease, mark_of(named)) in wanted:
                    since_ms = self._since_ms(taken)
                    found.append(Holder(**client, task=named, lease=lease, since_ms=since_ms))
        return found

    def _since_ms(self, taken: float) -> int:
        return self._unix_ms(taken) if taken else 0

    def _unix_ms(self, moment_s: float) -> int:
        """Return the unix time of a moment of the monotonic clock."""
        return self._clock.unix_ms() - round((self._clock.monotonic() - moment_s) * 1000)


async def _held_by(session: Session) -> AsyncIterator[tuple[tuple[str, str], Held]]:
    """Yield a session's leases, in turns of the loop; to list all pairs at once would take long."""
    held = session.held
    async for place in in_turns(list(held)):
        if (entry := held.get(place)) is not None:
            yield place, entry


def _waits(session: Session | None) -> set[str]:
    if session is None:
        return set()
    return {queue for take in session.takes for queue in take.queues}


def _is_in(consumer: Consumer, queue: str) -> bool:
    return queue in consumer.waits or any(hold.queue == queue for hold in consumer.holds)


def _fits(one: Connected, ask: KillAsk) -> bool:
    """Return whether a connection is one of those that are to be closed."""
    peer, session = one.peer, one.session
    shared = None if session is None else session.shared
    return (
        ask.client in (0, one.id)
        and ask.user in ("", peer.user or DEFAULT_NAME)
        and ask.address in ("", peer.address)
        and ask.name in ("", peer.name)
        and ask.session in ("", "" if shared is None else shared.uuid)
    )


def _release(one: Connected) -> None:
    """Have a connection's leases end as releases, because an operator's act is no loss."""
    if one.session is not None:
        one.session.how = "release"
