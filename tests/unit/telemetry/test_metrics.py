"""Prometheus's text becomes OTLP's metrics: sums, gauges, and buckets that count only their own."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum
from opentelemetry.sdk.resources import Resource

from tidewarden.telemetry.metrics import metrics_of

TEXT = """\
# HELP tw_puts_total Puts
# TYPE tw_puts_total counter
tw_puts_total{queue="a"} 3
tw_puts_total{queue="b"} 4
# HELP tw_late_seconds Lateness
# TYPE tw_late_seconds histogram
tw_late_seconds_bucket{queue="a",le="0.1"} 2
tw_late_seconds_bucket{queue="a",le="1.0"} 5
tw_late_seconds_bucket{queue="a",le="+Inf"} 6
tw_late_seconds_sum{queue="a"} 7.5
tw_late_seconds_count{queue="a"} 6
# HELP tw_up Up
# TYPE tw_up gauge
tw_up 1
# HELP tw_none None
# TYPE tw_none gauge
"""


def test_all_kinds() -> None:
    data = metrics_of(TEXT, Resource({}), 1, 2)
    found = {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}
    assert set(found) == {"tw_puts_total", "tw_late_seconds", "tw_up"}
    puts, late, up = found["tw_puts_total"], found["tw_late_seconds"], found["tw_up"]
    assert isinstance(puts.data, Sum)
    assert puts.data.is_monotonic
    assert {one.attributes["queue"]: one.value for one in puts.data.data_points} == {  # type: ignore[index]
        "a": 3,
        "b": 4,
    }
    assert isinstance(late.data, Histogram)
    (point,) = late.data.data_points
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([0.1, 1.0], [2, 3, 1])
    assert (point.count, point.sum, point.attributes, late.unit) == (6, 7.5, {"queue": "a"}, "s")
    assert isinstance(up.data, Gauge)
    assert up.data.data_points[0].value == 1
