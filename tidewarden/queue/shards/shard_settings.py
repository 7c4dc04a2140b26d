"""Writes a queue's settings into its shards, each of which has a copy in its record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from tidewarden.queue.settings import QueueSettings
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg

from .shard import Shard

log = logging.getLogger("tidewarden.queue")

LANES_PIECE = 200  # lanes that one script looks at when a setting of theirs changes
NOT_EMPTY = b"NOTEMPTY"
OTHER_LANES = 2

Lease = tuple[int, int]
"""A lease number in the form of a shard's record: its ``view`` and its ``n``."""
Closing = Literal["layout", "same_layout", "last_layout", "unused_layout"]
RunAll = Callable[[Sequence[Shard], str, Sequence[Arg]], Awaitable[list[Any]]]


async def write(shards: Sequence[Shard], settings: QueueSettings, run: RunAll) -> int:
    """
    Bring the settings into force in every shard that has no newer ones.

    Returns the newest version that a shard has, or 0: none is newer.

    ``run`` runs a script on all of these shards.

    Raises: StoreDown: perhaps only some shards have the settings; Resharded: these are not the
    queue's shards any more.
    """
    replies = await run(shards, "queue.configure", settings.shard_fields())
    await look_at_lanes(
        [shard for shard, reply in zip(shards, replies, strict=True) if reply == OTHER_LANES]
    )
    if NOT_EMPTY in replies:
        log.warning(
            "a shard of %s keeps another order than %s until it is empty",
            shards[0].queue,
            settings.order,
        )
    return max((-reply for reply in replies if isinstance(reply, int) and reply < 0), default=0)


async def set_order(
    shards: Sequence[Shard], order: str, lease: Lease = (0, 0), *, final: bool = False
) -> bool:
    """
    Set the order of shards that take no puts yet; returns whether all of them are empty.

    Their leases have numbers above ``lease``. ``final``: see :meth:`Shard.run`. Raises: as
    :func:`write`.
    """
    args = ("order", order, *above(lease))
    replies = await asyncio.gather(
        *(shard.run("queue.configure", args, final=final) for shard in shards)
    )
    return NOT_EMPTY not in replies


async def last_lease(link: StoreClient, shards: Sequence[Shard]) -> Lease:
    """
    Return the highest of the last leases of shards that are closed.

    An id may lie in another shard soon. Raises: StoreDown.
    """
    rows = await asyncio.gather(
        *(link.call("HMGET", f"{shard.keys[0]}:shard", "view", "n") for shard in shards)
    )
    return max((_number(view), _number(n)) for view, n in rows)


def _number(raw: bytes | None) -> int:
    """Return a field of a record; one that is absent, or cannot be read, is 0."""
    return int(raw) if raw is not None and raw.isdigit() else 0


def above(lease: Lease) -> tuple[Arg, ...]:
    """Return the arguments of ``queue.configure`` for leases with numbers above this one."""
    return ("view", lease[0], "n", lease[1])


async def close(
    shards: Sequence[Shard],
    layout: int,
    how: Closing,
) -> bool:
    """
    Close shards to every node that does not know ``layout``.

    Returns whether that was done in all of them. For a ``layout`` they have to be empty and without
    schedules; ``same_layout``: the queue keeps the number of its shards, so they may have
    schedules; ``last_layout``: it is dropped, with the tasks that they hold; ``unused_layout``:
    likewise, and nobody may use them. Raises: as :func:`write`.
    """
    replies = await asyncio.gather(
        *(shard.run("queue.configure", (how, layout)) for shard in shards)
    )
    return NOT_EMPTY not in replies


async def look_at_lanes(shards: Sequence[Shard]) -> None:
    """
    Let lanes follow the new settings, in bounded pieces.

    Where this breaks off, the other lanes follow at their next event.
    """
    await asyncio.gather(*(_look_at_lanes(shard) for shard in shards))


async def _look_at_lanes(shard: Shard) -> None:
    for part in ("heads", "waiting"):
        cursor = b""
        while True:
            cursor = await shard.run("queue.lanes", (part, cursor, LANES_PIECE))
            if not cursor:
                break
