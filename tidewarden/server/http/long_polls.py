"""Bounds the requests that wait or stream at the HTTP door, each user's and all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tidewarden.user_limits import SharedLimit, UserLimits

from .caller import USER
from .route import WAITS


class LongPolls:
    """Counts the requests that wait, which hold a connection each."""

    def __init__(self, limits: UserLimits) -> None:
        self.limits = limits

    @property
    def waiting(self) -> int:
        """Return how many requests wait or stream."""
        return self.limits.http_waits.used

    @contextmanager
    def of(self, request: web.Request, wait_ms: int, many: int = 1) -> Iterator[None]:
        """
        Count a request as one that waits, for ``many`` things, within the block.

        Without ``wait_ms`` it is not counted. Raises: Full: as many requests wait as may, or as
        many of this user's.
        """
        request[WAITS] = wait_ms > 0
        if not wait_ms:
            yield
            return
        user = request.get(USER, "")
        with self.limits.http_waits.held(user), self.limits.waits.held(user, many):
            yield

    @contextmanager
    def streaming(self, request: web.Request, kind: SharedLimit) -> Iterator[None]:
        """Count a request that streams, within the block. Raises: Full."""
        user = request.get(USER, "")
        with self.limits.http_waits.held(user), kind.held(user):
            yield
