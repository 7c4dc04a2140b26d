"""
Receives OTLP over HTTP as a collector does, and decodes it with OpenTelemetry's own protocol
buffers.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What came, decoded. ``url``: where it listens."""

    def __init__(self) -> None:
        self.url = ""
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.lock = threading.Lock()

    def took(self, path: str, body: bytes) -> None:
        with self.lock:
            if path == "/v1/traces":
                for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    self.resources.append(attributes(of_resource.resource.attributes))
                    for scope in of_resource.scope_spans:
                        self.spans += scope.spans
            elif path == "/v1/metrics":
                for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self.resources.append(attributes(metrics.resource.attributes))
                    for found in metrics.scope_metrics:
                        self.metrics.update({metric.name: metric for metric in found.metrics})

    def named(self, name: str) -> list[Any]:
        """The spans of this name that have come, in order."""
        with self.lock:
            return [span for span in self.spans if span.name == name]


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes as a mapping."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a free port."""
    got = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # http.server's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            got.took(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
