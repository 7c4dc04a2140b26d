"""
Answers of a queue that wants more than the primary's word.

What a script's reply says of its shard counts at once; its answers are handed out when they are
firm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from tidewarden.errors import NoQuorum
from tidewarden.store.durability.durability import AnyCommit, Unavailable
from tidewarden.store.reply_sink import ReplySink


class Unconfirmed(NoQuorum):
    """An answer that missed its durability. ``item``: what it was."""

    def __init__(self, message: str, item: Any) -> None:
        super().__init__(message)
        self.item = item


class Landing(ReplySink, Protocol):
    """Who gets a script's reply, at once or in two steps."""

    def heard(self, reply: Any, /) -> Any:
        """What the reply says of the shard; returns the answers."""

    def leases(self, answers: Any, /) -> Iterable[tuple[str, int]]:
        """Ids and lease numbers of the tasks that were taken."""

    def deliver(self, answers: Any, /) -> None:
        """The answers may be relied on."""

    def unconfirmed(self, answers: Any, error: NoQuorum, /) -> None:
        """They may not."""


class PendingReply:
    """
    Between a script's reply and ``landing``; then between the group commit and the answers, among
    ``waiting``.
    """

    __slots__ = (
        "_answers",
        "_commit",
        "_ground",
        "_landing",
        "_waiting",
        "done",
        "sent_by",
        "set_exception",
    )

    def __init__(
        self, commit: AnyCommit, landing: Landing, waiting: dict[PendingReply, None]
    ) -> None:
        self._commit: Any = commit
        self._waiting = waiting
        self._ground = commit.ground()
        self.sent_by = self._ground.sent_by
        self._landing = landing
        self._answers: Any = None
        self.done = landing.done
        self.set_exception = landing.set_exception

    def set_result(self, reply: Any, /) -> None:
        """The script has run at the primary."""
        self._answers = self._landing.heard(reply)
        self._waiting[self] = None
        self._commit.add(self._ground, _Confirmation(self))

    def leases(self) -> Iterable[tuple[str, int]]:
        """Of what it holds."""
        return self._landing.leases(self._answers)

    def confirmed(self) -> None:
        try:
            self._landing.deliver(self._answers)
        finally:
            del self._waiting[self]  # not before: who takes what it holds knows of it then

    def missed(self, error: BaseException) -> None:
        assert isinstance(error, NoQuorum)
        try:
            self._landing.unconfirmed(self._answers, error)
        finally:
            del self._waiting[self]


class DurabilityGate:
    """
    What a shard's answers pass through, by the durability in the header of the script.

    ``commit`` is of the queue; ``system`` of what must not be lost, whatever the queue is in whose
    shard it lies.
    """

    __slots__ = ("_waiting", "commit", "system")

    def __init__(self) -> None:
        self._waiting: dict[PendingReply, None] = {}
        self.commit: AnyCommit | Unavailable | None = None
        self.system: AnyCommit | Unavailable | None = None

    def through(self, durability: str, landing: Landing) -> ReplySink:
        """
        The receiver of the reply of a script of that durability, for ``landing``. Call it just
        before the script is sent.

        Raises: NoQuorum: the durability cannot be had here at all; nothing is to be sent.
        """
        if durability == "none":
            return landing
        commit = self.system if durability == "system" else self.commit
        if commit is None:
            return landing
        if isinstance(commit, Unavailable):
            commit = commit.again()
            if isinstance(commit, Unavailable):
                raise NoQuorum(commit.why)
            setattr(self, "system" if durability == "system" else "commit", commit)
            if commit is None:
                return landing
        return PendingReply(commit, landing, self._waiting)

    def leases(self) -> Iterator[tuple[str, int]]:
        """
        Ids and lease numbers of tasks that were taken, in answers that wait for their group: whose
        they are is known here alone.
        """
        for held in self._waiting:
            yield from held.leases()


class _Confirmation:
    """What the group commit tells."""

    __slots__ = ("_held",)

    def __init__(self, held: PendingReply) -> None:
        self._held = held

    def done(self) -> bool:
        return False

    def set_result(self, _: None, /) -> None:
        self._held.confirmed()

    def set_exception(self, error: BaseException, /) -> None:
        self._held.missed(error)
