"""Makes Prometheus's own histograms of the buckets that the parts of a node counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from tidewarden.histograms import KINDS, STATS, series_of
from tidewarden.server.stats_merge import add_up


def histograms_of(stats: Iterable[Mapping[str, Any]]) -> list[HistogramMetricFamily]:
    """Return the families of all parts' stats, with those of one name added up."""
    told = add_up(*(one[STATS] for one in stats if STATS in one))
    families = []
    for name, kind in KINDS.items():
        if series := told.get(name):
            family = HistogramMetricFamily(f"tidewarden_{name}", kind.help, labels=kind.labels)
            bounds = [*map(floatToGoString, kind.bounds), "+Inf"]
            for labels, counts, total in series_of(series, kind.bounds):
                buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
                family.add_metric(labels, buckets, total)
            families.append(family)
    return families
