"""
A queue's settings: they live in the store, as JSON in `{cluster}:queues`, and copied into each
shard's record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import msgspec

from tidewarden.errors import BadArg, Internal

from .partitioning import STRATEGIES

SHARDS_MAX = 256


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a queue behaves.

    ``durability``: what has to have a write before it is answered: the primary, replicas too, or
    the disk. ``urgent_ms``: how near a deadline makes a task urgent; ``urgent_max_ms``: how far
    that widens while late tasks wait and there is no time to lose for the living
    (docs/decisions/0013-urgent.md), 0 = not. ``late_share``, ``early_share``: every n-th task comes
    from that band, 0 = off. ``order``: ``bands``, or ``edf`` (earliest deadline alone).
    ``losses_max``: leases lost to disconnects before a task is buried, 0 = no limit. ``dedup_ms``:
    how long a finished id of the caller's is remembered, 0 = not at all. ``capacity``: tasks in any
    state that the queue holds at most, cut evenly over its shards, 0 = no limit. ``strategy``: how
    a put chooses its shard: ``hash``, ``round_robin``, or the dotted name of a function that the
    node's configuration allows. ``history``: ends that a failed task remembers, 0 = none.
    ``lane_limit``: tasks of one lane leased at once, 0 = any number; ``lane_rate``: tasks of one
    lane taken per second, exact to the thousandth, 0 = any number; ``lane_burst``: how many of
    those at once after a rest. ``shards`` and ``strategy`` are fixed while the queue holds tasks,
    as is ``order``; ``layout`` counts how often they were changed, ``version`` how often anything
    was. These two are ours alone.
    """

    shards: int = 1
    durability: Literal["one", "quorum", "fsync"] = "one"
    order: Literal["bands", "edf"] = "bands"
    lease_ms: int = 30_000
    urgent_ms: int = 60_000
    urgent_max_ms: int = 0
    late_share: int = 8
    early_share: int = 16
    dedup_ms: int = 60_000
    losses_max: int = 10
    backoff_cap_ms: int = 3_600_000
    capacity: int = 0
    lane_limit: int = 1
    lane_rate: float = 0
    lane_burst: int = 1
    strategy: str = "hash"
    history: int = 5
    layout: int = 0
    version: int = 0

    def shown(self) -> dict[str, Any]:
        """The settings that are the user's."""
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if name not in OURS
        }

    def shard_fields(self) -> list[str | int]:
        """What configure.lua writes into each shard's record, as name, value, …"""
        fields: list[str | int] = []
        for name in SHARD_FIELDS:
            value = getattr(self, name)
            if name == "capacity":
                value = -(-value // self.shards)
            elif name == "lane_rate":
                value = round(value * 1000)
            fields += (name, value)
        return fields


OWN_QUEUES = {"_locks": QueueSettings(shards=8, losses_max=0, dedup_ms=0, history=0)}
"""The settings of the system's queue that the locks are tasks of."""


def settings_from(queue: str, raw: bytes) -> QueueSettings:
    """
    The settings of a queue, of their stored form. Raises: Internal: they cannot be read; in how
    many shards it lies is not known.
    """
    try:
        return msgspec.json.decode(raw, type=QueueSettings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Internal(
            f"the settings of the queue {queue} cannot be read ({error}); nothing is done with it"
        ) from None


def settings_of_new(queue: str, system_queues: Mapping[str, QueueSettings]) -> QueueSettings:
    """
    The settings that a queue is made with.

    ``system_queues``: those of upper rooms' own, by the beginnings of their names.
    """
    for prefix, settings in (*OWN_QUEUES.items(), *system_queues.items()):
        if queue.startswith(prefix):
            return settings
    return QueueSettings()


OURS = ("layout", "version")
LANE_FIELDS = ("lane_limit", "lane_rate", "lane_burst")
# are changed while the queue is empty, and nobody can put into it
CUT_FIELDS = ("shards", "strategy", "order")
SHARD_FIELDS = (
    "version",
    "order",
    "lease_ms",
    "urgent_ms",
    "urgent_max_ms",
    "late_share",
    "early_share",
    "dedup_ms",
    "losses_max",
    "backoff_cap_ms",
    "history",
    "capacity",
    "lane_limit",
    "lane_rate",
    "lane_burst",
)
LANE_RATE_MAX = 100_000
DIGITS_MAX = 16
_RATE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3}0*)?")
LIMITS: dict[str, tuple[int, int]] = {
    "shards": (1, SHARDS_MAX),
    "lease_ms": (1, 30 * 86_400_000),
    "urgent_ms": (0, 366 * 86_400_000),
    "urgent_max_ms": (0, 366 * 86_400_000),
    "late_share": (0, 1000),
    "early_share": (0, 1000),
    "dedup_ms": (0, 30 * 86_400_000),
    "losses_max": (0, 65_535),
    "backoff_cap_ms": (1, 366 * 86_400_000),
    "capacity": (0, 10**12),
    "lane_limit": (0, 10**6),
    "lane_burst": (1, 10**6),
    "history": (0, 20),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "durability": ("one", "quorum", "fsync"),
    "order": ("bands", "edf"),
}


def changed(
    old: QueueSettings,
    values: dict[str, Any],
    *,
    refusal: Callable[[str], str],
    strategies: Collection[str] = STRATEGIES,
) -> QueueSettings:
    """
    ``old`` with ``values`` set. ``strategies``: those that this node knows;
    ``refusal(durability)``: why one cannot be had, or "".

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
