"""
Who reads something at the HTTP door right now: a stream of events, or a token that is waited for,
lasts as long as an hour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from aiohttp import web

READS = ("GET", "HEAD")
READS_BY_POST = ("/v1/tokens:read",)


class OpenRequests:
    """Requests under way that change nothing, each with its user (empty: nobody in particular)."""

    def __init__(self) -> None:
        # by the request's identity: it has no hash
        self._users: dict[int, tuple[web.Request, str]] = {}

    @contextmanager
    def by(self, request: web.Request, user: str) -> Iterator[None]:
        """Meanwhile ``request`` is being answered to ``user``."""
        if request.method not in READS and request.path not in READS_BY_POST:
            yield
            return
        self._users[id(request)] = request, user
        try:
            yield
        finally:
            del self._users[id(request)]

    def cut_off(self, users: Collection[str]) -> None:
        """
        Hang up on these users' requests: they were let in under other rights than they have now.
        """
        for request, user in list(self._users.values()):
            if user in users and request.transport is not None:
                request.transport.abort()
