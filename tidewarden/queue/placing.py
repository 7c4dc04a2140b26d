"""Which shard of a queue a task lies in: the number that its id carries, else the hash of the id."""

from __future__ import annotations

import zlib

from tidewarden.errors import BadArg
from tidewarden.queue.task import ID_MAX

MARK = "~"  # an id that ends in `~3` lies in shard 3 of a queue that has one
DIGITS_MAX = 3


def carry(task_id: str, shard: int) -> str:
    """The id that lies in ``shard`` (0 to 255) of a queue of more shards than that; :func:`shard_of` finds it there."""
    return f"{task_id}{MARK}{shard}"


def carried(task_id: str, shards: int) -> int | None:
    """
    The shard that an id names, in a queue of ``shards``: it ends in ``~n``, n in plain decimals and below ``shards``.

    None: it names none, and lies where its hash says.
    """
    if MARK not in task_id:
        return None
    digits = task_id.rpartition(MARK)[2]
    if not 1 <= len(digits) <= DIGITS_MAX or not digits.isascii() or not digits.isdigit():
        return None
    if digits[0] == "0" and digits != "0":
        return None
    shard = int(digits)
    return shard if shard < shards else None


def shard_of(task_id: str, shards: int) -> int:
    """
    The shard of an id in a queue of ``shards``, whatever the queue's strategy: what the id carries, else ``crc32(id) % shards``.

    It depends on nothing else, so that every verb of every node finds a task by its id alone.
    """
    if shards == 1:
        return 0
    named = carried(task_id, shards)
    return zlib.crc32(task_id.encode()) % shards if named is None else named


def in_lane(task_id: str, lane: str, shards: int, *, moved: bool = False) -> str:
    """
    The id under which a task with a lane is put: all of a lane lie in one shard of ``shards``, ``crc32(lane) % shards``, for
    only there can they be counted, and where that is one of several, the id carries it. ``moved``: one that lies there anyhow
    stays as it is, and one that names another shard gets a second number.

    Raises: BadArg: the id names another shard, or is too long with this one.
    """
    if shards == 1:
        return task_id
    shard = zlib.crc32(lane.encode()) % shards
    named = carried(task_id, shards)
    if named == shard or (moved and shard_of(task_id, shards) == shard):
        return task_id
    if named is not None and not moved:
        raise BadArg(f"the id {task_id[:60]!r} names shard {named}, but its lane lies in shard {shard}")
    placed = carry(task_id, shard)
    if len(placed.encode()) > ID_MAX:
        raise BadArg(f"the id {placed[:60]!r}… is longer than {ID_MAX} bytes with the shard of its lane")
    return placed
