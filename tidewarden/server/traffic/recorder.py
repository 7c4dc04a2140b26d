"""
Notes each request that was answered, for a fraction of a microsecond.

A note goes into a small dictionary. Once a second, or when that is full, it is emptied into tables
of bounded size, so that a stranger with a million names costs time and no memory.
"""

from __future__ import annotations

import re

from tidewarden.clock import Clock

from .tables import Tables
from .tap import Request, Taps

PENDING_MAX = 2048
"""
Three verbs of some 680 queues. What has more in a second pays for the tables with each note,
twenty times as much; and so many notes hold up the loop for a few hundredths of a second.
"""
NAME_MAX = 200
CUT = "…"
NO_NAME = "(no name)"
"""
The word shown instead of a text that cannot be a name: it may be a token, or a grant with its
secrets.
"""
UNKNOWN = NO_NAME.encode()
OF_ACCOUNTS = frozenset(
    f"T.{word}"
    for word in ("PUT", "CONNECT", "DEVICE", "GET", "PEEK", "ANSWERS", "REFRESH", "DELETE")
)
"""The beginnings of verbs that are about a ``provider/account``."""
_PROVIDER = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NAME = re.compile(r"[^\s\x00-\x1f\x7f\"{}<>]+")

Sums = list[float]  # requests, bytes in, bytes out, errors, seconds


class Recorder:
    """
    Counts the requests that one process answers.

    Args:
        clock: for the time in what taps show.

    ``taps`` are shown each request, while there are any.
    """

    __slots__ = ("_pending", "_tables", "taps")

    def __init__(self, clock: Clock) -> None:
        self._pending: dict[tuple[str | None, str, bytes, str], Sums] = {}
        self._tables = Tables()
        self.taps = Taps(clock)

    def note(
        self,
        user: str | None,
        verb: str,
        name: bytes,
        peer: str,
        bytes_in: int,
        bytes_out: int,
        failed: str,
        seconds: float,
    ) -> None:
        """
        Count a request that was answered.

        Args:
            user: who asked; None: nobody in particular.
            verb: as it is called over RESP.
            name: of the queue, provider, lock or schedule; empty: of none. It may be anything that
                a peer has sent, and is cut.
            peer: the host that it came from.
            bytes_in: of the request.
            bytes_out: of the answer.
            failed: the word of the error that was answered, or empty.
            seconds: between the two.
        """
        if len(name) > NAME_MAX:
            name = name[:NAME_MAX] + CUT.encode()
        if verb[:2] == "T.":
            name, account, _ = name.partition(b"/")
            if name and not account and verb in OF_ACCOUNTS:
                name = UNKNOWN  # a token alone may look like a provider's name
        key = (user, verb, name, peer)
        sums = self._pending.get(key)
        if sums is None:
            sums = self._begin(key)
        sums[0] += 1
        sums[1] += bytes_in
        sums[2] += bytes_out
        if failed:
            sums[3] += 1
        sums[4] += seconds
        if self.taps.open:
            shown = shown_name(verb, name)
            self.taps.show(
                Request(user or "", verb, shown, peer, bytes_in, bytes_out, failed, seconds)
            )

    def _begin(self, key: tuple[str | None, str, bytes, str]) -> Sums:
        if len(self._pending) >= PENDING_MAX:
            self._empty()
        sums = self._pending[key] = [0, 0, 0, 0, 0.0]
        return sums

    def _empty(self) -> None:
        pending, self._pending = self._pending, {}
        tables = self._tables
        for (user, verb, name, peer), (requests, got, sent, errors, seconds) in pending.items():
            sums = (int(requests), int(got), int(sent), int(errors), round(seconds * 1e6))
            tables.add(user or "", verb, shown_name(verb, name), peer, sums)

    def harvest(self) -> Tables:
        """Hand over the counts since the last time."""
        self._empty()
        tables, self._tables = self._tables, Tables()
        return tables


def shown_name(verb: str, name: bytes) -> str:
    """Return the name in a request, as it may be shown."""
    if not name:
        return ""
    text = name.decode("utf-8", "replace")
    pattern = _PROVIDER if verb.startswith("T.") else _NAME
    return text if pattern.fullmatch(text) else NO_NAME
