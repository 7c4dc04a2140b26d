"""Holds answers back until their writes are known to be firm, or their time is over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from tidewarden.errors import NoQuorum

from .server_identity import MOVED, ServerQuestion

Ground = TypeVar("Ground")

DOWN = "this node goes down, or the server is no primary any more"


class Moved(NoQuorum):
    """Says that another server took over since an answer and may have lost its write."""


class HeldAnswer(Protocol):
    """Hears whether the write of an answer that is held back is firm. The methods do not raise."""

    def confirmed(self) -> None:
        """Hand the answer out."""

    def missed(self, error: NoQuorum, /) -> None:
        """Report that it is not known whether the write lasts."""


class HeldFuture:
    """Ends a future once a write is firm."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def confirmed(self) -> None:
        """See :class:`HeldAnswer`."""
        if not self.future.done():
            self.future.set_result(None)

    def missed(self, error: NoQuorum, /) -> None:
        """See :class:`HeldAnswer`; a caller that has gone leaves no warning."""
        if not self.future.done():
            self.future.set_exception(error)
            _ = self.future.exception()


def firm(add: Callable[[Ground, HeldAnswer], None], ground: Ground) -> asyncio.Future[None]:
    """Have ``add`` hold back an answer that was read just now; return a future of its write."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(ground, HeldFuture(future))
    return future


class WaitingCall(NamedTuple):
    """
    Holds an answer that waits for a group.

    ``identity`` is that of the server that gave it; it waits ``until`` then (the loop's time).
    """

    answer: HeldAnswer
    identity: Any
    until: float


Line = deque[WaitingCall]


class HeldAnswers:
    """
    Keeps the answers that wait for groups: those that gather, and a line for each group under way.

    Each line is in the order of its ends, for all wait equally long, and a group that failed keeps
    its answers in front of those that it takes over next. (Where answers join a group under way,
    the order is so but for the time in which a call is answered.)

    ``requirement()`` says in a message what was not had. ``overdue`` is called when an answer's
    time is over, with the time since which it has waited.
    """

    def __init__(
        self,
        lines: int,
        limit_ms: int,
        requirement: Callable[[], str],
        overdue: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._requirement = requirement
        self._overdue = overdue
        self._timer: asyncio.TimerHandle | None = None
        self.gathered: Line = deque()
        self.lines = tuple(Line() for _ in range(lines))
        self.limit_ms = limit_ms
        self.missed = 0
        self.why = ""  # the latest group failed

    def add(self, answer: HeldAnswer, identity: object, line: Line | None = None) -> None:
        """Add an answer to those of the next group, or to the ``line`` of its own."""
        call = WaitingCall(answer, identity, self._loop.time() + self.limit_ms / 1000)
        (self.gathered if line is None else line).append(call)
        if self._timer is None:
            self._timer = self._loop.call_at(call.until, self.expire)

    def take_over(self, line: Line) -> None:
        """Move the gathered answers behind those in ``line``."""
        line.extend(self.gathered)
        self.gathered.clear()

    def miss(self, answer: HeldAnswer, why: str, kind: type[NoQuorum] = NoQuorum) -> None:
        """Report that an answer's write may or may not last."""
        self.missed += 1
        answer.missed(
            kind(
                f"it is not known to be with {self._requirement()} ({why}); it may or may not last"
            )
        )

    def confirm(self, line: Line, identity: object, server: ServerQuestion[Any]) -> None:
        """Confirm the answers of ``line`` that the server of this identity gave; miss the rest."""
        while line:
            one = line.popleft()
            if one.identity == identity:
                one.answer.confirmed()
            else:
                self.miss(one.answer, MOVED, Moved)
                server.forget(one.identity)

    def expire(self) -> None:
        """Fail the answers whose time is over, and look again at the next one's end."""
        if self._timer is not None:
            self._timer.cancel()
        now, ends = self._loop.time(), list[float]()
        for line in (*self.lines, self.gathered):
            while line and line[0].until <= now:
                call = line.popleft()
                self._overdue(call.until - self.limit_ms / 1000)
                self.miss(call.answer, self.why or f"not within {self.limit_ms} ms")
            if line:
                ends.append(line[0].until)
        self._timer = self._loop.call_at(min(ends), self.expire) if ends else None

    def end(self) -> None:
        """Miss every answer, because no group is committed any more."""
        if self._timer is not None:
            self._timer.cancel()
        for line in (*self.lines, self.gathered):
            while line:
                self.miss(line.popleft().answer, DOWN)
