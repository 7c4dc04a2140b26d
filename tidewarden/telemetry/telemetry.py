"""Starts and ends what a node sends to a receiver of OpenTelemetry (OTLP over HTTP)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tidewarden import __version__
from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Config
from tidewarden.side_thread import in_side_thread

from .metrics import metrics_of
from .spans import SEND_S, start_spans

log = logging.getLogger("tidewarden.telemetry")

END_S = 3.0  # how long the end of a process waits for the last spans

Text = Callable[[], Awaitable[bytes]]
"""What ``/metrics`` answers somebody who may see all of it."""


def resource_of(config: Config) -> Resource:
    """Return what is said of this node with everything it sends."""
    return Resource.create(
        {
            "service.name": "tidewarden",
            "service.version": __version__,
            "service.namespace": config.cluster.name,
            "service.instance.id": config.node.name,
        }
    )


@contextlib.asynccontextmanager
async def telemetry(config: Config, clock: Clock, text: Text | None) -> AsyncIterator[None]:
    """
    Send spans and metrics until the block is left; ``text`` None: no metrics of this process.

    The exporters read the standard variables too: OTEL_EXPORTER_OTLP_HEADERS for credentials,
    OTEL_EXPORTER_OTLP_CERTIFICATE for whom to trust.
    """
    settings, resource = config.otel, resource_of(config)
    # They log each failure with a trace of the stack; what is worth saying is said below.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    endpoint = settings.endpoint.rstrip("/")
    provider = start_spans(resource, endpoint, settings.sample_share) if settings.traces else None
    sending: asyncio.Task[None] | None = None
    if settings.metrics and text is not None:
        sender = MetricSender(resource, endpoint, clock, settings.metrics_interval_s, text)
        sending = asyncio.create_task(sender.run(), name="OTLP metrics")
    log.info("telemetry goes to %s", endpoint)
    try:
        yield
    finally:
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if provider is not None:
            await _end(provider)


async def _end(provider: TracerProvider) -> None:
    """Send the spans that are left, as far as the receiver takes them in time."""
    try:
        async with asyncio.timeout(END_S):
            # it goes on until all are sent or given up: no call of the library's keeps a limit
            await in_side_thread(provider.shutdown, "the last spans")
    except TimeoutError:
        log.warning("the last spans are lost: the receiver does not take them in %g s", END_S)


class MetricSender:
    """Sends the figures of ``/metrics`` each ``interval_s`` seconds; a receiver may be away."""

    def __init__(
        self, resource: Resource, endpoint: str, clock: Clock, interval_s: float, text: Text
    ) -> None:
        self._resource = resource
        self._exporter = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=SEND_S)
        self._clock = clock
        self._interval_s = interval_s
        self._text = text
        self._began_ns = time.time_ns()
        self._failing = False

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await sleep(self._clock, self._interval_s)
            try:
                text = (await self._text()).decode()
                sent = await in_side_thread(functools.partial(self._send, text), "OTLP metrics")
            except Exception:
                log.exception("metrics were not sent for a reason of ours")
                continue
            if sent == self._failing:
                self._failing = not sent
                if sent:
                    log.info("the receiver of metrics answers again")
                else:
                    log.warning("the receiver of metrics does not take them; tried again")

    def _send(self, text: str) -> bool:
        data = metrics_of(text, self._resource, self._began_ns, time.time_ns())
        done = self._exporter.export(data, timeout_millis=SEND_S * 1000)
        return done is MetricExportResult.SUCCESS
