"""
Makes single writes that pass at a full store.

Such a write is sent as a script that begins with a removal, after which the store refuses nothing.
It is for the few small records that a node cannot do without (a format, a group commit's mark, the
vault's). Records that grow with the load must not go this way; keys of the queues are written by
scripts of their own, which begin so themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .connection import Arg
from .scripts.loader import GUARD

SMALL_WRITES = frozenset(("SET", "HSET", "HSETNX", "HINCRBY"))
_SOURCE = "redis.call('DEL', KEYS[2]) return redis.call(unpack(ARGV))"

Call = Callable[..., asyncio.Future[Any]]


def full_store_write(verb: Arg, key: Arg, *rest: Arg) -> tuple[Arg, ...]:
    """
    Return the words that make ``verb key rest…`` pass at a full store.

    A key that is never written is removed first.
    """
    return ("EVAL", _SOURCE, 2, key, f"{key!s}{GUARD}", verb, key, *rest)


def small_writes(call: Call) -> Call:
    """Wrap :meth:`Route.call` so that each of :data:`SMALL_WRITES` goes through at a full store."""

    def send(*words: Arg) -> asyncio.Future[Any]:
        return call(*(full_store_write(*words) if words[0] in SMALL_WRITES else words))

    return send
