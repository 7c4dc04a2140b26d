"""
Commits writes in groups: answers leave once as many servers have their writes as is required.

WAIT and WAITAOF count the writes of their own connection, so a group is a write of our own on a
connection of its own, made after the answers were read: all scripts that ran at that server before
stand before it in the order that replicas receive. Behind the write stand the wait and the question
which server it is: the replication id of a primary is drawn anew at each start and at each
promotion, so the same id as on the connection where the answers came from means that nothing was
lost in between.

One group is under way at a time and the next gathers meanwhile: commits cost round trips per group,
not per write.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, NoQuorum, StoreDown
from tidewarden.histograms import COMMITS, Family
from tidewarden.store.connection import Arg, StoreConnection, pack
from tidewarden.store.full_store_writes import full_store_write

from .held_answers import DOWN, HeldAnswer, HeldAnswers, firm
from .server_identity import INFO, ServerIdentity, ServerQuestion, identity_of

log = logging.getLogger("tidewarden.store")

KEEP_MS = 30 * 86_400_000  # how long the key of our own write outlives the last group
WARN_S = 60.0
RETRY_S = 0.05  # after a group was refused, or its connection lost
HOW = pack(("CONFIG", "GET", "appendfsync"))


@dataclass(frozen=True, slots=True)
class Requirement:
    """
    Says how many servers must have a write, and on how many disks it must be.

    ``disk_here``: on disk at the primary, whatever the replicas do with it. ``always``: with
    ``disk``, the primary is asked each time whether it syncs every write, for with ``appendfsync
    everysec`` WAITAOF may not mean it; a server that has taken over may do that.
    """

    replicas: int
    disk: bool = False
    disk_here: bool = False
    always: bool = False

    def commands(self, limit_ms: int) -> tuple[tuple[tuple[Arg, ...], tuple[int, ...]], ...]:
        """Return the waits, and the least that each has to answer."""
        if self.disk:
            return ((("WAITAOF", 1, self.replicas, limit_ms), (1, self.replicas)),)
        here = ((("WAITAOF", 1, 0, limit_ms), (1, 0)),) if self.disk_here else ()
        there = ((("WAIT", self.replicas, limit_ms), (self.replicas,)),) if self.replicas else ()
        return here + there

    def __str__(self) -> str:
        """Word the requirement for a message that it was not met."""
        here = "the primary's disk" if self.disk or self.disk_here else ""
        there = f"{self.replicas} replica{'s' * (self.replicas != 1)}" if self.replicas else ""
        return " and ".join(filter(None, (here, there))) + (
            ", on disk" if self.disk and self.replicas else ""
        )


class GroupCommit:
    """
    Commits in groups the writes of scripts by the link ``data``.

    ``link`` leads to the same primary and does nothing else. ``key`` is the key of its own write
    (in a cluster: of a slot of that primary); ``limit_ms``: an answer whose group is not through by
    then fails.
    """

    def __init__(
        self,
        data: StoreConnection,
        link: StoreConnection,
        key: str,
        requirement: Requirement,
        limit_ms: int,
        clock: Clock,
    ) -> None:
        self._data = data
        self._link = link
        self._clock = clock
        self._requirement = requirement
        self._loop = asyncio.get_running_loop()
        self._server = ServerQuestion(data, (INFO,), lambda answers: identity_of(*answers) or None)
        self._held = HeldAnswers(1, limit_ms, lambda: str(requirement))
        self._task: asyncio.Task[None] | None = None
        self._failed_at = 0.0
        self._complained = False
        self._stopped = False
        self._write_to(key)
        self._waits = tuple(
            (pack(command), least) for command, least in requirement.commands(limit_ms)
        )
        self.groups = 0
        self.times = Family(COMMITS)
        """How long groups took. The maker of several commits may put one into all of them."""

    @property
    def missed(self) -> int:
        """Return how many answers were handed out as not known to last."""
        return self._held.missed

    def _write_to(self, key: str) -> None:
        """Use this key for the groups' own write."""
        self._mark = pack(("PEXPIRE", key, KEEP_MS))  # a write that a full store takes, too
        self._first_mark = pack(full_store_write("SET", key, "1", "PX", KEEP_MS))
        self._there = False  # whether the key is, as far as we know

    def ground(self) -> ServerIdentity[str]:
        """
        Return the identity of the server that runs the scripts sent from now on.

        Call it before sending them, in the same turn of the loop.
        """
        return self._server.asked()

    def add(self, ground: ServerIdentity[str], answer: HeldAnswer) -> None:
        """
        Tell ``answer``, which was read just now, once it is firm, or once that cannot be known.

        ``ground`` was made before it was sent.
        """
        if self._stopped or not ground.stands:
            self._held.miss(answer, DOWN if self._stopped else ground.why)
            return
        self._held.add(answer, ground.identity)
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="group commit")

    def begun(self, _key: str = "") -> Callable[[], Awaitable[None]]:
        """
        Return a function that waits until a write is firm.

        Call this before the write is sent, and the function after the answer.

        Raises (the function): NoQuorum: it was not firm in time; it may or may not last.
        """
        return functools.partial(firm, self.add, self.ground())

    async def stop(self) -> None:
        """Stop, and report the outcome of waiting answers, and of all from now on, as unknown."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._held.end()

    # --- the groups

    async def _run(self) -> None:
        """Commit one group after the other as long as answers wait."""
        (line,) = self._held.lines
        try:
            while self._held.gathered or line:
                self._held.take_over(line)
                began = self._clock.monotonic()
                try:
                    identity = await self._group()
                except NoQuorum as error:
                    self.times.of("missed").observe(self._clock.monotonic() - began)
                    self._failed(str(error))  # the wait itself took its time
                except Error as error:
                    self._failed(str(error))
                    await sleep(self._clock, RETRY_S)
                else:
                    self.times.of("ok").observe(self._clock.monotonic() - began)
                    if self._held.why and self._complained:
                        log.warning("writes are with %s again", self._requirement)
                    self._held.why, self._complained = "", False
                    self._held.confirm(line, identity, self._server)
        finally:
            self._task = None

    def _failed(self, why: str) -> None:
        """
        Note that a group failed; log it once, unless the connection is lost, which logs that
        itself.
        """
        if self._link.up and not self._complained:
            self._complained = True
            whose = (
                "as many replicas run, are connected and keep up"
                if self._requirement.replicas
                else "its disk keeps up"
            )
            log.error("%s (%s); see that %s", self._trouble(), why, whose)
        self._held.why, self._failed_at = why, self._loop.time()

    def _trouble(self) -> str:
        return (
            f"writes are not known to be with {self._requirement}: what needs that is answered"
            " NOQUORUM"
        )

    def warning(self) -> str:
        """Return for a minute that the latest group failed, or ""."""
        lately = bool(self._held.why) and self._loop.time() - self._failed_at < WARN_S
        return f"{self._trouble()} ({self._held.why})" if lately else ""

    async def _group(self) -> str:
        """
        Write, wait, and return the identity of the server; all writes that it ran before are firm.

        A key that had been removed costs a second try. Raises: NoQuorum: too few servers have the
        write; StoreDown, Error: the outcome is unknown.
        """
        link = self._link
        connects = link.reconnects
        if not link.up:
            raise StoreDown(f"no connection to commit by: {link.why or 'it was lost'}")
        self.groups += 1
        replies = [await self._written()]
        replies += [self._send(command) for command, _ in self._waits]
        how = self._send(HOW) if self._requirement.always else None
        replies.append(self._send(INFO))
        with contextlib.suppress(Error):
            await replies[-1]  # the others were answered, or lost, before
        for reply in replies:
            if (error := reply.exception()) is not None:
                raise error
        there, *counts, info = (reply.result() for reply in replies)
        if link.reconnects != connects:
            raise StoreDown("the connection was lost meanwhile")
        if how is not None and (synced := how.result()[1:]) != [b"always"]:
            raise StoreDown(
                f"the primary's appendfsync is {b''.join(synced).decode() or 'not told'} now"
            )
        if not there:  # nothing was written, so the waits vouch for nothing
            self._there = False
            return await self._group()
        self._there = True
        for count, (_, least) in zip(counts, self._waits, strict=True):
            had = count if isinstance(count, list) else [count]
            if any(one < needed for one, needed in zip(had, least, strict=True)):
                raise NoQuorum(f"not within {self._held.limit_ms} ms")
        return identity_of(info)

    async def _written(self) -> asyncio.Future[Any]:
        """Send the group's own write; returns its answer: 1, or 0 when nothing was written."""
        written = self._send(self._own_write())
        if self._requirement.disk or self._requirement.disk_here:
            # sent together with its write, WAITAOF takes a second on some servers
            await asyncio.wait({written})
        return written

    def _own_write(self) -> bytes:
        """Return the group's own write: it touches the key, or makes it if that may be missing."""
        made, self._there = self._there, True
        return self._mark if made else self._first_mark

    def _send(self, packed: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._link.send(packed, future)
        return future
