"""
Locks by Redlock, over independent Redis or Valkey servers that are no cluster of ours.

The algorithm is that of "Distributed Locks with Redis" (redis.io): a lock is ours while a majority
of the masters has our value under its name. :class:`tidewarden.client.AsyncLock` promises more, see
docs/locks.md.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from tidewarden.client.connection import pack
from tidewarden.clock import Clock, SystemClock
from tidewarden.errors import BadArg, NotHeld, Unreachable

from .master import Master, master_at

TTL_MS = 10_000
TRIES, RETRY_MS = 10, 200
"""A try that fails is repeated after a half to one and a half of that time."""
DRIFT_SHARE, DRIFT_MS = 0.01, 2
"""By so much of its life, and so many ms, a lock is believed to end sooner: clocks differ."""
ANSWER_PART, ANSWER_MS_MIN, ANSWER_MS_MAX = 20, 50, 1_000
"""A master may answer within this part of a lock's life: one that is away must not use it up."""
# Both do nothing to a lock that somebody else has by now.
RELEASE = (
    'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0'
)
EXTEND = (
    'if redis.call("get", KEYS[1]) == ARGV[1]'
    ' then return redis.call("pexpire", KEYS[1], ARGV[2]) end return 0'
)


class AsyncRedlock:
    """
    Makes locks over independent masters, an odd number of them: three or five.

    ``async with AsyncRedlock(urls) as redlock:`` closes its connections.

    Args:
        urls: ``redis://[USER:SECRET@]HOST:PORT`` of each master; ``rediss://`` is TLS.
        answer_ms: how long a master may take to answer; None: a twentieth of the lock's life, from
            50 ms to a second.

    Raises: BadArg: an address is none, or one stands twice.
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        answer_ms: int | None = None,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        found = list(map(master_at, urls))
        if not found or len({(one.host, one.port) for one in found}) < len(found):
            shown = ", ".join(map(str, found)) or "none"
            raise BadArg(f"found {shown}; allowed: the addresses of masters, each once")
        self._masters = [Master(one) for one in found]
        self._answer_ms = answer_ms
        self.clock: Clock = clock or SystemClock()
        self.dice = dice or random.Random()

    @property
    def majority(self) -> int:
        """Return how many masters a lock needs."""
        return len(self._masters) // 2 + 1

    def lock(self, name: str, *, ttl_ms: int = TTL_MS) -> AsyncRedlockLock:
        """
        Return the lock of this name, which is the key that it has on each master.

        ``ttl_ms``: its life, from each acquiring or extending on.
        """
        return AsyncRedlockLock(self, name, ttl_ms)

    async def ask_all(self, packed: bytes, ttl_ms: int) -> Sequence[Any]:
        """Return the answers of all masters to one request; of one without, an Unreachable."""
        longest_ms = min(max(ttl_ms // ANSWER_PART, ANSWER_MS_MIN), ANSWER_MS_MAX)
        limit_s = (self._answer_ms or longest_ms) / 1000
        return await asyncio.gather(*(one.ask(packed, limit_s) for one in self._masters))

    async def close(self) -> None:
        """Close the connections; locks end by their time."""
        await asyncio.gather(*(one.close() for one in self._masters))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncRedlockLock:
    """
    Is one lock of an :class:`AsyncRedlock`. Not reentrant, and not extended by itself.

    ``async with redlock.lock("report") as lock:`` raises NotHeld where somebody else has it.
    """

    def __init__(self, redlock: AsyncRedlock, name: str, ttl_ms: int) -> None:
        if ttl_ms <= 0:
            raise BadArg(f"ttl_ms: found {ttl_ms}; allowed: 1 or more")
        self.name = name
        self.ttl_ms = ttl_ms
        self._redlock = redlock
        self._value = ""
        self._until_s = 0.0

    @property
    def valid_ms(self) -> float:
        """Return for how long the lock is ours from now on, drift taken off; 0: it is not."""
        left_s = self._until_s - self._redlock.clock.monotonic() if self._value else 0.0
        return max(0.0, left_s * 1000)

    @property
    def held(self) -> bool:
        """Return whether the lock is ours, as far as its time tells."""
        return self.valid_ms > 0

    async def acquire(self, *, tries: int = TRIES, retry_ms: int = RETRY_MS) -> bool:
        """
        Acquire the lock; return whether it is ours.

        Raises: BadArg: it is held by this object; Unreachable: no majority of the masters answered.
        """
        if self.held:
            raise BadArg(f"lock {self.name} is held by this object already; it is not reentrant")
        redlock = self._redlock
        for number in range(max(1, tries)):
            if number:
                wait_s = retry_ms * redlock.dice.uniform(0.5, 1.5) / 1000
                await redlock.clock.sleep_until(redlock.clock.monotonic() + wait_s)
            replies = await self._try()
            if self.held:
                return True
        self._need_majority(replies)
        return False

    async def extend(self, ttl_ms: int | None = None) -> None:
        """
        Begin the lock's life anew, of ``ttl_ms`` from now on; None: as long as before.

        Raises: NotHeld: it was not ours any more, or may not be; until :attr:`valid_ms` it is.
        """
        wanted_ms = self.ttl_ms if ttl_ms is None else ttl_ms
        began_s = self._redlock.clock.monotonic()
        replies = await self._ours(EXTEND, wanted_ms)
        until_s = self._end_of(began_s, wanted_ms)
        if not self._value or replies.count(1) < self._redlock.majority:
            raise NotHeld(f"lock {self.name} could not be extended: {self._told(replies)}")
        if until_s <= self._redlock.clock.monotonic():
            raise NotHeld(f"lock {self.name} ended while it was extended")
        self.ttl_ms, self._until_s = wanted_ms, until_s

    async def release(self) -> None:
        """
        Release the lock at all masters, also those that did not answer when it was acquired.

        Raises: NotHeld: a majority did not have it any more: somebody else may have had it.
        """
        replies = await self._ours(RELEASE)
        had, self._value = bool(self._value), ""
        if not had or replies.count(1) < self._redlock.majority:
            raise NotHeld(f"lock {self.name} was not ours any more: {self._told(replies)}")

    async def _try(self) -> Sequence[Any]:
        self._value, self._until_s = secrets.token_hex(20), 0.0
        began_s = self._redlock.clock.monotonic()
        packed = pack("SET", self.name, self._value, "NX", "PX", self.ttl_ms)
        try:
            replies = await self._redlock.ask_all(packed, self.ttl_ms)
            if replies.count(b"OK") >= self._redlock.majority:
                self._until_s = self._end_of(began_s, self.ttl_ms)
        finally:  # Also where the caller was cancelled: some masters may have it.
            if not self.held:
                await asyncio.shield(self._ours(RELEASE))
                self._value = ""
        return replies

    def _end_of(self, began_s: float, ttl_ms: int) -> float:
        return began_s + (ttl_ms - ttl_ms * DRIFT_SHARE - DRIFT_MS) / 1000

    async def _ours(self, script: str, *args: int) -> Sequence[Any]:
        packed = pack("EVAL", script, 1, self.name, self._value, *args)
        return await self._redlock.ask_all(packed, self.ttl_ms)

    def _told(self, replies: Sequence[Any]) -> str:
        return "; ".join((f"{replies.count(1)} of {len(replies)} masters had it", *_away(replies)))

    def _need_majority(self, replies: Sequence[Any]) -> None:
        away = _away(replies)
        if len(replies) - len(away) < self._redlock.majority:
            raise Unreachable(f"no majority of the masters answered: {'; '.join(away)}")

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise NotHeld(f"lock {self.name}: somebody else has it")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await asyncio.shield(self.release())
        except NotHeld as second:
            if error is None:
                raise
            error.add_note(str(second))


def _away(replies: Sequence[Any]) -> list[str]:
    """Return the masters without an answer, each with why."""
    return [str(one) for one in replies if isinstance(one, Unreachable)]
