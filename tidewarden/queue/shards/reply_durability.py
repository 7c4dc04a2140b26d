"""
Holds back the answers of a queue that wants more than the primary's word.

The shard's state in a script's reply counts at once. The answers are handed out once they are firm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from tidewarden.errors import NoQuorum
from tidewarden.store.durability.durability import AnyCommit, Unavailable
from tidewarden.store.durability.set_commit import Flight, SetCommit


class Unconfirmed(NoQuorum):
    """Says that an answer missed its durability; ``item`` is that answer."""

    def __init__(self, message: str, item: Any) -> None:
        super().__init__(message)
        self.item = item


class Landing(Protocol):
    """Hands out the answers of a call in two steps: see :class:`PendingReply`."""

    def leases(self, answers: Any, /) -> Iterable[tuple[str, int]]:
        """
        List ids and lease numbers of tasks taken in answers that wait for their group.

        No other part knows whose leases these are.
        """

    def deliver(self, answers: Any, /) -> None:
        """Hand out the answers, which may be relied on."""

    def unconfirmed(self, answers: Any, error: NoQuorum, /) -> None:
        """Report that the answers may not be relied on."""


class PendingReply:
    """
    Holds the answers of a script back until its group commit confirms them.

    Then ``landing`` hands them out. The reply stands among ``waiting`` meanwhile. ``flight`` sends
    the script, where the store's in-sync set confirms it.
    """

    __slots__ = ("_add", "_answers", "_ground", "_landing", "_waiting", "sent_by")

    def __init__(
        self,
        commit: AnyCommit,
        landing: Landing,
        waiting: dict[PendingReply, None],
        flight: Flight | None = None,
    ) -> None:
        self._waiting = waiting
        self._ground: Any
        self._add: Callable[..., None]
        if flight is not None:
            self._ground, self._add = flight.ground, flight.add
        else:
            self._ground, self._add = commit.ground(), commit.add
        self.sent_by = self._ground.sent_by
        self._landing = landing
        self._answers: Any = None

    def hold(self, answers: Any) -> None:
        """Hold the script's answers back; it has run at the primary."""
        self._answers = answers
        self._waiting[self] = None
        self._add(self._ground, self)

    def leases(self) -> Iterable[tuple[str, int]]:
        """Return ids and lease numbers of the tasks in the answers."""
        return self._landing.leases(self._answers)

    def confirmed(self) -> None:
        """See :class:`tidewarden.store.durability.held_answers.HeldAnswer`."""
        try:
            self._landing.deliver(self._answers)
        finally:
            del self._waiting[self]  # not before: now the receivers know of the leases

    def missed(self, error: NoQuorum, /) -> None:
        """See :class:`tidewarden.store.durability.held_answers.HeldAnswer`."""
        try:
            self._landing.unconfirmed(self._answers, error)
        finally:
            del self._waiting[self]


class DurabilityGate:
    """
    Passes a shard's answers on, by the durability in the header of the script.

    ``commit`` is for answers of the queue; ``system`` for answers that must not be lost, whatever
    the durability of the queue in whose shard they are.
    """

    __slots__ = ("_waiting", "commit", "system")

    def __init__(self) -> None:
        self._waiting: dict[PendingReply, None] = {}
        self.commit: AnyCommit | Unavailable | None = None
        self.system: AnyCommit | Unavailable | None = None

    @property
    def flies(self) -> bool:
        """Return whether calls go with their confirmation, if a lane is free."""
        return isinstance(self.commit, SetCommit)

    def flight(self, durability: str) -> Flight | None:
        """Return the flight by which a script of that durability may go; None: there is none."""
        if durability == "none":
            return None
        commit = self.system if durability == "system" else self.commit
        return commit.board() if isinstance(commit, SetCommit) else None

    def pending(
        self, durability: str, landing: Landing, flight: Flight | None = None
    ) -> PendingReply | None:
        """
        Return what holds back the answers of a script of that durability; None: no part has to.

        Call it just before the script is sent, by ``flight`` where there is one. Raises: NoQuorum:
        the durability cannot be had here at all; nothing is to be sent.
        """
        if durability == "none":
            return None
        commit = self.system if durability == "system" else self.commit
        if commit is None:
            return None
        if isinstance(commit, Unavailable):
            commit = commit.again()
            if isinstance(commit, Unavailable):
                raise NoQuorum(commit.why)
            setattr(self, "system" if durability == "system" else "commit", commit)
            if commit is None:
                return None
        return PendingReply(commit, landing, self._waiting, flight)

    def leases(self) -> Iterator[tuple[str, int]]:
        """
        List ids and lease numbers of tasks taken in answers that wait for their group.

        No other part knows whose leases these are.
        """
        for held in self._waiting:
            yield from held.leases()
