"""
A queue's settings live in the store, as JSON in `{cluster}:queues`.

They are copied into each shard's record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tidewarden.errors import BadArg, Internal

from .partitioning import STRATEGIES

SHARDS_MAX = 256
DAY_MS = 86_400_000
Stored = TypeVar("Stored")


@dataclass(frozen=True, slots=True)
class Rule:
    """
    Says what a setting may be, and who needs it.

    ``low``, ``high``: the whole numbers that it may be; None: it has choices, or a check of its
    own. ``in_shard``: each shard's record has a copy, which the scripts read; a shard that has none
    goes by the default.
    """

    low: int | None = None
    high: int | None = None
    in_shard: bool = True


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    Says how a queue behaves.

    This is the one table of settings: the limits of Q.CONFIG, what is written into each shard's
    record and the defaults of the scripts follow from it. ``layout``, ``version`` and ``tube`` are
    ours.
    """

    shards: Annotated[int, Rule(1, SHARDS_MAX, in_shard=False)] = 1
    """Fixed while the queue holds tasks, as ``strategy`` and ``order`` are."""
    durability: Annotated[Literal["one", "quorum", "fsync"], Rule(in_shard=False)] = "one"
    """
    What has to have a write before it is answered: the primary, replicas too, or the disk. A new
    queue on replicated embedded stores gets ``quorum``: see :func:`settings_of_new`.
    """
    order: Annotated[Literal["bands", "edf"], Rule()] = "bands"
    """``edf``: the earliest deadline alone."""
    lease_ms: Annotated[int, Rule(1, 30 * DAY_MS)] = 30_000
    urgent_ms: Annotated[int, Rule(0, 366 * DAY_MS)] = 60_000
    """How near a deadline makes a task urgent."""
    urgent_max_ms: Annotated[int, Rule(0, 366 * DAY_MS)] = 0
    """
    How far that widens while late tasks wait and there is no time to lose for the living
    (docs/decisions/0013-urgent.md), 0 = not.
    """
    late_share: Annotated[int, Rule(0, 1000)] = 8
    """Every n-th task comes from the late band, 0 = off."""
    early_share: Annotated[int, Rule(0, 1000)] = 16
    """Every n-th task comes from the band that is not urgent, 0 = off."""
    dedup_ms: Annotated[int, Rule(0, 30 * DAY_MS)] = 60_000
    """How long a finished id of the caller's is remembered, 0 = not at all."""
    losses_max: Annotated[int, Rule(0, 65_535)] = 10
    """Leases lost to disconnects before a task is buried, 0 = no limit."""
    attempts: Annotated[int, Rule(0, 65_535)] = 0
    """Attempts before a task is buried whose put names none, 0 = no limit."""
    backoff_ms: Annotated[int, Rule(0, 30 * DAY_MS)] = 0
    """The first pause after a failure where its put names none, doubled with each, 0 = none."""
    ttl_ms: Annotated[int, Rule(0, 366 * DAY_MS)] = 0
    """How long after it is due a task may be taken whose put names no TTL, 0 = for ever."""
    expire_ms: Annotated[int, Rule(0, 30 * DAY_MS)] = 0
    """
    How long after the last take, or wait for one, the queue ends with what it holds, 0 = never.
    """
    backoff_cap_ms: Annotated[int, Rule(1, 366 * DAY_MS)] = 3_600_000
    capacity: Annotated[int, Rule(0, 10**12)] = 0
    """Tasks in any state that the queue holds at most, cut evenly over its shards, 0 = no limit."""
    lane_limit: Annotated[int, Rule(0, 10**6)] = 1
    """Tasks of one lane leased at once, 0 = any number."""
    lane_rate: Annotated[float, Rule()] = 0
    """Tasks of one lane taken per second, exact to the thousandth, 0 = any number."""
    lane_burst: Annotated[int, Rule(1, 10**6)] = 1
    """How many of those at once after a rest."""
    strategy: Annotated[str, Rule(in_shard=False)] = "hash"
    """
    How a put chooses its shard: ``hash``, ``round_robin``, or the dotted name of a function that
    the node's configuration allows.
    """
    history: Annotated[int, Rule(0, 20)] = 5
    """Ends that a failed task remembers, 0 = none."""
    layout: Annotated[int, Rule(in_shard=False)] = 0
    """How often ``shards``, ``strategy`` or ``order`` was changed."""
    version: Annotated[int, Rule()] = 0
    """How often anything was changed."""
    tube: Annotated[int, Rule()] = 0
    """1: made at the beanstalkd door; what happens to each task is counted for its clients."""

    def shown(self) -> dict[str, Any]:
        """Return the settings that are the user's."""
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if name not in OURS
        }

    def shard_fields(self) -> list[str | int]:
        """Return what configure.lua writes into each shard's record, as name, value, …."""
        fields: list[str | int] = []
        for name in SHARD_FIELDS:
            value = getattr(self, name)
            if name == "capacity":
                value = -(-value // self.shards)
            elif name == "lane_rate":
                value = round(value * 1000)
            fields += (name, value)
        return fields


LOCKS_QUEUE = "_locks"
OWN_QUEUES = {LOCKS_QUEUE: QueueSettings(shards=8, losses_max=0, dedup_ms=0, history=0)}
"""The settings of the system's queue that the locks are tasks of."""


def settings_from(queue: str, raw: bytes) -> QueueSettings:
    """
    Read the settings of a queue from their stored form.

    Raises: Internal: they cannot be read; in how many shards the queue lies is not known.
    """
    said = f"the settings of the queue {queue} cannot be read (%s); nothing is done with it"
    return _read(raw, QueueSettings, said)


class Dropped(msgspec.Struct, frozen=True):
    """Is what `{cluster}:dropped` has of a queue that was dropped, as JSON."""

    layout: int
    """The shards are closed to everybody who does not know it."""
    shards: int
    at_ms: int
    """When it was dropped, by the store's clock."""
    cleared: bool = False
    """Whether nothing of what it held is left."""
    free: bool = False
    """Whether a put or a take makes a new queue of that name: it ended because nobody used it."""


def dropped_from(queue: str, raw: bytes) -> Dropped:
    """Read what is stored of a dropped queue. Raises: Internal: it cannot be read."""
    return _read(raw, Dropped, f"what is stored of {queue}, which was dropped, cannot be read (%s)")


def _read(raw: bytes, kind: type[Stored], said: str) -> Stored:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Internal(said % error) from None


def settings_of_new(
    queue: str,
    system_queues: Mapping[str, QueueSettings],
    durability: Literal["one", "quorum"] = "one",
) -> QueueSettings:
    """
    Return the settings that a queue is made with.

    ``system_queues``: the settings of upper rooms' queues, by the beginnings of their names.
    ``durability``: of a user's queue, on the store that is there.
    """
    for prefix, settings in (*OWN_QUEUES.items(), *system_queues.items()):
        if queue.startswith(prefix):
            return settings
    return QueueSettings(durability=durability)


OURS = ("layout", "version", "tube")
# are changed while the queue is empty, and nobody can put into it
CUT_FIELDS = ("shards", "strategy", "order")
LANE_RATE_MAX = 100_000
DIGITS_MAX = 16
_RATE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3}0*)?")

_HINTS = {
    name: get_args(hint)
    for name, hint in get_type_hints(QueueSettings, include_extras=True).items()
    if name in QueueSettings.__struct_fields__
}
SHARD_FIELDS = tuple(name for name, (_, rule) in _HINTS.items() if rule.in_shard)
LANE_FIELDS = tuple(name for name in SHARD_FIELDS if name.startswith("lane_"))
LIMITS: dict[str, tuple[int, int]] = {
    name: (rule.low, rule.high) for name, (_, rule) in _HINTS.items() if rule.low is not None
}
CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, (kind, _) in _HINTS.items() if get_origin(kind) is Literal
}


def lua_defaults() -> str:
    """Write the fields of a Lua table: what each setting is in a shard whose record lacks it."""
    pairs = iter(QueueSettings().shard_fields())
    values = ((name, next(pairs)) for name in pairs)
    return " ".join(
        f"{name} = {value}," if isinstance(value, int) else f"{name} = '{value}',"
        for name, value in values
    )


def changed(
    old: QueueSettings,
    values: dict[str, Any],
    *,
    refusal: Callable[[str], str],
    strategies: Collection[str] = STRATEGIES,
) -> QueueSettings:
    """
    Return ``old`` with ``values`` set.

    ``strategies``: those that this node knows; ``refusal(durability)``: why a durability cannot be
    had, or "".

    Raises: BadArg: an unknown name or a value that is not allowed; names both and what is.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in LIMITS:
            low, high = LIMITS[name]
            text = str(value)
            if not text.isdecimal() or len(text) > DIGITS_MAX or not low <= int(text) <= high:
                raise BadArg(f"{name} is {text[:40]!r}; allowed is {low} to {high}")
            found[name] = int(text)
        elif name == "lane_rate":
            if _RATE.fullmatch(str(value)) is None or float(value) > LANE_RATE_MAX:
                raise BadArg(
                    f"{name} is {value!r}; allowed is 0 to {LANE_RATE_MAX} a second, with at most"
                    " three decimals"
                )
            found[name] = float(value)
        elif name in CHOICES:
            if value not in CHOICES[name]:
                raise BadArg(f"{name} is {value!r}; allowed are {', '.join(CHOICES[name])}")
            found[name] = value
        elif name == "strategy":
            if value not in strategies:
                raise BadArg(
                    f"strategy is {str(value)[:100]!r}; allowed at this node are"
                    f" {', '.join(strategies)}; functions of your own are listed in its"
                    " configuration ([queues] strategies)"
                )
            found[name] = value
        else:
            names = ", ".join((*LIMITS, *CHOICES, "lane_rate", "strategy"))
            raise BadArg(f"there is no queue setting {name!r}; there are {names}")
    if why := refusal(found.get("durability", "one")):
        raise BadArg(why)
    return msgspec.structs.replace(old, **found)
