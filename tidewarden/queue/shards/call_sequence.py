"""
Numbers the calls of one shard, so that one whose outcome is unknown is sent again and runs once.

As the clients of a Raft log do (Ongaro, Consensus: Bridging Theory and Practice, 2014, 6.3), a node
gives each call a serial number. The shard's record has the latest number that ran, of each node, so
it stands or falls with what the call wrote. A call that is sent again runs if it had not, and is
refused with ``APPLIED`` otherwise. A call whose predecessor did not run is refused with ``GAP``.
See ``sequence`` in ``lua/shared/record.lua``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tidewarden.errors import Error, NoQuorum
from tidewarden.store.connection import AGAIN_S, PATIENCE_S
from tidewarden.store.durability.held_answers import Moved
from tidewarden.store.reply_errors import refused_for_now, unanswered

OVER = -1.0
""":attr:`SequencedCall.until` of a call that is sent no more."""
NOT_REACHED = "calls before it are not known to have run; nothing was done"
NUMBERED = frozenset(("queue.put", "queue.ack", "queue.end", "queue.batch"))
REPEATABLE = frozenset(
    ("queue.touch", "queue.wait", "queue.leases", "queue.lock_acquire", "queue.lock_renew")
)
"""The scripts that may run twice and need no number: a lock is acquired under a key."""
PUT_REFUSED, END_REFUSED = 1, 2
"""The bits by which ``APPLIED`` tells of the former answers: some put, or some end, was refused."""


class SequencedCall(Protocol):
    """Shows a call of a shard to its sequence."""

    name: str
    serial: tuple[int, int] | None
    """The call's stream and number; None: it has none yet."""
    order: int
    """The call's place among the shard's calls; 0: it was not sent."""
    until: float
    """Until when the call is sent again (the loop's time); 0: it has not failed."""
    doubt: BaseException | None
    """Why its outcome is unknown; None: it is known not to have run."""
    parts: Sequence[Any] | None
    """The answers of a call that ran, although its writes may have been lost since."""

    def leases(self, parts: Sequence[Any], /) -> Iterator[tuple[str, int]]:
        """List ids and lease numbers of the tasks taken."""

    def ends(self) -> Iterator[tuple[str, int]]:
        """List ids and numbers of the leases that the call is to end."""


class Sender(Protocol):
    """Sends the calls: the shard."""

    @property
    def idle(self) -> bool:
        """Return whether no batch is under way."""

    @property
    def retired(self) -> bool:
        """Return whether the queue was resharded since."""

    def send_again(self, call: Any) -> None:
        """Send a call that was sent before."""

    def give_up(self, call: Any, error: BaseException) -> None:
        """Note that a call is not sent again."""

    def send_next(self) -> None:
        """Send the items that have waited."""


class CallSequence:
    """
    Keeps the calls of one shard that are under way, and those that are to be sent again.

    Calls are sent again once no other is under way, in their order, one after the other. No new
    call is batched meanwhile. A call that is sent all the same finds a gap, and then stands behind
    them.
    """

    __slots__ = ("_again", "_latest", "_number", "_order", "_pause", "_shard", "_stream", "_under")

    def __init__(self, shard: Sender) -> None:
        self._shard = shard
        self._stream = 0  # 0: the next call begins one
        self._latest = 0  # the record's stream, as far as a refusal has told it
        self._number = 0
        self._order = 0
        self._under: dict[SequencedCall, None] = {}
        self._again: list[SequencedCall] = []
        self._pause: asyncio.TimerHandle | None = None

    @property
    def repeats(self) -> bool:
        """Return whether calls are to be sent again."""
        return bool(self._again)

    def leases(self) -> Iterator[tuple[str, int]]:
        """List ids and numbers of leases that are to end, or may be handed out yet."""
        for call in self._under:
            yield from call.ends()
            if call.parts is not None:
                yield from call.leases(call.parts)

    def begun(self, call: SequencedCall) -> str:
        """Return the argument behind the caller's name for ``call``, which is sent now."""
        self._under[call] = None
        if not call.order:
            self._order += 1
            call.order = self._order
        if call.name not in NUMBERED:
            return ""
        if call.serial is None:
            if not self._stream:
                self._stream, self._number = STREAMS.begin(self._latest), 0
            self._number += 1
            call.serial = self._stream, self._number
        return f"#{call.serial[0]}.{call.serial[1]}"

    def ended(self, call: SequencedCall) -> None:
        """Note that the caller of ``call`` knows its outcome."""
        self._under.pop(call, None)
        if self._again:
            self.go_on()

    def go_on(self) -> None:
        """Send the first call again, if no other is under way."""
        if not self._again or self._pause is not None:
            return
        if len(self._again) < len(self._under) or not self._shard.idle:
            return
        self._give_up_late()
        if not self._again:
            self._shard.send_next()
            return
        self._again.sort(key=lambda call: call.order)
        first = self._again.pop(0)
        if first.serial is None and first.name in NUMBERED:
            # It did not run, so no call behind it did. Only now, when no call is under way, may
            # another stream begin: a call that is sent before finds a gap, and keeps its place.
            self._stream = 0
            for call in self._again:
                call.serial = call.doubt = call.parts = None
        self._shard.send_again(first)

    def _give_up_late(self) -> None:
        """Give up the calls whose time has passed while others were sent before them."""
        now = asyncio.get_running_loop().time()
        for call in [one for one in self._again if one.until <= now]:
            self._again.remove(call)
            self._under.pop(call, None)
            self._shard.give_up(call, call.doubt or NoQuorum(NOT_REACHED))
        if not self._under:
            self._stream = 0

    def take_back(
        self, call: SequencedCall, error: BaseException, parts: Sequence[Any] | None = None
    ) -> BaseException | None:
        """
        Take ``call`` back, to send it again; else return the error for its caller.

        ``parts``: its answers, if it ran and its writes may be lost.
        """
        now = asyncio.get_running_loop().time()
        if not call.order:
            return error
        call.until = call.until or now + PATIENCE_S
        again = now < call.until
        if is_gap(error):
            again = self._gap(call, error) and again
        elif unanswered(error) or isinstance(error, Moved):
            again = again and call.name in NUMBERED | REPEATABLE
            call.doubt, call.parts = error, parts  # where it runs next, its answers may be others
        elif not self._refused_for_now(error):
            again = False  # it has used no number: what was sent behind it finds a gap
        # A retired shard cannot say any more whether a call ran; one that did not run is repeated
        # in the new layout.
        if again and not (self._shard.retired and call.doubt is not None):
            self._again.append(call)
            return None
        self._under.pop(call, None)
        if not self._under:
            self._stream = 0
        return call.doubt or (NoQuorum(NOT_REACHED) if is_gap(error) else error)

    def _gap(self, call: SequencedCall, error: BaseException) -> bool:
        """Note that ``call`` did not run now; return whether that means that it never did."""
        self._latest = int(str(error).split()[1])
        stream = call.serial[0] if call.serial else 0
        if call.doubt is not None and self._latest != stream:
            return False
        call.serial = call.doubt = call.parts = None
        return True

    def _refused_for_now(self, error: BaseException) -> bool:
        """
        Return whether the server did nothing for now; if so, wait before a call is sent again.
        """
        now = refused_for_now(error)
        if now and self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(AGAIN_S, self._pause_over)
        return now

    def _pause_over(self) -> None:
        self._pause = None
        self.go_on()


class Streams:
    """Numbers the streams of this process."""

    def __init__(self) -> None:
        self._latest = 0

    def begin(self, above: int) -> int:
        """Return a number above ``above`` and above each that any process of this node has used."""
        self._latest = max(self._latest + 1, above + 1, time.time_ns() // 1000)
        return self._latest


STREAMS = Streams()


def is_gap(error: BaseException) -> bool:
    """Return whether a call was refused because the one before it had not run."""
    return type(error) is Error and str(error).startswith("GAP ")


def applied(error: BaseException) -> int | None:
    """Return the bits by which a refusal tells of a call's former answers; None: it had not run."""
    word, _, rest = str(error).partition(" ")
    return int(rest) if word == "APPLIED" and type(error) is Error else None
