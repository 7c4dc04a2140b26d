"""
Group commit by the in-sync set: answers leave once every store that may take over has their writes.

A group (see :mod:`tidewarden.store.durability.set_reading`) is sent after the answers were read, on
a connection of its own, and asks the primary's own data who has to confirm. Several are under way
at a time, each on its own connection, so that no answer waits for the group before its own.

While nothing was confirmed for as long as an answer may wait, as where the set is too small, what
needs it is refused before it is sent. Groups without answers go on until one is complete.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tidewarden.clock import SystemClock
from tidewarden.errors import NoQuorum
from tidewarden.histograms import COMMITS, Family
from tidewarden.store.connection import StoreConnection, pack

from .held_answers import DOWN, HeldAnswer, HeldAnswers, HeldFuture, Line
from .server_identity import INFO, MOVED, ServerIdentity, ServerQuestion
from .set_reading import Primaryship, node_of, primaryship_of, read_group
from .view_library import mark_command, primary_key

log = logging.getLogger("tidewarden.store")

GROUPS_MAX = 2
"""Groups under way at a time."""
WAIT_MS = 60
"""A WAIT; the set may shrink meanwhile, and the next mark reads the new one."""
RETRY_FIRST_S, RETRY_S = 0.001, 0.05
"""After groups that failed at once, one after the other."""
RETRY_LAST_S = 0.25
"""Where nobody waits and it has been so for a while."""
AWHILE_S = 2.0
WARN_S = 60.0
ROLE = pack(("ROLE",))
WHOM = "every store in sync"
TOO_FEW = "fewer than a majority of the stores have every write"


class SetCommit:
    """
    The group commit, by the in-sync set, of what scripts wrote by the link ``data``.

    ``links`` lead to the same primary and do nothing else; each carries one group at a time. They
    are launched, and stop with this.

    ``limit_ms``: an answer whose group is not through by then fails.
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
        asked = pack(("HMGET", primary_key(cluster), "view", "node"))
        self._server = ServerQuestion(data, (INFO, asked), primaryship_of)
        self._held = HeldAnswers(len(links), limit_ms, lambda: WHOM, self._overdue)
        self._lanes = [Lane(link, line) for link, line in zip(links, self._held.lines, strict=True)]
        self._idle = self._lanes[::-1]
        self._mark = pack(mark_command(cluster))
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
        """Those of other commits may be counted together: whoever made them puts one here."""

    @property
    def missed(self) -> int:
        """How many answers were handed out as not known to last."""
        return self._held.missed

    @property
    def confirms(self) -> bool:
        """Whether the set confirms writes, as far as is known."""
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

    def add(self, ground: ServerIdentity[Primaryship], answer: HeldAnswer) -> None:
        """
        Tell ``answer``, which was read just now, once it is firm or cannot be known to be.

        ``ground``: of before it was sent.
        """
        if self._stopped or not ground.stands:
            self._held.miss(answer, DOWN if self._stopped else ground.why)
            return
        self._held.add(answer, ground.identity)
        if self._idle and not self._starting:
            self._starting = True
            self._loop.call_soon(self._start)

    def begun(self, _key: str = "") -> Callable[[], Awaitable[None]]:
        """
        Call it before a write is sent, and what it returns after the answer.

        The latter returns when the write is firm.

        Raises: NoQuorum: it cannot be had now (at once), or was not in time (the latter); then it
        may or may not last.
        """
        ground = self.ground()

        def firm() -> asyncio.Future[None]:
            future: asyncio.Future[None] = self._loop.create_future()
            self.add(ground, HeldFuture(future))
            return future

        return firm

    async def stop(self) -> None:
        """
        Stop, and close the groups' connections.

        Waiting answers, and all from now on, are told that nobody knows.
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

    # --- the groups

    def _start(self) -> None:
        """Begin a group for what has gathered, if a connection is free."""
        self._starting = False
        if self._idle and self._held.gathered and not self._stopped:
            self._begin(self._idle.pop())

    def _begin(self, lane: Lane) -> None:
        lane.rest()
        self._held.take_over(lane.line)
        if not lane.line and not self._trouble_since:
            self._idle.append(lane)
            return
        self._server.asked()  # the group is compared with it
        lane.began_at = self._loop.time()
        lane.began_s = SystemClock.monotonic()
        self.groups += 1
        group = SetGroup(self, lane)
        lane.link.send_together(self._mark + wait_for(self._waits_for), group, 4)

    def ended(self, lane: Lane, answers: Sequence[Any]) -> None:
        """All answers of the group on ``lane`` are there."""
        if self._stopped:
            return
        took_s = SystemClock.monotonic() - lane.began_s
        known = self._server.asked().identity
        if known is None:
            self._failed(lane, self._data.why or "the primary has not said yet who it is")
            return
        reading = read_group(answers, known)
        if reading.other:
            self._server.forget(known)
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
        """Some members have not confirmed: the next group may read another set."""
        now = self._loop.time()
        self._missing = {one: self._missing.get(one, lane.began_at) for one in missing}
        names = ", ".join(
            f"{node_of(one)} (for {now - since:.1f} s)"
            for one, since in sorted(self._missing.items())
        )
        self._failed(lane, f"not confirmed by {names}")

    def failed(self, lane: Lane, error: BaseException) -> None:
        """The group on ``lane`` was refused, or its connection lost."""
        if not self._stopped:
            self._failed(lane, str(error))

    def _failed(self, lane: Lane, why: str) -> None:
        """Note that a group failed, and begin another one on ``lane`` in a while."""
        now = self._loop.time()
        # the first one may have met with a change, and one whose WAIT was in vain has waited
        waited = now - lane.began_at > RETRY_S
        pause_s = 0.0 if waited else min(RETRY_S, RETRY_FIRST_S * (2**lane.failures - 1))
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
        """An answer's time is over, and it had waited ``since``."""
        if self._confirmed_at <= since:
            self._trouble_since = self._trouble_since or since
            self._held.why = self._held.why or "the primary does not answer"
            self._refuse()

    def _hold_again(self) -> None:
        """
        Let what needs the set be sent again: it has grown to a majority, which will confirm it.

        Where it does not, that is refused once an answer's time is over, as ever.
        """
        self._too_few = self._refuses = False
        self._trouble_since = self._loop.time()

    def _refuse(self) -> None:
        if not self._refuses:
            self._refuses = True
            log.error("%s (%s)", self._trouble(), self._held.why)

    def _confirm(self, lane: Lane, known: Primaryship) -> None:
        """Confirm every answer of the group that came from the primary that is known."""
        now = self._loop.time()
        self._confirmed_at = now
        lane.failures = 0
        if self._trouble_since:
            self._recovered(now)
        line = lane.line
        while line:
            one = line.popleft()
            if one.identity == known:
                one.answer.confirmed()
            else:
                self._held.miss(one.answer, MOVED)
        self._idle.append(lane)
        if self._held.gathered and not self._stopped:
            self._begin(self._idle.pop())

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
    """Return what follows a mark: so many replicas confirm now, and which did is told."""
    return ROLE + pack(("WAIT", replicas, WAIT_MS)) + INFO


class Lane:
    """One connection for groups, and the answers that wait for the group under way on it."""

    __slots__ = ("again", "began_at", "began_s", "failures", "line", "link")

    def __init__(self, link: StoreConnection, line: Line) -> None:
        self.link = link
        self.line = line
        self.began_at = 0.0
        self.began_s = 0.0  # likewise, by a clock that is finer than the loop's
        self.failures = 0  # of its groups, since the last that was complete
        self.again: asyncio.Handle | None = None

    def rest(self) -> None:
        """Begin no group again."""
        if self.again is not None:
            self.again.cancel()
            self.again = None


class SetGroup:
    """Receives the answers of one group (as a :class:`tidewarden.store.reply_sink.ReplySink`)."""

    __slots__ = ("_answers", "_commit", "_lane", "_over")

    def __init__(self, commit: SetCommit, lane: Lane) -> None:
        self._commit = commit
        self._lane = lane
        self._answers: list[Any] = []
        self._over = False

    def done(self) -> bool:
        """Whether the group has ended, perhaps before all answers came."""
        return self._over

    def set_result(self, answer: Any, /) -> None:
        """Receive the next answer."""
        self._answers.append(answer)
        if len(self._answers) == 4:
            self._over = True
            self._commit.ended(self._lane, self._answers)

    def set_exception(self, error: BaseException, /) -> None:
        """Receive the first error, after which nothing of the group counts."""
        self._over = True
        self._commit.failed(self._lane, error)
