"""Renews leases: each is touched after a third of its time, those due together in one request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from tidewarden.clock import Clock
from tidewarden.errors import Error, NotHeld

from .connection import Arg
from .failover import FailoverConnection

log = logging.getLogger("tidewarden.client")

SHARE = 3  # of its lease, after which a task is touched


class Renewable(Protocol):
    """
    Is a task or lock under a lease that can be renewed.

    ``since``: our monotonic clock at its latest renewal, seconds.
    """

    lease_ms: int
    since: float
    on_lost: Callable[[], object] | None

    def renewal(self) -> tuple[Arg, ...]: ...
    def returning(self) -> tuple[Arg, ...]: ...
    def touched(self, answer: Any, since: float) -> None: ...
    def mark_lost(self) -> None: ...


class LeaseKeeper:
    """
    Renews the leases of tasks and locks in use.

    One whose lease ended, by the node's word or by our clock, is marked lost.

    Args: ``clock``: judges when a lease that could not be renewed has ended.
    """

    def __init__(self, line: FailoverConnection, clock: Clock) -> None:
        self._line = line
        self._clock = clock
        self._timers: dict[Renewable, asyncio.TimerHandle] = {}
        self._due: list[Renewable] = []
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> list[Renewable]:
        """Return the tasks and locks whose leases are renewed."""
        return list(self._timers)

    def keep(self, task: Renewable) -> None:
        """Renew this lease from now on, until :meth:`drop`."""
        self._again(task, task.lease_ms / 1000 / SHARE - (self._clock.monotonic() - task.since))
        if len(self._timers) == 1:
            self._line.hold(True)

    def drop(self, task: Renewable) -> bool:
        """Renew this lease no longer. Returns: whether it was kept."""
        timer = self._timers.pop(task, None)
        if timer is not None:
            timer.cancel()
            if not self._timers:
                self._line.hold(False)
        return timer is not None

    def lose_all(self) -> None:
        """Mark every lease as lost, since the session has ended."""
        for task in self.held:
            self._lose(task, "its session has ended")

    async def close(self) -> None:
        """Stop renewing."""
        for task in self.held:
            self.drop(task)
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _again(self, task: Renewable, in_s: float) -> None:
        self._timers[task] = asyncio.get_running_loop().call_later(
            max(0.0, in_s), self._is_due, task
        )

    def _is_due(self, task: Renewable) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._send)
        self._due.append(task)

    def _send(self) -> None:
        due, self._due = [task for task in self._due if task in self._timers], []
        if due:
            sending = asyncio.get_running_loop().create_task(self._touch(due))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _touch(self, tasks: list[Renewable]) -> None:
        asked_at = self._clock.monotonic()
        answers: list[object]
        try:
            answers, _ = await self._line.run([task.renewal() for task in tasks], again=True)
        except Error as error:
            answers = [error] * len(tasks)
        for task, answer in zip(tasks, answers, strict=True):
            if task not in self._timers:
                continue
            if not isinstance(answer, Error):
                task.touched(answer, asked_at)
                self._again(
                    task, task.lease_ms / 1000 / SHARE - (self._clock.monotonic() - asked_at)
                )
            elif isinstance(answer, NotHeld):
                self._lose(task, "the node says so")
            elif self._clock.monotonic() >= task.since + task.lease_ms / 1000:
                self._lose(task, f"it could not be renewed in time: {answer}")
            else:
                self._again(task, task.lease_ms / 1000 / SHARE / 4)

    def _lose(self, task: Renewable, why: str) -> None:
        self.drop(task)
        log.warning("the lease of %s is lost: %s", task, why)
        task.mark_lost()
        if task.on_lost is not None:
            task.on_lost()
