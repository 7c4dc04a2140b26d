"""Routes about the node itself: health for load balancers, leader, metrics, status."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from tidewarden.clock import Clock
from tidewarden.config.rights import Rights
from tidewarden.errors import Error
from tidewarden.server.http import metrics
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route
from tidewarden.server.services import Services

log = logging.getLogger("tidewarden.server")

Stats = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]


OF_NODE = {"pid", "store_pid", "last_gap_ms"}
"""Numbers of a status that are no figures of the cluster."""


def fine() -> str:
    """No complaint."""
    return ""


class NodeRoutes:
    """
    Answers ``/health/*``, ``/leader``, ``/metrics`` and ``/v1/status``.

    Args:
        services: what metrics and status are of.
        clock: for pauses while metrics are rendered.
        rights: those of who asks.
        alive: why ``/health/live`` should say 503, or ``""``: asked per request, must not block.
        ready: the same for ``/health/ready``.
        warning: what somebody should look at all the same; shown there.
        stats: for ``/metrics``, a part's name and its ``stats``; queues and tokens are asked
            anyway.
    """

    def __init__(
        self,
        services: Services,
        clock: Clock,
        rights: Callable[[web.Request], Rights],
        *,
        alive: Callable[[], str],
        ready: Callable[[], str],
        warning: Callable[[], str],
        stats: Mapping[str, Stats],
    ) -> None:
        self._queues = services.queues
        self._tokens = services.tokens
        self._cluster = services.cluster
        self._clock = clock
        self._rights = rights
        self._alive = alive
        self._ready = ready
        self._warning = warning
        self._stats = stats

    async def live(self, request: web.Request) -> web.Response:
        """Whether the process should go on, or be started again."""
        return self._health(self._alive())

    async def ready(self, request: web.Request) -> web.Response:
        """Whether the node should be sent requests."""
        return self._health(self._ready())

    def _health(self, complaint: str) -> web.Response:
        found: dict[str, Any] = {"ok": not complaint, "reason": complaint}
        if warning := self._warning():
            found["warning"] = warning
        return respond(found, 503 if complaint else 200)

    async def leader(self, request: web.Request) -> web.Response:
        """Whether this node leads; 503: it does not."""
        status = self._cluster.status()
        found = {
            "node": status.get("node"),
            "role": status.get("role"),
            "leader": status.get("leader"),
        }
        return respond(found, 200 if status.get("role") == "leader" else 503)

    async def status(self, request: web.Request) -> web.Response:
        """What this node knows of itself and its cluster."""
        return respond(dict(self._cluster.status()))

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        samples: list[metrics.Sample] = [("cluster", {}, _numbers(self._cluster.status()))]
        for part, ask in self._stats.items():
            samples.append((part, {}, await _asked(ask)))
        # The node's own figures matter most just when the store is away.
        async for found in metrics.of_store(self._queues, self._tokens, self._rights(request)):
            samples += found
        return web.Response(
            body=await metrics.render(samples, self._clock),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


async def _asked(ask: Stats) -> Mapping[str, Any]:
    try:
        found = ask()
        return await found if inspect.isawaitable(found) else found
    except Error as error:
        log.debug("metrics without a part: %s", error)
        return {}


def _numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in status.items()
        if isinstance(value, int | float) and name not in OF_NODE
    }
    return {
        **found,
        "leads": int(status.get("role") == "leader"),
        "members": len(status.get("members") or ()),
    }


ROUTES = (
    Route("GET", "/health/live", "", NodeRoutes.live),
    Route("GET", "/health/ready", "", NodeRoutes.ready),
    Route("GET", "/leader", "", NodeRoutes.leader),
    Route("GET", "/metrics", "Q.LIST", NodeRoutes.metrics),
    Route("GET", "/v1/status", "R.STATUS", NodeRoutes.status),
)
