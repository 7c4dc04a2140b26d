"""A lock: one holder at a time, under a fence number, renewed while a block runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidewarden.errors import BadArg, NotHeld, Unreachable

from .connection import Arg, Replies
from .failover import only
from .task import Loss

if TYPE_CHECKING:
    from .client import AsyncClient

TURN_MS = 20_000


class AsyncLock:
    """
    A lock of the cluster.

    ``async with client.lock("report") as lock:`` acquires it, renews it while the block runs, and
    releases it.

    What a lock can promise and what it cannot: docs/locks.md. Hand :attr:`fence` to whatever the
    block writes to. ``lease_ms``: how long it is ours between two renewals, so how soon others may
    have it when this host dies.
    """

    def __init__(self, client: AsyncClient, name: str, lease_ms: int) -> None:
        self.client = client
        self.name = name
        self.lease_ms = lease_ms
        self.fence = 0
        self.since = 0.0  # our monotonic clock, seconds: not later than the lease began
        self.on_lost: Callable[[], object] | None = None
        self._loss = Loss()

    def __str__(self) -> str:
        return f"lock {self.name}"

    @property
    def held(self) -> bool:
        """Return whether the lock is ours, as far as is known."""
        return self.fence > 0 and not self.lost

    @property
    def lost(self) -> bool:
        """
        Return whether the lease is known to have ended without our doing: stop what it was for.
        """
        return self._loss.known

    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the lock is lost, at most ``timeout_s`` seconds; return whether it is."""
        return await self._loss.wait(timeout_s)

    async def acquire(self, wait_ms: int | None = None) -> bool:
        """
        Acquire the lock, waiting at most ``wait_ms`` (``None``: without an end).

        Returns whether it is ours.

        From then on it is renewed until :meth:`release`, or until it is lost. Not reentrant.

        Raises: BadArg: it is held by this object; Full: too many wait at the node; Unreachable.
        """
        if self.held:
            raise BadArg(f"{self} is held by this object already; it is not reentrant")
        clock = self.client.clock
        key = secrets.token_hex(8)  # so that a repeated request gets the same lock
        until = None if wait_ms is None else clock.monotonic() + wait_ms / 1000
        self.fence, self._loss = 0, Loss()
        while True:
            left_ms = TURN_MS if until is None else max(0, int((until - clock.monotonic()) * 1000))
            turn_ms = min(left_ms, TURN_MS)
            command: tuple[Arg, ...] = ("L.ACQUIRE", self.name, self.lease_ms, "KEY", key)
            if turn_ms:
                command = (*command, "WAIT", turn_ms)
            self.since = clock.monotonic()
            fence, _ = only(await self.client.wait([command], turn_ms, orphan=self._orphaned))
            if fence:
                self.fence = fence
                self.client.leases.keep(self)
                if turn_ms and clock.monotonic() - self.since > self.lease_ms / 10_000:
                    await self.renew()  # nobody knows when within the wait it began
                return True
            if until is not None and left_ms <= turn_ms:
                return False

    async def renew(self) -> None:
        """
        Extend the lease to ``lease_ms`` from now.

        Raises: NotHeld: somebody else has it or will have it; Unreachable.
        """
        asked_at = self.client.clock.monotonic()
        try:
            only(await self.client.line.run([self.renewal()], again=True))
        except NotHeld:
            self.client.leases.drop(self)
            self.mark_lost()
            raise
        self.touched(None, asked_at)

    async def release(self) -> None:
        """
        Release the lock to the next waiter.

        Raises: NotHeld: it was not ours any more; Unreachable.
        """
        self.client.leases.drop(self)
        fence, self.fence = self.fence, 0
        found = await self.client.line.run([("L.RELEASE", self.name, fence)], again=True)
        try:
            only(found)
        except NotHeld:
            if not found[1]:  # sent twice, it is what was wanted
                self.mark_lost()
                raise

    # What the leases needs.

    def renewal(self) -> tuple[Arg, ...]:
        """Return the request that renews the lease."""
        return ("L.RENEW", self.name, self.fence, self.lease_ms)

    def returning(self) -> tuple[Arg, ...]:
        """Return the request that releases the lock."""
        return ("L.RELEASE", self.name, self.fence)

    def touched(self, answer: object, since: float) -> None:
        """Note that the lease was renewed, not earlier than ``since``."""
        self.since = since

    def mark_lost(self) -> None:
        """Note that the lease has ended without our doing."""
        self._loss.mark()

    def _orphaned(self, replies: Replies) -> None:
        if isinstance(replies[0], int):
            self.client.send_off(self.client.quietly([("L.RELEASE", self.name, replies[0])]))

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.fence:
            return
        try:
            await asyncio.shield(self.release())
        except (NotHeld, Unreachable) as second:
            if error is None:
                raise
            error.add_note(f"and {self} could not be released: {second}")
