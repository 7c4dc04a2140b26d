"""
Decides which shard of a queue a task lies in.

It is the number that its id carries, else the hash of the id; strategies choose that number.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from tidewarden.errors import BadArg, ConfigError, Denied, Internal

from .task import ID_MAX

S = TypeVar("S")
Strategy: TypeAlias = Callable[[str, bytes, int], int]
STRATEGIES = ("hash", "round_robin")
MARK = "~"  # an id that ends in `~3` lies in shard 3 of a queue that has one
DIGITS_MAX = 3


def carry(task_id: str, shard: int) -> str:
    """
    Return the id that lies in ``shard`` (0 to 255) of a queue of more shards than that.

    :func:`shard_of` finds it there.
    """
    return f"{task_id}{MARK}{shard}"


def carried(task_id: str, shards: int) -> int | None:
    """
    Return the shard that an id names, in a queue of ``shards``.

    Such an id ends in ``~n``, n in plain decimals and below ``shards``.

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
    Return the shard of an id in a queue of ``shards``, whatever the queue's strategy.

    It is what the id carries, else ``crc32(id) % shards``.

    It depends on nothing else, so that every verb of every node finds a task by its id alone.
    """
    if shards == 1:
        return 0
    named = carried(task_id, shards)
    return zlib.crc32(task_id.encode()) % shards if named is None else named


def shard_for(shards: Sequence[S], task_id: str) -> S:
    """Return the one of a queue's shards that an id lies in."""
    return shards[0] if len(shards) == 1 else shards[shard_of(task_id, len(shards))]


def in_lane(task_id: str, lane: str, shards: int, *, moved: bool = False) -> str:
    """
    Return the id under which a task with a lane is put.

    All tasks of a lane lie in one shard of ``shards``, ``crc32(lane) % shards``, because they can
    only be counted there; where there are several, the id carries it. ``moved``: one that lies
    there anyhow stays as it is, and one that names another shard gets a second number.

    Raises: BadArg: the id names another shard, or is too long with this one.
    """
    if shards == 1:
        return task_id
    shard = zlib.crc32(lane.encode()) % shards
    named = carried(task_id, shards)
    if named == shard or (moved and shard_of(task_id, shards) == shard):
        return task_id
    if named is not None and not moved:
        raise BadArg(
            f"the id {task_id[:60]!r} names shard {named}, but its lane lies in shard {shard}"
        )
    placed = carry(task_id, shard)
    if len(placed.encode()) > ID_MAX:
        raise BadArg(
            f"the id {placed[:60]!r}… is longer than {ID_MAX} bytes with the shard of its lane"
        )
    return placed


class Partitioner(Protocol):
    """Chooses the shard of each put of a queue; the id says it afterwards."""

    def __call__(self, task_id: str, payload: bytes, *, own: bool) -> str:
        """
        Return the id under which a task is put. ``own``: we have made it.

        Raises: Denied, Internal, BadArg.
        """


class RoundRobin:
    """
    Chooses the shards in turn, for ids that we make.

    An id of the caller's lies where it says, so that putting it again finds it.

    Each node takes turns by itself, and begins anywhere, so that many that start together do not
    walk in step.
    """

    def __init__(self, shards: int) -> None:
        first = secrets.randbelow(shards)
        self._turns = itertools.cycle([*range(first, shards), *range(first)])

    def __call__(self, task_id: str, payload: bytes, *, own: bool) -> str:
        return carry(task_id, next(self._turns)) if own else task_id


class Custom:
    """
    Chooses shards by a user's function of the id, the payload and the number of shards.

    An id that names its shard is there already.
    """

    def __init__(self, name: str, shards: int, function: Strategy | None) -> None:
        self._name = name
        self._shards = shards
        self._function = function

    def __call__(self, task_id: str, payload: bytes, *, own: bool) -> str:
        if self._function is None:
            raise Denied(
                f"the strategy {self._name} is not among [queues] strategies of this node's"
                " configuration"
            )
        if not own and carried(task_id, self._shards) is not None:
            return task_id
        try:
            shard = self._function(task_id, payload, self._shards)
        except Exception as error:
            raise Internal(
                f"the strategy {self._name} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(shard, int) or not 0 <= shard < self._shards:
            raise Internal(
                f"the strategy {self._name} answered {shard!r:.60}; allowed is 0 to"
                f" {self._shards - 1}"
            )
        placed = carry(task_id, shard)
        if len(placed.encode()) > ID_MAX:
            raise BadArg(f"the id {placed[:60]!r}… is longer than {ID_MAX} bytes with its shard")
        return placed


def partitioner_of(strategy: str, shards: int, known: Mapping[str, Strategy]) -> Partitioner | None:
    """Return the partitioner of a queue; None: the hash chooses, or there is only one shard."""
    if shards == 1 or strategy == "hash":
        return None
    return (
        RoundRobin(shards)
        if strategy == "round_robin"
        else Custom(strategy, shards, known.get(strategy))
    )


def load_strategies(names: Iterable[str]) -> dict[str, Strategy]:
    """
    Import the functions of these dotted names.

    They are ``package.module:function`` or ``package.module.function``.

    Raises: ConfigError: every one that is not there or cannot be called.
    """
    found: dict[str, Strategy] = {}
    problems: list[str] = []
    for name in names:
        module, _, attribute = name.rpartition(":" if ":" in name else ".")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever a module of the user's raises while it is imported
            problems.append(f"queues.strategies: {name}: {type(error).__name__}: {error}")
            continue
        if not callable(function) or inspect.iscoroutinefunction(function):
            problems.append(
                f"queues.strategies: {name}: found {function!r:.60}; allowed: a function that is"
                " not async"
            )
        else:
            found[name] = function
    if problems:
        raise ConfigError(problems)
    return found


def prefix_of(cluster: str, queue: str, shard: int) -> str:
    """Return the beginning of every key of a shard, with its hash tag."""
    return f"{{{cluster}:{queue}:{shard}}}"


def split_prefix(prefix: str) -> tuple[str, str, int]:
    """Return cluster, queue and shard number of a prefix."""
    inner = prefix[1:-1]
    cluster, _, rest = inner.partition(":")
    queue, _, index = rest.rpartition(":")
    return cluster, queue, int(index)
