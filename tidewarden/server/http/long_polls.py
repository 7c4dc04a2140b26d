"""Bounds the requests that wait at the HTTP door, so that the others still find a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from aiohttp import web

from tidewarden.errors import Full

from .caller import user_of
from .route import WAITS

SHARE = 0.75  # of the door's connections, that may wait
USER_SHARE = 0.5  # of the door's connections, that may wait for one of several users


class LongPolls:
    """
    Counts the requests that wait, by user.

    ``connections_max``: of the door. ``several``: whether there may be more users than one.
    """

    def __init__(self, connections_max: int, *, several: bool) -> None:
        self._connections_max = connections_max
        self.most = max(1, int(connections_max * SHARE))
        self.most_of_user = max(1, int(connections_max * USER_SHARE)) if several else self.most
        self._waiting: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting.total()

    def of(self, request: web.Request, wait_ms: int) -> AbstractContextManager[None]:
        """Likewise as :meth:`wait`, for who asks; the time is noted as that of a wait."""
        request[WAITS] = wait_ms > 0
        return self.wait(user_of(request), wait_ms)

    @contextmanager
    def wait(self, user: str, wait_ms: int) -> Iterator[None]:
        """
        Meanwhile a request waits; one that does not wait is not counted.

        Raises: Full: as many as may wait already, or as many of this user's.
        """
        if not wait_ms:
            yield
            return
        whose = ""
        if self.waiting < self.most:
            most, whose = self.most_of_user, f" of {user}"
            full = self._waiting[user] >= most
        else:
            most, full = self.most, True
        if full:
            raise Full(
                f"{most} requests{whose} wait at this node's HTTP port already, of"
                f" {self._connections_max} connections (limits.http_connections_max). Ask without"
                " wait_ms, or try another node."
            )
        self._waiting[user] += 1
        try:
            yield
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user]
