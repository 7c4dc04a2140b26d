"""
Shows requests as they are answered, a line each, to those who have asked for it.

A line has no payload and no argument but the name. Each process of a node shows what it answers;
the first one has the readers, and tells the others what to look for.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidewarden.clock import Clock

LINES_MAX = 1000
"""The most lines of one tap that wait to be read; further ones are dropped and counted."""
MS_MAX = 60_000
ONE_IN_MAX = 1_000_000


class TapFilter(msgspec.Struct, frozen=True, array_like=True):
    """
    Chooses the requests that a tap shows.

    Args:
        user: of this user alone; None: of all.
        queue: about this name alone; None: about all.
        one_in: every so many-th of them.
    """

    user: str | None = None
    queue: str | None = None
    one_in: int = 1


class Request(NamedTuple):
    """Describes a request that was answered."""

    user: str
    verb: str
    name: str
    peer: str
    bytes_in: int
    bytes_out: int
    failed: str
    seconds: float


class TapLine(msgspec.Struct, frozen=True):
    """Holds the line that a tap shows of a request."""

    at_ms: int
    user: str
    verb: str
    name: str
    peer: str
    bytes_in: int
    bytes_out: int
    error: str
    """The word of the error that was answered, or empty."""
    us: int
    """Microseconds until it was answered."""


class TapNews(msgspec.Struct, frozen=True, array_like=True):
    """Holds the lines that another process of the node has for a tap."""

    number: int
    lines: list[str]
    matched: int
    dropped: int


@dataclass(slots=True, eq=False)
class Tap:
    """
    Holds the lines of one tap that its reader has not taken yet.

    ``matched``: how many requests were what its filter says; ``dropped``: lines for which there was
    no room. ``notify`` is called when there is a line where there was none.
    """

    number: int
    wanted: TapFilter
    notify: Callable[[], None]
    lines: deque[str] = field(default_factory=deque)
    matched: int = 0
    dropped: int = 0
    passed: int = 0
    """How many requests this process itself has matched, of which every so many-th is shown."""

    def add(self, line: str) -> None:
        """Keep a line for the reader, or count that it was dropped."""
        if len(self.lines) >= LINES_MAX:
            self.dropped += 1
            return
        self.lines.append(line)
        if len(self.lines) == 1:
            self.notify()

    def take(self, most: int = LINES_MAX) -> list[str]:
        """Hand over the lines that wait, ``most`` of them."""
        return [self.lines.popleft() for _ in range(min(most, len(self.lines)))]


class Taps:
    """
    Keeps the taps of one process.

    Args:
        clock: for the time in a line.

    ``spread`` is told which taps there are whenever that changes: further processes show them, too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self.open: dict[int, Tap] = {}
        self.spread: Callable[[Sequence[tuple[int, TapFilter]]], None] = lambda taps: None

    def begin(self, wanted: TapFilter, notify: Callable[[], None]) -> Tap:
        """Open a tap; the doors bound how many there are."""
        tap = Tap(next(self._numbers), wanted, notify)
        self.open[tap.number] = tap
        self.spread(self.shown())
        return tap

    def end(self, tap: Tap) -> None:
        """Close a tap."""
        del self.open[tap.number]
        self.spread(self.shown())

    def shown(self) -> list[tuple[int, TapFilter]]:
        """List the taps that are open, for other processes."""
        return [(tap.number, tap.wanted) for tap in self.open.values()]

    def show(self, request: Request) -> None:
        """Show a request that was answered while taps are open."""
        name, line = request.name, ""
        for tap in self.open.values():
            wanted = tap.wanted
            if wanted.user not in (None, request.user) or wanted.queue not in (None, name):
                continue
            tap.matched += 1
            tap.passed += 1
            if (tap.passed - 1) % wanted.one_in:
                continue
            line = line or self._line(request)
            tap.add(line)

    def _line(self, request: Request) -> str:
        shown = TapLine(
            self._clock.unix_ms(),
            request.user,
            request.verb,
            request.name,
            request.peer,
            request.bytes_in,
            request.bytes_out,
            request.failed,
            round(request.seconds * 1e6),
        )
        return msgspec.json.encode(shown).decode()

    # Between the processes of a node.

    def follow(self, taps: Sequence[tuple[int, TapFilter]], notify: Callable[[], None]) -> None:
        """Show the requests of the taps that the first process names, and no others."""
        known = self.open
        self.open = {
            number: known.get(number) or Tap(number, wanted, notify) for number, wanted in taps
        }

    def news(self, lines_max: int) -> list[TapNews]:
        """Return the news for the first process since the last time, so many lines of each tap."""
        found = []
        for tap in self.open.values():
            if tap.matched or tap.dropped:
                found.append(TapNews(tap.number, tap.take(lines_max), tap.matched, tap.dropped))
                tap.matched = tap.dropped = 0
        return found

    def hear(self, news: TapNews) -> None:
        """Give a tap the lines that another process has shown."""
        tap = self.open.get(news.number)
        if tap is None:
            return
        tap.matched += news.matched
        tap.dropped += news.dropped
        for line in news.lines:
            tap.add(line)
