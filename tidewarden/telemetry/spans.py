"""Sends the spans of this process by OTLP over HTTP."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

QUEUE_MAX = 2048  # spans that wait to be sent; those above are dropped
SEND_S = 10.0


def start_spans(resource: Resource, endpoint: str, sample_share: float) -> TracerProvider:
    """
    Trace this process from now on, and return what its end has to shut down.

    Of traces that begin here ``sample_share`` are followed. Spans are sent by a thread of the
    library in batches; while the receiver is away they are dropped, and nothing waits for it.
    """
    provider = TracerProvider(
        resource=resource,
        sampler=ParentBased(TraceIdRatioBased(sample_share)),
        shutdown_on_exit=False,  # that waits for half a minute
    )
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=SEND_S)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX, export_timeout_millis=SEND_S * 1000)
    )
    trace.set_tracer_provider(provider)
    return provider
