"""What the processes and nodes of a cluster ask each other about consumers, and their answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated
from zlib import crc32

import msgspec
from msgspec import Meta

from tidewarden.peer_line import UnreachableNode

PAGE_MAX = 500
"""The most consumers in one page."""
PAGE_BYTES = 96_000
"""The most bytes of consumers that one process tells at a time: they fit into a packet."""
ANSWER_BYTES = 500_000
"""The most bytes of consumers that a node tells another, which reads a mebibyte at most."""
LISTED_MAX = 20
"""The most queues that are named of one consumer; the others are counted."""
LEASES_MAX = 100
"""The most leases whose holders are asked for at a time: so many fit into an answer."""


class Holding(msgspec.Struct, frozen=True):
    """What a consumer holds in one queue; locks are held in ``_locks``."""

    queue: str
    tasks: int
    since_ms: Annotated[int, Meta(description="When it took the oldest; 0: that is not known.")]
    lease_end_ms: Annotated[int, Meta(description="When the first of the leases ends.")]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A connection at some door, as its peer describes itself; empty: it did not say."""

    node: str
    door: str
    """``resp``, ``beanstalkd``, or ``http``, whose connections hold nothing."""
    client: Annotated[int, Meta(description="As CLIENT LIST of its node has it; 0: there is none.")]
    user: str
    address: str = ""
    name: str = ""
    library: str = ""
    version: str = ""
    host: str = ""
    pid: str = ""


class Consumer(Client, frozen=True, kw_only=True):
    """
    Somebody who takes: a session with all of its connections, or a connection without one.

    What is said of a connection is said of the session's first.
    """

    id: Annotated[str, Meta(description="The session, or `node:client`.")]
    session: Annotated[str, Meta(description="Empty: what it holds ends with its connection.")]
    connections: int
    connected_ms: int
    tasks: Annotated[int, Meta(description="Which it holds, as far as its nodes know.")]
    holds: list[Holding]
    waits: Annotated[list[str], Meta(description="Queues in which a take waits.")]
    settled: Annotated[int, Meta(description="Tasks that it has ended since it connected.")]


class Holder(Client, frozen=True, kw_only=True):
    """Who holds a lease: by its task's id and its number, or whoever is in the session."""

    task: bytes = b""
    lease: int = 0
    session: str = ""
    since_ms: int = 0


class ListAsk(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """Asks for consumers behind ``after``, in the order of their ids."""

    count: int
    after: str = ""
    user: str = ""
    queue: str = ""


class KillAsk(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """
    Has connections closed, all that fit what is not empty.

    ``asker``: who asks, as of :func:`asker_of`; ``spares``: whether that one is left.
    """

    asker: str
    spares: bool = True
    client: int = 0
    user: str = ""
    address: str = ""
    name: str = ""
    session: str = ""


def asker_of(node: str, address: str) -> str:
    """Name a connection of a node's RESP door: an address may be that of one at each node."""
    return f"{node} {address}"


class WhoAsk(msgspec.Struct, frozen=True, array_like=True, tag="who"):
    """
    Asks who holds leases of a queue, and who is in these sessions.

    ``leases``: each a number, which one of every shard may have, and :func:`mark_of` its task.
    """

    queue: str
    leases: list[tuple[int, int]]
    sessions: list[bytes]


def mark_of(task: bytes) -> int:
    """Return four bytes of a task's id: they tell it from those of other shards, nearly always."""
    return crc32(task)


class EndAsk(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """
    Tells that a session has been ended: its connections are closed, so that clients begin another.

    ``asker``: who ended it, as of :func:`asker_of`, and is left.
    """

    session: str
    asker: str = ""


Ask = ListAsk | KillAsk | WhoAsk | EndAsk


class ConsumersTold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answers any of the questions: a process, a node, or the cluster."""

    consumers: tuple[Consumer, ...] = ()
    more: bool = False
    """Whether there are consumers behind the last of these."""
    closed: int = 0
    holders: tuple[Holder, ...] = ()
    silent: tuple[UnreachableNode, ...] = ()


def merged(
    answers: Sequence[ConsumersTold], count: int = PAGE_MAX, queue: str = ""
) -> ConsumersTold:
    """
    Merge the answers to one question.

    Of consumers, it returns ``count`` at most, and none behind the first that another node may not
    have told yet. ``queue``: which was asked for.
    """
    if len(answers) == 1 and len(answers[0].consumers) <= count:
        return answers[0]
    short = [one.consumers[-1].id for one in answers if one.more and one.consumers]
    parts: dict[str, list[Consumer]] = {}
    for consumer in sorted((c for one in answers for c in one.consumers), key=lambda c: c.id):
        if not short or consumer.id <= min(short):
            parts.setdefault(consumer.id, []).append(consumer)
    rows: list[Consumer] = []
    size = 0
    for some in itertools.islice(parts.values(), count):
        if size > ANSWER_BYTES:
            break
        rows.append(together(some, queue))
        size += len(msgspec.msgpack.encode(rows[-1]))
    return ConsumersTold(
        consumers=tuple(rows),
        more=bool(short) or len(parts) > len(rows),
        closed=sum(one.closed for one in answers),
        holders=tuple(holder for one in answers for holder in one.holders),
        silent=tuple(sorted((s for one in answers for s in one.silent), key=lambda s: s.node)),
    )


def together(parts: Sequence[Consumer], queue: str = "") -> Consumer:
    """Merge the parts of a session that several processes tell."""
    if len(parts) == 1:
        return parts[0]
    holds: dict[str, Holding] = {}
    for hold in (hold for part in parts for hold in part.holds):
        holds[hold.queue] = _both(holds[hold.queue], hold) if hold.queue in holds else hold
    return msgspec.structs.replace(
        parts[0],
        connections=sum(part.connections for part in parts),
        connected_ms=min(part.connected_ms for part in parts),
        tasks=sum(part.tasks for part in parts),
        holds=greatest(holds.values(), queue),
        waits=listed({one for part in parts for one in part.waits}, queue),
        settled=sum(part.settled for part in parts),
    )


def greatest(holds: Iterable[Holding], asked: str = "") -> list[Holding]:
    """Return the queues with the most leases, and the one that was ``asked`` for."""
    found = sorted(holds, key=lambda hold: (hold.queue != asked, -hold.tasks, hold.queue))
    return sorted(found[:LISTED_MAX], key=lambda hold: (-hold.tasks, hold.queue))


def listed(queues: Iterable[str], asked: str = "") -> list[str]:
    """Return the first of these queues, and the one that was ``asked`` for."""
    return sorted(sorted(queues, key=lambda queue: (queue != asked, queue))[:LISTED_MAX])


def _both(one: Holding, other: Holding) -> Holding:
    return Holding(
        one.queue,
        one.tasks + other.tasks,
        min(one.since_ms, other.since_ms) or max(one.since_ms, other.since_ms),
        min(one.lease_end_ms, other.lease_end_ms),
    )
