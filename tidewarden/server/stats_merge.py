"""Adds up the figures of a node's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewarden.histograms import STATS


def add_up(*stats: Mapping[str, Any]) -> dict[str, Any]:
    """
    Merge mappings: numbers are added, and so are mappings of numbers.

    Of anything else the first is kept.
    """
    total: dict[str, Any] = {}
    for one in stats:
        for name, value in one.items():
            known = total.get(name)
            if isinstance(value, Mapping):
                total[name] = add_up(known if isinstance(known, Mapping) else {}, value)
            elif isinstance(value, int | float) and isinstance(known, int | float):
                total[name] = known + value
            else:
                total.setdefault(name, value)
    return total


def lasting(stats: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the figures that remain of a process that has ended.

    Those are its counters (``…_total``) and its histograms, which must not go back.
    """
    return {
        name: value for name, value in stats.items() if name.endswith("_total") or name == STATS
    }
