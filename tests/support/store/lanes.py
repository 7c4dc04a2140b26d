"""A group commit by the in-sync set over connections whose answers a test gives by hand."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from tidewarden.errors import StoreDown
from tidewarden.store import StoreConnection
from tidewarden.store.durability.set_commit import SetCommit
from tidewarden.store.reply_sink import ReplySink, fail_reply

MEMBER = b"n0.aa"
ALL = b"n0.aa n1.bb n2.cc"
ACKS = {b"n1.bb": 100, b"n2.cc": 100}


class HandLink:
    """
    A connection (as far as a :class:`SetCommit` asks of one) that keeps what is sent.

    ``view`` and ``run_id`` are those of the server behind it; who it is, it says at once.
    """

    def __init__(self) -> None:
        self.up, self.why, self.fault = True, "", ""
        self.calls = self.reconnects = 1
        self.view, self.run_id = 1, "r1"
        self.sent: list[bytes] = []
        self.waiting: deque[ReplySink] = deque()

    def send(self, packed: bytes, receiver: ReplySink, _key: Any = "", /) -> None:
        if b"INFO" in packed and b"FCALL" not in packed:
            receiver.set_result(f"run_id:{self.run_id}\r\nrole:master\r\n".encode())
        elif b"HMGET" in packed and b"FCALL" not in packed:
            receiver.set_result([str(self.view).encode(), MEMBER])
        else:
            self.send_together(packed, receiver, 1)

    def send_together(self, packed: bytes, receiver: ReplySink, replies: int) -> None:
        self.sent.append(packed)
        self.waiting.extend([receiver] * replies)

    def answer(self, *answers: Any) -> None:
        """Answer what was sent first; an exception is an error reply."""
        for answer in answers:
            receiver = self.waiting.popleft()
            if receiver.done():
                continue
            if isinstance(answer, Exception):
                receiver.set_exception(answer)
            else:
                receiver.set_result(answer)

    def confirm(
        self,
        acks: dict[bytes, int] | None = None,
        *,
        in_sync: bytes = ALL,
        offset: int = 100,
        view: int | None = None,
    ) -> None:
        """Answer a confirmation: all members have the offset, unless told otherwise."""
        rows = [[one, b"1", str(ack).encode()] for one, ack in (acks or ACKS).items()]
        seen = [str(self.view if view is None else view).encode(), in_sync, MEMBER]
        self.answer([1, 1, in_sync], [b"master", offset, []], 2, [b"master", offset, rows], seen)

    def lose(self) -> None:
        """The connection is lost, and made anew at once."""
        waiting, self.waiting = self.waiting, deque()
        self.reconnects += 1
        for receiver in waiting:
            fail_reply(receiver, StoreDown("the connection was lost"))

    async def stop(self) -> None:
        """End it."""


class Lanes:
    """A commit, its connections, and the calls that were sent by hand."""

    def __init__(self, lanes: int = 3, limit_ms: int = 60_000) -> None:
        self.data = HandLink()
        self.links = [HandLink() for _ in range(lanes)]
        self.commit = SetCommit(
            cast(StoreConnection, self.data),
            [cast(StoreConnection, link) for link in self.links],
            "tw",
            limit_ms,
        )

    @property
    def under_way(self) -> list[HandLink]:
        """The lanes that owe answers."""
        return [link for link in self.links if link.waiting]


class Answer:
    """A held answer that remembers what became of it."""

    def __init__(self) -> None:
        self.end = ""

    def confirmed(self) -> None:
        self.end = "confirmed"

    def missed(self, error: Exception, /) -> None:
        self.end = str(error)


class Call:
    """A call that is answered once, and whose answer is held."""

    def __init__(self, lanes: Lanes, packed: bytes = b"WORK") -> None:
        self.answer = Answer()
        self.got: Any = None
        flight = lanes.commit.board()
        assert flight is not None
        self.flight = flight
        self.flight.send(packed, self)

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self.got = result
        self.flight.add(self.flight.ground, self.answer)

    def set_exception(self, exception: BaseException, /) -> None:
        self.got = exception
