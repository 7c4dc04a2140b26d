"""
Traces puts, handlers and requests with OpenTelemetry, where the program uses it.

Nothing here imports OpenTelemetry: a program that traces has imported its API already, and for all
others these functions do nothing. Names and attributes are those of OpenTelemetry's semantic
conventions for messaging; contexts travel as W3C traceparents
(https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

SYSTEM = "tidewarden"
API = "opentelemetry.trace"


def traced() -> bool:
    """Tell whether this program has OpenTelemetry's API in use."""
    return API in sys.modules


@cache
def _tracer() -> Any:
    """
    Return the API's tracer, which works for whichever provider is set later.

    To ask the API for it at each span was a twentieth of what a refresh cost.
    """
    return sys.modules[API].get_tracer(SYSTEM)


def traceparent_of(span: Any) -> str:
    """Return the traceparent of a span; empty: it is of no trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@contextmanager
def put_span(queue: str, count: int = 1) -> Iterator[str]:
    """
    Trace a put, and yield the traceparent for its tasks.

    Empty: there is no trace; an old node need not know of any then.
    """
    if not traced():
        yield ""
        return
    api: Any = sys.modules[API]
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
    }
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    with _tracer().start_as_current_span(
        f"put {queue}", kind=api.SpanKind.PRODUCER, attributes=attributes
    ) as span:
        yield traceparent_of(span)


@contextmanager
def handler_span(queue: str, task_id: str, attempt: int, traceparent: str) -> Iterator[None]:
    """
    Trace the work on a task; an exception that leaves the block is noted and raised on.

    The first attempt belongs to the trace of the put. A later one, which may come days after,
    begins a trace of its own that links to the put's.
    """
    if not traced():
        yield
        return
    api: Any = sys.modules[API]
    from opentelemetry.context import Context  # what has loaded the API has loaded this

    parent, links = Context(), []
    if (put := _span_context(api, traceparent)) is not None:
        if attempt <= 1:
            parent = api.set_span_in_context(api.NonRecordingSpan(put), parent)
        else:
            links = [api.Link(put)]
    with _tracer().start_as_current_span(
        f"process {queue}",
        context=parent,
        kind=api.SpanKind.CONSUMER,
        links=links,
        attributes={
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "messaging.message.id": task_id,
            "tidewarden.attempt": attempt,
        },
    ):
        yield


@contextmanager
def client_span(name: str, attributes: Mapping[str, str | int]) -> Iterator[Any]:
    """Trace a request to another program; yields the span, or None where nothing is traced."""
    if not traced():
        yield None
        return
    api: Any = sys.modules[API]
    with _tracer().start_as_current_span(
        name, kind=api.SpanKind.CLIENT, attributes=dict(attributes)
    ) as span:
        yield span


def failed(span: Any, reason: str, attributes: Mapping[str, str | int] | None = None) -> None:
    """Note on a span of :func:`client_span` why its request failed."""
    if span is None:
        return
    api: Any = sys.modules[API]
    span.set_status(api.StatusCode.ERROR, reason)
    if attributes:
        span.set_attributes(dict(attributes))


def _span_context(api: Any, traceparent: str) -> Any:
    """Return the context that a node has answered; None: there is none."""
    try:
        version, trace, span, flags = traceparent.split("-")
        found = api.SpanContext(
            int(trace, 16),
            int(span, 16),
            is_remote=True,
            trace_flags=api.TraceFlags(int(flags, 16)),
        )
    except ValueError:
        return None
    return found if found.is_valid and version == "00" else None
