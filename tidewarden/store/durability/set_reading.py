"""
Reads the answers of one confirmation: who is primary, who has to confirm, and who has not.

The functions are pure. A confirmation is ``FCALL mark``, ``ROLE``, ``WAIT``, ``ROLE`` and ``HMGET
…:primary view set node`` on one connection, sent together behind the calls whose answers it
confirms, or by itself. The mark is written behind everything that ran at that server before, and
the first ROLE gives a place behind it. WAIT only makes the replicas answer now; its count is not
believed, for it may be of stores that are not in the set. The second ROLE says whose answers there
are, by incarnation.

View and set are read last. Any set that is read behind the calls will do (see docs/replication.md),
and if the data are of the same view then, nothing has taken their place: the server was not made a
replica, and the primary again without the calls' writes, while the replicas were waited for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidewarden.store.connection import pack

PROCESS = pack(("INFO", "server", "replication"))
_PRIMARY = re.compile(rb"run_id:(\w+)\r\n(?:.*\r\n)*?role:master\r\n")


class Primaryship(NamedTuple):
    """Names one time of being primary."""

    view: int
    run_id: str
    """
    Names the server's process. Its replication id would not do: it changes when a replica joins a
    lone primary, and two connections that asked before and behind that would never agree.
    """
    member: bytes
    """The primary, as ``node.incarnation``."""


def primaryship_of(answers: Sequence[Any]) -> Primaryship | None:
    """
    Return whose answers to :data:`PROCESS` and ``HMGET …:primary view node`` these are.

    None: the server is no primary, or not open yet.
    """
    info, (view, member) = answers
    found = _PRIMARY.search(info)
    if found is None or not view or not member:
        return None
    return Primaryship(int(view), found[1].decode(), member)


@functools.lru_cache(maxsize=16)
def others_of(in_sync: bytes, own: bytes) -> frozenset[bytes] | None:
    """Return the members of the set beside the primary; None: the primary itself is not in it."""
    members = frozenset(in_sync.split())
    return members - {own} if own in members else None


class GroupReading(NamedTuple):
    """Holds the result of one confirmation."""

    complete: bool
    """Every member of the set has the mark, and all writes before it."""
    missing: Sequence[bytes] = ()
    """The members that do not have it."""
    waits_for: int = 1
    """The number of replicas that the next WAIT waits for."""
    other: bool = False
    """The server was of another primaryship than the known one."""
    too_few: bool = False
    """The set is empty: fewer than a majority of the stores have every write."""


def read_group(answers: Sequence[Any], known: Primaryship) -> GroupReading:
    """Read the answers of a confirmation; ``known`` is the known primary."""
    _, (role, offset, *_), _, (role_then, _, *replicas), (view, in_sync, member) = answers
    if role != b"master" or role_then != b"master":
        return GroupReading(False, other=True)
    if view is None or int(view) != known.view or member != known.member:
        return GroupReading(False, other=True)
    others = others_of(in_sync or b"", known.member)
    if others is None:
        return GroupReading(False, too_few=True)
    acks: dict[bytes, int] = {}
    for replica, _, ack in replicas[0]:
        acks[replica] = max(int(ack), acks.get(replica, 0))
    missing = [one for one in others if acks.get(one, -1) < offset]
    # Learners that keep up are counted by WAIT, which would return before the last of the set.
    beside = 0
    if len(acks) > len(others):
        beside = sum(1 for one, ack in acks.items() if ack >= offset and one not in others)
    return GroupReading(not missing, missing, len(others) + beside)


def node_of(member: bytes) -> str:
    """Return the name of a member's node, for messages."""
    return member.decode("utf-8", "replace").rpartition(".")[0]
