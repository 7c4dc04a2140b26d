"""Keeps the requests since MULTI, until EXEC runs them or DISCARD drops them."""

from __future__ import annotations

from tidewarden.errors import TooBig
from tidewarden.server.resp.parser import Request

from . import encoder

REQUESTS_MAX = 1000
BYTES_MAX = 16 << 20


class Transaction:
    """
    Queues the requests of a MULTI.

    ``failed``: one of them was refused, so that EXEC runs none.
    """

    __slots__ = ("_bytes", "failed", "requests")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.failed = False
        self._bytes = 0

    def add(self, request: Request) -> bytes:
        """
        Keep ``request`` for later, and return the reply to it.

        Raises: TooBig: there are too many requests, or they are too long.
        """
        self._bytes += sum(map(len, request))
        if len(self.requests) >= REQUESTS_MAX or self._bytes > BYTES_MAX:
            raise TooBig(f"A MULTI may hold {REQUESTS_MAX} requests and {BYTES_MAX} bytes.")
        self.requests.append(request)
        return encoder.QUEUED
