"""
Remembers the logins to the console that were ended before their time, on all nodes.

A logout writes the login's id into the store, where it stays until the login would have ended by
itself. A node that is asked by a login looks there at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import Error

log = logging.getLogger("tidewarden.server")

LOOK_S = 1.0
ANSWER_S = 1.0
"""How long a store that does not answer is waited for; after that the known logins count."""
KEPT_MAX = 10_000
"""The most ended logins that are kept; those that end by themselves first are forgotten."""

Call = Callable[..., Awaitable[Any]]
"""Sends one command to the store; returns its reply."""


class EndedLogins:
    """
    Ends logins, and tells which have been ended.

    Args:
        clock: by which logins end.
        call: to the store; None: they are ended in this process alone.
        cluster: whose keys they are.
    """

    def __init__(self, clock: Clock, call: Call | None = None, cluster: str = "") -> None:
        self._clock = clock
        self._call = call
        self._key = f"{{{cluster}}}:ended-logins"
        self._ended: dict[str, int] = {}
        self._look_at = 0.0
        self._turn = asyncio.Lock()

    async def end(self, login: str, ends_s: int) -> bool:
        """End a login that would last until ``ends_s``; False: at this node alone, for now."""
        self._keep({**self._ended, login: ends_s})
        if self._call is None:
            return True
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._call("ZADD", self._key, str(ends_s), f"{ends_s}.{login}")
                await self._call("ZREMRANGEBYSCORE", self._key, "-inf", str(self._now_s()))
                await self._call("ZREMRANGEBYRANK", self._key, "0", str(-KEPT_MAX - 1))
        except (Error, TimeoutError) as error:
            log.warning("a logout from the console is known to this node alone: %r", error)
            return False
        return True

    async def has(self, login: str) -> bool:
        """Return whether a login was ended, as far as is known."""
        if login not in self._ended and self._call is not None:
            async with self._turn:
                if self._clock.monotonic() >= self._look_at:
                    await self._look(self._call)
        return login in self._ended

    async def _look(self, call: Call) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await call("ZRANGEBYSCORE", self._key, str(self._now_s()), "+inf")
        except (Error, TimeoutError) as error:
            log.debug("which logins were ended is not known anew: %r", error)
        else:
            pairs = (bytes(one).decode().partition(".") for one in found)
            self._keep({**self._ended, **{login: int(ends_s) for ends_s, _, login in pairs}})
        self._look_at = self._clock.monotonic() + LOOK_S

    def _keep(self, ended: dict[str, int]) -> None:
        living = [item for item in ended.items() if item[1] > self._now_s()]
        self._ended = dict(sorted(living, key=lambda item: item[1])[-KEPT_MAX:])

    def _now_s(self) -> int:
        return self._clock.unix_ms() // 1000
