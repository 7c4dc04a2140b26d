"""
Decides which embedded store takes the writes, and which stores have every acknowledged write.

These are the facts that Raft carries about replicated embedded stores, and the commands that change
them. Plain decisions, without socket, thread or clock: the same on every member, and again at each
replay of the log. A command whose condition fails changes nothing and returns the same object.

The rules, in the words of docs/replication.md: the elected store comes from the in-sync set; an
election keeps the set, less the former primary; the set never shrinks below a majority of the
members that vote; a member is a node *and* the incarnation of its store.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

VIEW_MAX = 2**17
"""Views stay below this: lease numbers begin with the view, and doubles have to hold them."""
LOSSES = ("", "possible", "likely")
WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What an incarnation may be: it stands in texts, after a point and before a blank."""


class StoreMember(NamedTuple):
    """Names one start of one node's store."""

    node: str
    incarnation: str
    """A random word, drawn anew at each start of the store."""


def majority_of(voters: Collection[str]) -> int:
    """Return how many of ``voters`` are a majority."""
    return len(voters) // 2 + 1


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Says who is primary and who is in sync, as the members have agreed."""

    view: int = 0
    """Number of the primaryship; 0: none was ever founded. Only grows."""
    primary: str = ""
    """Node whose store takes the writes."""
    incarnation: str = ""
    """Which start of that store."""
    in_sync: frozenset[StoreMember] = frozenset()
    """The stores that have every acknowledged write; the primary is one of them."""
    version: int = 0
    """Grows by one with every command that was taken."""
    loss: str = ""
    """
    ``possible`` or ``likely``: a last resort chose the primary, and acknowledged writes may be
    missing, until somebody confirms that they know; empty: nothing is.
    """
    began: int = 0
    """
    The view in which the primary was last founded, or chosen by a last resort: a store with data of
    a lower one may have what the primary never had.
    """

    @property
    def primary_member(self) -> StoreMember:
        """Return the primary as a member of the set."""
        return StoreMember(self.primary, self.incarnation)

    @property
    def nodes_in_sync(self) -> frozenset[str]:
        """Return the nodes whose stores are in the set."""
        return frozenset(member.node for member in self.in_sync)

    def is_open(self, voters: frozenset[str]) -> bool:
        """Return whether the set has a majority of ``voters``; without one nothing is confirmed."""
        return len(self.nodes_in_sync & voters) >= majority_of(voters)

    # Commands.

    def found(
        self, voters: frozenset[str], node: str, incarnation: str, seen: int, loss: str = ""
    ) -> StoreFacts:
        """
        Make the first primary, whose store is alone in the set.

        ``seen``: the greatest view in data that were heard of. ``loss``: what may be missing, one
        of :data:`LOSSES`, where an operator did not wait for all stores.
        """
        view = seen + 1
        if self.view or not _can_lead(node, incarnation, voters):
            return self
        if loss not in LOSSES or not 0 < view < VIEW_MAX:
            return self
        only = frozenset({StoreMember(node, incarnation)})
        return StoreFacts(view, node, incarnation, only, self.version + 1, loss, began=view)

    def elect(
        self,
        voters: frozenset[str],
        view: int,
        node: str,
        old: str,
        incarnation: str,
        drop: str,
        seen: int,
    ) -> StoreFacts:
        """
        Make ``node`` primary: its store ``old`` is in the set, and ``incarnation`` continues it.

        ``incarnation`` is ``old``, or a later start that has lost nothing. ``drop``: a node that
        leaves the set if a majority remains; empty: none. ``seen``: the view in the store's data.
        """
        member = StoreMember(node, old)
        next_view = max(self.view, seen) + 1
        if view != self.view or member not in self.in_sync:
            return self
        if not _can_lead(node, incarnation, voters) or not 0 < next_view < VIEW_MAX:
            return self
        winner = StoreMember(node, incarnation)
        kept = frozenset(one for one in self.in_sync if one.node != node) | {winner}
        without = frozenset(one for one in kept if one.node != drop)
        if drop and drop != node and _votes(without, voters) >= majority_of(voters):
            kept = without
        return replace(
            self,
            view=next_view,
            primary=node,
            incarnation=incarnation,
            in_sync=kept,
            version=self.version + 1,
        )

    def change(
        self,
        voters: frozenset[str],
        view: int,
        version: int,
        in_sync: frozenset[StoreMember],
    ) -> StoreFacts:
        """
        Change the set, as the primary's node asks, which knows ``view`` and ``version``.

        The set may be below a majority of ``voters`` only if it was, and then only grow.
        """
        if view != self.view or version != self.version or self.primary_member not in in_sync:
            return self
        nodes = {member.node for member in in_sync}
        if len(nodes) != len(in_sync):
            return self
        if not all(WORD.fullmatch(member.incarnation) for member in in_sync):
            return self
        had, has = _votes(self.in_sync, voters), _votes(in_sync, voters)
        grows = had < majority_of(voters) and has >= had and self.nodes_in_sync <= nodes
        if has < majority_of(voters) and not grows:
            return self
        return replace(self, in_sync=in_sync, version=version + 1)

    def recover(
        self,
        voters: frozenset[str],
        view: int,
        version: int,
        node: str,
        incarnation: str,
        seen: int,
        loss: str,
    ) -> StoreFacts:
        """
        Make ``node`` primary although its store is in no set: the last resort.

        Its store is alone in the set. ``loss``: what may be missing, one of :data:`LOSSES`; a
        greater one that stands already stays.
        """
        next_view = max(self.view, seen) + 1
        if view != self.view or version != self.version:
            return self
        if not _can_lead(node, incarnation, voters):
            return self
        if loss not in LOSSES or not 0 < next_view < VIEW_MAX:
            return self
        only = frozenset({StoreMember(node, incarnation)})
        worst = max(self.loss, loss, key=LOSSES.index)
        return StoreFacts(
            next_view, node, incarnation, only, self.version + 1, worst, began=next_view
        )

    def confirm(self, version: int) -> StoreFacts:
        """Note that an operator knows of the loss."""
        if version != self.version or not self.loss:
            return self
        return replace(self, loss="", version=version + 1)

    def membership_fault(self, leaver: str, voters: frozenset[str]) -> str:
        """
        Return why the members must not become ``voters``, ``leaver`` leaving; empty: they may.

        A majority of those that vote then has to have a whole copy, so that the store that is
        elected next has one. A leaver's own copy may be among those that go. Without replicated
        stores (view 0) everything may.
        """
        if not self.view:
            return ""
        if leaver and leaver == self.primary:
            way = "tidewarden cluster switchover"
            return f"{leaver}'s store is the primary, which is handed over first: {way}"
        whole = self.nodes_in_sync & voters
        if len(whole) < majority_of(voters):
            names = ", ".join(sorted(whole)) or "none"
            return (
                f"of the {len(voters)} that would vote then, {majority_of(voters)} must have a"
                f" whole copy of the data, and {len(whole)} have ({names}); wait until the others"
                " have, as tidewarden status shows"
            )
        return ""

    # As an entry of the log, a message or a script has it.

    def plain(self) -> tuple[Any, ...]:
        """Return plain values, for :func:`read_facts`."""
        members = tuple(sorted(tuple(member) for member in self.in_sync))
        head = self.view, self.primary, self.incarnation, members
        return *head, self.version, self.loss, self.began


def read_facts(value: object) -> StoreFacts:
    """Return what :meth:`StoreFacts.plain` made; for anything else none. Never raises."""
    kinds = [int, str, str, tuple, int, str, int]
    if not isinstance(value, tuple) or [type(item) for item in value] != kinds:
        return StoreFacts()
    view, primary, incarnation, rows, version, loss, began = value
    if not all(
        isinstance(row, tuple) and [type(item) for item in row] == [str, str] for row in rows
    ):
        return StoreFacts()
    members = frozenset(StoreMember(*row) for row in rows)
    return StoreFacts(view, primary, incarnation, members, version, loss, began)


def _can_lead(node: str, incarnation: str, voters: frozenset[str]) -> bool:
    return node in voters and WORD.fullmatch(incarnation) is not None


def _votes(members: frozenset[StoreMember], voters: frozenset[str]) -> int:
    return len({member.node for member in members} & voters)


def set_text(members: Collection[StoreMember]) -> str:
    """Return a set as the store's data has it: ``node.incarnation`` separated by blanks."""
    return " ".join(sorted(f"{member.node}.{member.incarnation}" for member in members))


def read_set(text: str) -> frozenset[StoreMember]:
    """Return what :func:`set_text` made; a word without a point names no member and is left out."""
    parts = (word.rpartition(".") for word in text.split())
    return frozenset(StoreMember(node, word) for node, point, word in parts if node and point)


def applied(facts: StoreFacts, voters: frozenset[str], command: object) -> StoreFacts:
    """
    Return the facts after one command of the log: its name, then its arguments.

    Never raises; what is no command changes nothing.
    """
    if not isinstance(command, tuple) or not command or not isinstance(command[0], str):
        return facts
    name, *values = command
    kinds = _KINDS.get(name)
    if kinds is None or tuple(type(value) for value in values) not in kinds:
        return facts
    if name == "found":
        return facts.found(voters, *values)
    if name == "elect":
        return facts.elect(voters, *values)
    if name == "change":
        view, version, text = values
        in_sync = read_set(text)
        # a word that names nobody must not be a member less
        whole = len(in_sync) == len(text.split())
        return facts.change(voters, view, version, in_sync) if whole else facts
    if name == "recover":
        return facts.recover(voters, *values)
    if name == "confirm":
        return facts.confirm(*values)
    return facts  # "look": a barrier, which reads


_KINDS: dict[str, tuple[tuple[type, ...], ...]] = {
    "found": ((str, str, int), (str, str, int, str)),
    "elect": ((int, str, str, str, str, int),),
    "change": ((int, int, str),),
    "recover": ((int, int, str, str, int, str),),
    "confirm": ((int,),),
    "look": ((),),
}
"""The commands of the log: the types that their arguments may have, after the name."""
