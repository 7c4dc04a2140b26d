"""
Commits by the in-sync set: answers leave once every store that may take over has their writes.

A **flight** is the calls of one turn of the loop and, in the same write behind them, what confirms
them (see :mod:`tidewarden.store.durability.set_reading`): the primary's own data say who has to
confirm. A flight has a connection to itself, a lane, until it has landed, for its WAIT holds up
whatever is sent behind it. Each call is answered before the WAIT; only its answer is held. An
answer of another connection goes along, or in a flight without calls. So does an answer that a
flight did not confirm.

Once nothing was confirmed for as long as an answer may wait, as where the set is too small, calls
that need it are refused before they are sent. Flights without calls go on until one is complete.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tidewarden.clock import SystemClock
from tidewarden.errors import NoQuorum
from tidewarden.histograms import COMMITS, Family
from tidewarden.store.connection import Arg, StoreConnection, pack
from tidewarden.store.reply_errors import NotSent, unanswered
from tidewarden.store.reply_sink import ReplySink, fail_reply

from .held_answers import DOWN, HeldAnswer, HeldAnswers, Line, Moved, firm
from .server_identity import MOVED, ServerIdentity, ServerQuestion
from .set_reading import PROCESS, Primaryship, node_of, primaryship_of, read_group
from .view_library import mark_command, primary_key

log = logging.getLogger("tidewarden.store")

LANES = 4
"""
The number of connections for flights. A call takes a third of its flight's time, so the fourth is
in reserve for calls of other queues.
"""
GROUPS_MAX = 2
"""With so many flights under way, none begins for answers alone: they gather for the next one."""
WAIT_MS = 60
"""Longest WAIT; the set may shrink meanwhile, and the next mark reads the new one."""
RETRY_FIRST_S, RETRY_S = 0.001, 0.05
"""First and longest pause after groups that failed at once, one after the other."""
DOUBLINGS_MAX = 10
"""Of the pause, which is at its longest long before."""
RETRY_LAST_S = 0.25
"""Pause where no answer waits and groups have failed for a while."""
AWHILE_S = 2.0
WARN_S = 60.0
ROLE = pack(("ROLE",))
ANSWERS = 5
"""The number of answers of a confirmation: mark, ROLE, WAIT, ROLE, HMGET."""
WHOM = "every store in sync"
TOO_FEW = "fewer than a majority of the stores have every write"


class SetCommit:
    """
    Commits the writes of scripts by the link ``data`` by the in-sync set.

    ``links`` lead to the same primary and do nothing else; each carries one flight at a time. They
    are launched already, and stop with this object. ``limit_ms``: an answer whose group is not
    through by then fails.
    """

    def __init__(
        self,
        data: StoreConnection,
        links: Sequence[StoreConnection],
        cluster: str,
        limit_ms: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._data = data
        key = primary_key(cluster)
        asked = PROCESS, pack(("HMGET", key, "view", "node"))
        self._server = ServerQuestion(data, asked, primaryship_of)
        self._held = HeldAnswers(len(links), limit_ms, lambda: WHOM, self._overdue)
        self._lanes = [
            Lane(link, ServerQuestion(link, asked, primaryship_of), line)
            for link, line in zip(links, self._held.lines, strict=True)
        ]
        self._idle = self._lanes[::-1]
        self._boarding: Flight | None = None  # of this turn of the loop
        self._mark = pack(mark_command(cluster)) + ROLE
        self._seen = ROLE + pack(("HMGET", key, "view", "set", "node"))
        self._waits_for = 1
        self._starting = False
        self._stopped = False
        self._confirmed_at = self._loop.time()
        self._trouble_since = 0.0  # 0: the latest group was complete
        self._failed_at = 0.0
        self._missing: dict[bytes, float] = {}
        self._refuses = False
        self._too_few = False
        """Whether the latest group that was read found fewer members than a majority."""
        self.groups = 0
        self.times = Family(COMMITS)
        """How long groups took. The maker of several commits may put one into all of them."""

    @property
    def missed(self) -> int:
        """Return how many answers were handed out as not known to last."""
        return self._held.missed

    @property
    def confirms(self) -> bool:
        """Return whether the set confirms writes, as far as is known."""
        return not self._refuses

    def ground(self) -> ServerIdentity[Primaryship]:
        """
        Return the identity of the server that runs the scripts sent from now on.

        Call it before sending them, in the same turn of the loop.

        Raises: NoQuorum: the set does not confirm anything now; nothing is to be sent.
        """
        if self._refuses:
            raise NoQuorum(f"{self._trouble()} ({self._reason()}); nothing was done")
        return self._server.asked()

    def board(self) -> Flight | None:
        """
        Return the flight that leaves at the end of this turn, for calls to go by.

        None: no lane is free now, or nothing can be confirmed. Then the calls go by ``data``.
        """
        if self._boarding is None and not (self._refuses or self._stopped):
            for lane in reversed(self._idle):
                if lane.is_known:
                    self._idle.remove(lane)
                    self._boarding = Flight(self, lane)
                    self._loop.call_soon(self._depart, self._boarding)
                    break
        return self._boarding

    def add(
        self,
        ground: ServerIdentity[Primaryship],
        answer: HeldAnswer,
        flight: Flight | None = None,
    ) -> None:
        """
        Tell ``answer``, which was read just now, once it is firm, or once that cannot be known.

        ``ground`` was made before it was sent. ``flight``: the one by which it was sent.
        """
        if self._stopped:
            self._held.miss(answer, DOWN)
            return
        if not ground.stands:
            self._held.miss(answer, ground.why, Moved)
            return
        if flight is not None and not flight.done():
            self._held.add(answer, ground.identity, flight.lane.line)
            return
        self._held.add(answer, ground.identity)
        if not self._starting:
            self._starting = True
            self._loop.call_soon(self._start)

    def begun(self, _key: str = "") -> Callable[[], Awaitable[None]]:
        """
        Return a function that waits until a write is firm.

        Call this before the write is sent, and the function after the answer.

        Raises: NoQuorum: no write can be firm now (at once), or it was not in time (the function);
        then it may or may not last.
        """
        return functools.partial(firm, self.add, self.ground())

    async def stop(self) -> None:
        """
        Stop, and close the flights' connections.

        The outcome of waiting answers, and of all from now on, is told to be unknown.
        """
        self._stopped = True
        for lane in self._lanes:
            lane.rest()
        self._held.end()
        await asyncio.gather(*(lane.link.stop() for lane in self._lanes))

    def warning(self) -> str:
        """Return for a minute that the latest group failed, or ""."""
        lately = self._trouble_since and self._loop.time() - self._failed_at < WARN_S
        return f"{self._trouble()} ({self._reason()})" if lately else ""

    def _trouble(self) -> str:
        return f"writes are not known to be with {WHOM}: what needs that is answered NOQUORUM"

    def _reason(self) -> str:
        since_s = self._loop.time() - self._trouble_since if self._trouble_since else 0.0
        return f"{self._held.why}; for {since_s:.1f} s"

    # --- the flights

    def _start(self) -> None:
        """Begin a flight for the gathered answers, unless enough are under way that will end."""
        self._starting = False
        if self._held.gathered and len(self._lanes) - len(self._idle) < GROUPS_MAX:
            self._begin_next()

    def _begin_next(self) -> None:
        if self._boarding is None and not self._stopped:
            self._begin(self._idle.pop())

    def _begin(self, lane: Lane) -> None:
        """Begin a flight without calls, if it is needed."""
        lane.rest()
        if self._held.gathered or lane.line or self._trouble_since:
            self._send(Flight(self, lane))
        else:
            self._idle.append(lane)

    def _depart(self, flight: Flight) -> None:
        """Begin the flight that has boarded in this turn."""
        self._boarding = None
        if self._stopped:
            flight.set_exception(NotSent(f"nothing was sent: {DOWN}"))
        elif flight.calls:
            self._data.calls += len(flight.calls)
            self._send(flight)
        else:
            self._begin(flight.lane)

    def _send(self, flight: Flight) -> None:
        lane = flight.lane
        lane.server.asked()  # what the flight finds is compared with it
        self._held.take_over(lane.line)
        lane.began_at = self._loop.time()
        lane.began_s = SystemClock.monotonic()
        self.groups += 1
        flight.leave(self._mark + wait_for(self._waits_for) + self._seen)

    def ended(self, lane: Lane, answers: Sequence[Any]) -> None:
        """Evaluate the answers of the confirmation on ``lane``, which are all there."""
        if self._stopped:
            return
        took_s = SystemClock.monotonic() - lane.began_s
        known = lane.server.asked().identity
        if known is None:
            self._failed(lane, lane.link.why or "the primary has not said yet who it is")
            return
        reading = read_group(answers, known)
        if reading.other:
            lane.server.forget(known)
            self._failed(lane, MOVED)
        elif reading.too_few:
            self._too_few = True
            self._failed(lane, TOO_FEW)
        else:
            if self._too_few:
                self._hold_again()
            self._waits_for = reading.waits_for
            self.times.of("ok" if reading.complete else "missed").observe(took_s)
            if reading.complete:
                self._confirm(lane, known)
            else:
                self._incomplete(lane, reading.missing)

    def _incomplete(self, lane: Lane, missing: Iterable[bytes]) -> None:
        """Note which members have not confirmed; the next flight may read another set."""
        now = self._loop.time()
        self._missing = {one: self._missing.get(one, lane.began_at) for one in missing}
        names = ", ".join(
            f"{node_of(one)} (for {now - since:.1f} s)"
            for one, since in sorted(self._missing.items())
        )
        self._failed(lane, f"not confirmed by {names}")

    def failed(self, lane: Lane, error: BaseException) -> None:
        """Note that the confirmation on ``lane`` was refused, or its connection lost."""
        if not self._stopped:
            self._failed(lane, str(error))

    def _failed(self, lane: Lane, why: str) -> None:
        """Note that a flight was not confirmed, and begin another one on ``lane`` in a while."""
        now = self._loop.time()
        # The first flight may have met with a change, and one whose WAIT was in vain has waited.
        waited = now - lane.began_at > RETRY_S
        doublings = min(lane.failures, DOUBLINGS_MAX)
        pause_s = 0.0 if waited else min(RETRY_S, RETRY_FIRST_S * (2**doublings - 1))
        lane.failures += 1
        self._held.why, self._failed_at = self._data.fault or why, now
        self._trouble_since = self._trouble_since or now
        if now - self._trouble_since >= self._held.limit_ms / 1000:
            self._refuse()
        if not lane.line and now - self._trouble_since > AWHILE_S:
            if len(self._idle) < len(self._lanes) - 1:
                self._idle.append(lane)  # one that asks is enough
                return
            pause_s = RETRY_LAST_S
        lane.again = self._loop.call_later(pause_s, self._begin, lane)

    def _overdue(self, since: float) -> None:
        """Note that the time of an answer is over, which has waited since ``since``."""
        if self._confirmed_at <= since:
            self._trouble_since = self._trouble_since or since
            self._held.why = self._held.why or "the primary does not answer"
            self._refuse()

    def _hold_again(self) -> None:
        """
        Let calls that need the set be sent again: it has grown to a majority, and will confirm.

        Where it does not, such calls are refused once an answer's time is over, as ever.
        """
        self._too_few = self._refuses = False
        self._trouble_since = self._loop.time()

    def _refuse(self) -> None:
        if not self._refuses:
            self._refuses = True
            log.error("%s (%s)", self._trouble(), self._held.why)

    def _confirm(self, lane: Lane, known: Primaryship) -> None:
        """Confirm every answer of the flight that came from the primary that is known."""
        now = self._loop.time()
        self._confirmed_at = now
        lane.failures = 0
        if self._trouble_since:
            self._recovered(now)
        self._held.confirm(lane.line, known, self._server)
        self._idle.append(lane)
        if self._held.gathered:
            self._begin_next()

    def _recovered(self, now: float) -> None:
        if self._refuses:
            log.warning("writes are with %s again, after %.1f s", WHOM, now - self._trouble_since)
        self._held.why, self._trouble_since, self._refuses = "", 0.0, False
        self._missing.clear()
        for lane in self._lanes:
            if lane.again is not None:
                lane.again.cancel()
                lane.again = self._loop.call_soon(self._begin, lane)


@functools.cache
def wait_for(replicas: int) -> bytes:
    """Return the command by which so many replicas confirm now."""
    return pack(("WAIT", replicas, WAIT_MS))


class Lane:
    """Holds one connection for flights, and the answers that wait for the one under way."""

    __slots__ = ("again", "began_at", "began_s", "failures", "line", "link", "server")

    def __init__(
        self, link: StoreConnection, server: ServerQuestion[Primaryship], line: Line
    ) -> None:
        self.link = link
        self.server = server
        self.line = line
        self.began_at = 0.0
        self.began_s = 0.0  # likewise, by a clock that is finer than the loop's
        self.failures = 0  # of its flights, since the last that was complete
        self.again: asyncio.Handle | None = None

    @property
    def is_known(self) -> bool:
        """Return whether the server behind the connection has said who it is; if not, ask it."""
        return self.link.up and self.server.asked().identity is not None

    def rest(self) -> None:
        """Cancel the flight that was to begin again."""
        if self.again is not None:
            self.again.cancel()
            self.again = None


class Flight:
    """
    Sends calls and their confirmation in one write, and receives the answers.

    Calls are sent by it (as a :class:`tidewarden.store.client.CallSender`), and all answers go to
    it (as a :class:`tidewarden.store.reply_sink.ReplySink`).

    ``boards``: calls that are sent now stand before its confirmation, in their order. ``ground``:
    the identity that they rely on.
    """

    __slots__ = ("_answers", "_commit", "_over", "_packed", "boards", "calls", "ground", "lane")
    clustered = False

    def __init__(self, commit: SetCommit, lane: Lane) -> None:
        self._commit = commit
        self.lane = lane
        self.ground = lane.server.asked()
        self.boards = True
        self.calls: deque[ReplySink] = deque()
        self._packed: list[bytes] = []
        self._answers: list[Any] = []
        self._over = False

    def send(self, packed: bytes, receiver: ReplySink, _key: Arg = "", /) -> None:
        """
        Send a call with this flight.

        A call that comes later, because the server refused it in another way, goes behind the
        flight.
        """
        if self.boards:
            self._packed.append(packed)
            self.calls.append(receiver)
        else:
            self.lane.link.send(packed, receiver)

    def add(self, ground: ServerIdentity[Primaryship], answer: HeldAnswer) -> None:
        """Do as :meth:`SetCommit.add` for the answer of a call that was sent by this."""
        self._commit.add(ground, answer, self)

    def leave(self, confirmation: bytes) -> None:
        """Send the calls that have boarded, and the confirmation behind them."""
        self.boards = False
        packed, self._packed = b"".join((*self._packed, confirmation)), []
        self.lane.link.send_together(packed, self, len(self.calls) + ANSWERS)

    def done(self) -> bool:
        """Return whether the flight has ended, perhaps before all answers came."""
        return self._over

    def set_result(self, answer: Any, /) -> None:
        """Receive the next answer."""
        if self.calls:
            receiver = self.calls.popleft()
            if not receiver.done():
                receiver.set_result(answer)
            return
        self._answers.append(answer)
        if len(self._answers) == ANSWERS:
            self._over = True
            self._commit.ended(self.lane, self._answers)

    def set_exception(self, error: BaseException, /) -> None:
        """Receive a call's error, or the first one of the confirmation, after which none counts."""
        lost = unanswered(error) or isinstance(error, NotSent)
        while self.calls:
            fail_reply(self.calls.popleft(), error)
            if not lost:
                return
        self._over = True
        self._commit.failed(self.lane, error)
