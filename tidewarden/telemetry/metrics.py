"""
Sends the figures of ``/metrics`` by OTLP over HTTP, under the same names and labels.

They are read from the text that Prometheus gets, so that there is one list of figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

CUMULATIVE = AggregationTemporality.CUMULATIVE
SCOPE = InstrumentationScope("tidewarden")


def metrics_of(text: str, resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    """
    Turn Prometheus's text into OTLP's metrics.

    Args:
        began_ns: since when counters count, unix nanoseconds.
        now_ns: when the figures were read.
    """
    found = [
        metric
        for family in text_string_to_metric_families(text)
        if (metric := _metric(family, began_ns, now_ns)) is not None
    ]
    scope = ScopeMetrics(SCOPE, found, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, began_ns: int, now_ns: int) -> Metric | None:
    if not family.samples:
        return None
    name, unit = family.name, "s" if family.name.endswith("_seconds") else ""
    data: Sum | Gauge | Histogram
    if family.type == "counter":
        samples = [one for one in family.samples if one.name.endswith("_total")]
        data = Sum(_numbers(samples, began_ns, now_ns), CUMULATIVE, is_monotonic=True)
        name += "_total"
    elif family.type == "histogram":
        data = Histogram(list(_histograms(family.samples, began_ns, now_ns)), CUMULATIVE)
    else:
        data = Gauge(_numbers(family.samples, began_ns, now_ns))
    return Metric(name, family.documentation, unit, data)


def _numbers(samples: Iterable[Sample], began_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [NumberDataPoint(dict(one.labels), began_ns, now_ns, one.value) for one in samples]


def _histograms(
    samples: Sequence[Sample], began_ns: int, now_ns: int
) -> Iterable[HistogramDataPoint]:
    """Prometheus's buckets include those below, OTLP's do not."""
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = defaultdict(dict)
    for one in samples:
        kept = {name: value for name, value in one.labels.items() if name != "le"}
        what = one.labels.get("le") or one.name.rpartition("_")[2]
        series[tuple(sorted(kept.items()))][what] = one.value
    for labels, found in series.items():
        yield _histogram(dict(labels), found, began_ns, now_ns)


def _histogram(
    labels: Mapping[str, str], found: Mapping[str, float], began_ns: int, now_ns: int
) -> HistogramDataPoint:
    bounds = sorted(float(what) for what in found if what not in ("sum", "count", "+Inf"))
    below = {float(what): value for what, value in found.items() if what not in ("sum", "count")}
    counts, last = [], 0
    for bound in (*bounds, float("inf")):
        counts.append(int(below[bound]) - last)
        last = int(below[bound])
    return HistogramDataPoint(
        labels,
        began_ns,
        now_ns,
        count=last,
        sum=found.get("sum", 0.0),
        bucket_counts=counts,
        explicit_bounds=bounds,
        min=None,  # type: ignore[arg-type]  # nobody knows, and the field is optional in OTLP
        max=None,  # type: ignore[arg-type]
    )
