"""Asks which server is behind a connection, before the scripts whose answers count."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tidewarden.store.connection import StoreConnection, pack

MOVED = "another server has taken over meanwhile, or it was started anew"
INFO = pack(("INFO", "replication"))
_IDENTITY = re.compile(rb"role:master\r\n(?:.*\r\n)*?master_replid:(\w+)")
Name = TypeVar("Name")


def identity_of(info: bytes) -> str:
    """Return the replication id of a primary by its INFO; empty: the server is no primary."""
    found = _IDENTITY.search(info)
    return found[1].decode() if found else ""


class ServerIdentity(Generic[Name]):
    """
    Receives the identity of the server that runs the scripts of one connection.

    It is asked for before them on the same connection, by ``questions`` commands; ``read`` makes it
    of the answers, None: the server is no primary.

    ``connects``: which of the link's connections it was, 0 until it is known.
    """

    __slots__ = ("_answers", "_link", "_questions", "_read", "connects", "identity", "lost", "why")
    sent_by: ClassVar[None] = (
        # there is only one link: see :class:`tidewarden.store.durability.cluster_commit.Placed`
        None
    )

    def __init__(
        self, link: StoreConnection, questions: int, read: Callable[[Sequence[Any]], Name | None]
    ) -> None:
        self._link = link
        self._questions = questions
        self._read = read
        self._answers: list[Any] = []
        self.identity: Name | None = None
        self.connects = 0
        self.lost = False
        self.why = MOVED  # when it does not stand

    def done(self) -> bool:
        return self.lost

    def set_result(self, answer: Any, /) -> None:
        self._answers.append(answer)
        if len(self._answers) == self._questions:
            self.identity = self._read(self._answers)
            self.connects = self._link.reconnects
            self.lost = self.identity is None

    def set_exception(self, error: BaseException, /) -> None:
        self.lost = True
        self.why = str(error)

    @property
    def stands(self) -> bool:
        """Return whether an answer that was read just now on the link came from that server."""
        return not self.lost and self.connects == self._link.reconnects


class ServerQuestion(Generic[Name]):
    """
    Asks on ``link`` who the server is, once for each of the link's connections.

    ``questions`` are packed commands; ``read``: see :class:`ServerIdentity`.
    """

    def __init__(
        self,
        link: StoreConnection,
        questions: Sequence[bytes],
        read: Callable[[Sequence[Any]], Name | None],
    ) -> None:
        self._link = link
        self._questions = questions
        self._read = read
        self._latest: ServerIdentity[Name] | None = None

    def asked(self) -> ServerIdentity[Name]:
        """
        Return the identity of the server that runs the scripts sent from now on.

        Call it before sending them, in the same turn of the loop.
        """
        latest = self._latest
        if (
            latest is None
            or latest.lost
            or (latest.connects and not (self._link.up and latest.stands))
        ):
            latest = self._latest = ServerIdentity(self._link, len(self._questions), self._read)
            for question in self._questions:
                self._link.send(question, latest)
        return latest

    def forget(self, identity: Name) -> None:
        """Let the next sender ask anew, if this is the identity that was answered last."""
        if self._latest is not None and self._latest.identity == identity:
            self._latest = None
