"""
Imports redis-py, for every module that uses it, without what it has for OpenTelemetry.

Wherever OpenTelemetry is installed, redis-py imports its SDK, for figures that nobody asks it for
here. That takes a twentieth of a second; and a program that has its API imported is taken for one
that traces (:mod:`tidewarden.tracing`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _as_if_absent(package: str) -> Iterator[None]:
    """Have imports of a package fail in this block, unless it was imported before."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # as Python's documentation has it
    try:
        yield
    finally:
        del sys.modules[package]


with _as_if_absent("opentelemetry"):
    from redis.asyncio import Redis
    from redis.asyncio.connection import Connection, UnixDomainSocketConnection, parse_url
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        BusyLoadingError,
        MaxConnectionsError,
        RedisError,
        ResponseError,
    )
    from redis.exceptions import ConnectionError as RedisConnectionError

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BusyLoadingError",
    "Connection",
    "MaxConnectionsError",
    "NoBackoff",
    "Redis",
    "RedisConnectionError",
    "RedisError",
    "ResponseError",
    "Retry",
    "UnixDomainSocketConnection",
    "parse_url",
]
