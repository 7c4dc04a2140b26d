"""What one node's refreshers have done, and what holds them back, as figures for ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .pool import Pool
from .tools import Counts


def figures(counts: Counts, pools: Mapping[str, Pool]) -> dict[str, Any]:
    """By name; those of providers by their name within. See docs/providers.md."""
    return {
        "refreshes": dict(counts.refreshes),
        "in_flight": {name: pool.in_flight for name, pool in pools.items()},
        "late": dict(counts.late),
        "spares": counts.spares,
        "lost_rotations": counts.lost_rotations,
        "replayed": counts.replayed,
        "adopted": counts.adopted,
        "levelled": {name: pool.leveller.levelled for name, pool in pools.items()},
        "quarantines": dict(counts.quarantines),
        "held": {name: int(pool.watch.held) for name, pool in pools.items()},
        "rate": {name: pool.watch.gate.view.rate for name, pool in pools.items() if pool.watch.gate.view.rate},
    }
