"""
Hands the counts of a further process of a node, and the lines of its taps, to the first process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .recorder import Recorder
from .tables import Part, parts_of
from .tap import TapFilter, TapNews

ROWS_A_PACKET = 50
"""The most rows of a table, or lines of a tap, in a packet: even with long names they fit."""
TAP_S = 0.1


class HandingOver:
    """
    Sends in packets, whenever there is room for one; what finds none is sent with the next.

    Args:
        recorder: this process's.
        send: a packet to the first process; False: there is no room for it now.
        call_later: the loop's.
    """

    def __init__(
        self,
        recorder: Recorder,
        send: Callable[[Mapping[str, Any]], bool],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._recorder = recorder
        self._send = send
        self._call_later = call_later
        self._parts: deque[Part] = deque()
        self._news: deque[TapNews] = deque()
        self._due = False

    def hand_over(self) -> None:
        """Send the counts since the last time."""
        if not self._parts:
            tables = self._recorder.harvest()
            if tables.empty():
                return
            for by, table in tables.by.items():
                self._parts += parts_of(by, table, ROWS_A_PACKET)
        while self._parts and self._send({"traffic": self._parts[0]}):
            self._parts.popleft()

    def follow(self, taps: Sequence[tuple[int, TapFilter]]) -> None:
        """Show from now on the requests that these taps want to see."""
        self._recorder.taps.follow(taps, self._expect)

    def _expect(self) -> None:
        if not self._due:
            self._due = True
            self._call_later(TAP_S, self._tell)

    def _tell(self) -> None:
        self._due = False
        taps = self._recorder.taps
        while self._news or (fresh := taps.news(ROWS_A_PACKET)):
            if not self._news:
                self._news += fresh
            if not self._send({"tap": self._news[0]}):
                self._expect()
                return
            self._news.popleft()
