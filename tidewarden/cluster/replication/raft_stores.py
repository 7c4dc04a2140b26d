"""Declares the calls that replicated stores need of a node's member of Raft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidewarden.raft.state import MemberView
from tidewarden.raft.store_facts import StoreFacts


class RaftStores(Protocol):
    """
    Knows the facts about the stores, and the reports of all nodes; changes the facts.

    See :class:`tidewarden.raft.member.RaftMember`.
    """

    name: str
    on_stores: Callable[[], None]
    """Called in the loop when facts, voters, ended members or any report's content changed."""

    def is_leader(self) -> bool:
        """Return whether this node believes that it leads Raft."""

    def leader(self) -> str | None:
        """Return the member that leads; None when this node knows of none."""

    def seats(self) -> Mapping[str, MemberView]:
        """Return every member as this one knows it, by name."""

    def voters(self) -> frozenset[str]:
        """Return the members that vote."""

    def ended(self) -> frozenset[str]:
        """Return the members whose processes are known to have ended."""

    def quorum_fault(self) -> str:
        """Word for people which members a majority lacks; empty: a majority can be heard."""

    def store_facts(self) -> StoreFacts:
        """Return the facts as applied here, which may be old."""

    async def look_stores(self) -> StoreFacts:
        """
        Return the facts, no older than this call.

        Raises: NoLeader, Timeout: no member could say.
        """

    async def store_command(self, command: tuple[Any, ...]) -> StoreFacts:
        """
        Propose a command; return the facts once it was applied here, taken or not.

        Raises: NoLeader, Timeout: it may be applied yet, or never.
        """

    def say_store(self, report: tuple[Any, ...], now: bool, stands_s: float) -> None:
        """
        Send this node's report of its own store to all members; ``now``: at once.

        It counts as said anew whenever they hear this node for ``stands_s``, or until the next one.
        """

    def store_reports(self) -> dict[str, tuple[float, tuple[Any, ...]]]:
        """
        Return when each node was heard last (monotonic seconds), and its report; own included.
        """
