"""
Ticks Raft in a thread, and bridges it to asyncio: the only way in which the two meet.

Into the thread go proposals (the library's queue is made for that) and :meth:`Ticker.ask`; out of
it come views and answers, by :meth:`Ticker.post`, which never raises: an exception in a
callback would stop Raft for good.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tidewarden.clock import Clock
from tidewarden.log import OncePer

from .state import RaftView, Times, role
from .voter import Voter

logger = logging.getLogger("tidewarden.raft")

# least time between two first failures that are logged: on a full disk every election is one
COMPLAINT_S = 10.0
FAILURES_LOGGED = (1, 10, 100, 1000, 10_000, 100_000)


class Ticker:
    """
    Builds the voter, ticks it until told to stop, and destroys it.

    ``started(voter, error)`` is posted once, ``sighted(view)`` after every tick that changed
    something. Both run in the event loop ``loop``.
    """

    def __init__(
        self,
        build: Callable[[], Voter],
        times: Times,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        started: Callable[[Voter | None, Exception | None], None],
        sighted: Callable[[RaftView], None],
    ) -> None:
        self.beat = clock.monotonic()
        """When the event loop last turned; the loop writes it, this thread judges by it."""
        self.latest: RaftView | None = None
        """What the last tick saw; replaced as a whole, so any thread may read it."""
        self._build, self._times, self._clock, self._loop = build, times, clock, loop
        self._started, self._sighted = started, sighted
        self._voter: Voter | None = None
        self._questions: deque[Callable[[Voter], None]] = deque()
        self._stopping = threading.Event()
        self._gracefully = True
        self._complaints = OncePer(clock, COMPLAINT_S)
        self._failures = 0
        self._ticked = clock.monotonic()
        self._posted: tuple[object, ...] = ()
        self._wedged = False
        self.thread = threading.Thread(target=self._run, name="tidewarden-raft", daemon=True)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Have ``function(*args)`` run in the event loop. Any thread; never raises."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            logger.debug("the event loop is closed; nobody is there to hear of %s", function)

    def ask(self, question: Callable[[Voter], None]) -> None:
        """Have ``question(voter)`` run in this thread at once. In the loop's thread."""
        self.ask_later(question)
        self.wake()

    def ask_later(self, question: Callable[[Voter], None]) -> None:
        """Have ``question(voter)`` run in this thread when it ticks next."""
        self._questions.append(question)

    def wake(self) -> None:
        """Have the thread tick at once. In the loop's thread."""
        if self._voter is not None and not self._stopping.is_set():
            self._voter.wake()

    def stop(self, gracefully: bool) -> None:
        """
        End the thread, handing leadership over first if ``gracefully``.

        It returns at once; then join the thread.
        """
        self._gracefully = gracefully
        self._stopping.set()
        if self._voter is not None:
            self._voter.wake()

    def _run(self) -> None:
        try:
            voter = self._build()
        except Exception as error:
            self.post(self._started, None, error)
            return
        self._voter = voter
        self.latest = voter.view(self._clock.monotonic())
        self.post(self._started, voter, None)
        try:
            while not self._stopping.is_set():
                self._turn(voter)
            if self._gracefully:
                self._leave(voter)
        except Exception:
            logger.exception("Raft's thread failed while it stopped")
        finally:
            voter.destroy()

    def _turn(self, voter: Voter) -> None:
        try:
            while self._questions:
                self._questions.popleft()(voter)
            self._judge_loop(voter)
            voter.doTick(voter.rest_s())
        except Exception as error:
            self._failures += 1
            if self._failures in FAILURES_LOGGED and (
                self._complaints.passes() or self._failures > 1
            ):
                text = "Raft failed (tick failures in a row: %d): %s; stepping down"
                trace = not isinstance(error, OSError)  # a full disk is no defect of ours
                logger.error(text, self._failures, error, exc_info=trace)
            voter.step_down()
            self._stopping.wait(self._times.tick_s)
        else:
            self._failures = 0
            self._ticked = self._clock.monotonic()
        self._publish(voter)

    def _judge_loop(self, voter: Voter) -> None:
        """
        Give leadership up, and stand for none, when the event loop does not turn: it does no work.
        """
        wedged = (
            bool(voter.otherNodes) and self._clock.monotonic() - self.beat > self._times.wedge_s
        )
        if wedged and not self._wedged:
            logger.warning(
                "the event loop has not turned for %g s; not leading", self._times.wedge_s
            )
        self._wedged = wedged
        if wedged:
            voter.give_up()
            voter.hold_off()

    def _publish(self, voter: Voter) -> None:
        view = self.latest = voter.view(self._ticked)
        here = role(view, self._clock.monotonic(), self._times)
        news = (
            here,
            view.state,
            view.term,
            view.leader,
            view.settled,
            view.commit,
            view.facts,
            view.members,
            view.members_committed,
            view.removed_because,
            view.refusal,
            view.stores,
            view.reports,
            voter.ended,
        )
        if news != self._posted:
            self._posted = news
            self.post(self._sighted, view)

    def _leave(self, voter: Voter) -> None:
        """
        Hand leadership over, and tick on until another member has it.

        So a planned end costs the cluster no election.
        """
        if not voter.leads() or not voter.otherNodes:
            return
        voter.give_up()
        until = self._clock.monotonic() + self._times.election_min_s
        while self._clock.monotonic() < until and not voter.knows_leader():
            voter.doTick(self._times.tick_s)
