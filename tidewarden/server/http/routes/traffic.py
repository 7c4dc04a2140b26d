"""Shows who sends what: ``/v1/traffic`` counts requests, and ``/v1/tap`` has them as they pass."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Full, NotFound
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.params import parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic
from tidewarden.server.traffic.report import TrafficQuery, TrafficReport
from tidewarden.server.traffic.tap import MS_MAX, ONE_IN_MAX, Tap, TapFilter

STALL_S = 10.0
"""How long a reader that does not read keeps its tap, once all buffers between are full."""


class TapQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says which requests are shown, and how long."""

    user: Annotated[str, Meta(max_length=200, description="Of this user alone.")] | None = None
    queue: Annotated[str, Meta(max_length=200, description="About this name alone.")] | None = None
    one_in: Annotated[int, Meta(ge=1, le=ONE_IN_MAX, description="Every so many-th.")] = 1
    ms: Annotated[int, Meta(ge=1, le=MS_MAX, description="How long, milliseconds.")] = 10_000


class TrafficRoutes:
    """Answers ``/v1/traffic`` and ``/v1/tap``."""

    def __init__(self, traffic: ClusterTraffic, clock: Clock, polls: LongPolls) -> None:
        self._traffic = traffic
        self._clock = clock
        self._polls = polls

    async def report(self, request: web.Request) -> web.Response:
        """Say who sends most, over all nodes or one."""
        found = await self._traffic.report(parameters_of(request, TrafficQuery))
        return respond(msgspec.to_builtins(found))

    async def tap(self, request: web.Request) -> web.StreamResponse:
        """
        Stream requests that this node answers, as server-sent events, without their payloads.

        The last event, ``end``, has ``matched``, ``shown`` and ``dropped``.
        """
        query = parameters_of(request, TapQuery)
        taps, news = self._traffic.own.recorder.taps, asyncio.Event()
        with self._polls.streaming(request, self._polls.limits.taps):
            opened = taps.begin(TapFilter(query.user, query.queue, query.one_in), news.set)
            try:
                return await self._stream(request, opened, news, query.ms / 1000)
            finally:
                taps.end(opened)

    async def _stream(
        self, request: web.Request, opened: Tap, news: asyncio.Event, seconds: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        over = asyncio.ensure_future(sleep(self._clock, seconds))
        over.add_done_callback(lambda _: news.set())
        shown = 0
        try:
            await response.prepare(request)
            await _send(response, b": requests that this node answers\n\n")
            while not over.done():
                await news.wait()
                news.clear()
                while lines := opened.take(100):
                    shown += len(lines)
                    await _send(response, b"".join(b"data: %b\n\n" % one.encode() for one in lines))
            end = {"matched": opened.matched, "shown": shown, "dropped": opened.dropped}
            await _send(response, b"event: end\ndata: %b\n\n" % msgspec.json.encode(end))
        except ConnectionError:  # the reader has gone, or might as well have
            if request.transport is not None:
                request.transport.abort()
        finally:
            over.cancel()
        return response


async def _send(response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("it does not read") from None


ROUTES = (
    Route(
        "GET",
        "/v1/traffic",
        "R.TRAFFIC",
        TrafficRoutes.report,
        query=TrafficQuery,
        answer=TrafficReport,
        errors=(NotFound,),
    ),
    Route(
        "GET",
        "/v1/tap",
        "R.TAP",
        TrafficRoutes.tap,
        head=False,
        query=TapQuery,
        answer=bytes,
        media="text/event-stream",
        errors=(Full,),
    ),
)
