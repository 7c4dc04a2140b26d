"""The routes of what the console shows: overview, alerts, history and forecast."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from tidewarden.clock import Clock, in_turns
from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, Error, NoAuth, NotFound, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.task import check_name
from tidewarden.server.http.params import NoOptions, check_path, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route
from tidewarden.tokens import Tokens

from .answers import AlertList, Forecast, HistoryAnswer, Overview
from .history import POINTS, STEP_MS, History, add_series
from .overview import LOOK, OverviewPage, alerts_of
from .recorder import COUNTERS, GAUGES, OWN_COUNTERS, OWN_GAUGES, FigureRecorder

FORECAST_STEP_MS = 15 * 60_000
FORECAST_STEPS = 24
FORECAST_AGE_S = 10.0
FORECAST_PROVIDERS_MAX = 200
FORECAST_AT_ONCE = 8
SUMS_KEPT = 32
"""Answers about sums that are kept until the next step: one for each set of rights."""


class DataRoutes:
    """
    Answers ``/v1/overview``, ``/v1/alerts``, ``/v1/history`` and ``/v1/forecast``.

    What costs something is worked out once for all requests, and each is shown what its rights
    allow.
    """

    def __init__(
        self,
        cluster: str,
        recorder: FigureRecorder,
        queues: Queues,
        tokens: Tokens | None,
        clock: Clock,
        rights: Callable[[web.Request], Rights],
    ) -> None:
        self._recorder = recorder
        self._queues = queues
        self._tokens = tokens
        self._clock = clock
        self._rights = rights
        self._page = OverviewPage(cluster, recorder.node, recorder, clock)
        self._forecast: Forecast | None = None
        self._forecast_at = float("-inf")
        self._forecasting = asyncio.Lock()
        self._sums: dict[frozenset[str], HistoryAnswer] = {}
        self._sums_slot = -1

    async def overview(self, request: web.Request) -> web.Response:
        """Return whether the cluster is healthy, what is wrong, since when, what can be done."""
        parameters_of(request, NoOptions)
        return respond(await self._page.of(self._rights(request)))

    async def alerts(self, request: web.Request) -> web.Response:
        """Return the alerts of the alert rules that fire."""
        parameters_of(request, NoOptions)
        found = alerts_of(self._recorder.alerts.firing, self._rights(request))
        return respond(AlertList(self._clock.unix_ms(), found))

    async def history(self, request: web.Request) -> web.Response:
        """Return the last hour: all queues that the asker may see, and this node."""
        parameters_of(request, NoOptions)
        self._recorder.watched()
        rights, recorder = self._rights(request), self._recorder
        if recorder.slot != self._sums_slot:
            self._sums_slot = recorder.slot
            self._sums.clear()
        seen = frozenset(
            name for name in recorder.queues if not name.startswith("_") and rights.see(name)
        )
        key = frozenset("*") if rights.allow_every("stats") else seen
        found = self._sums.get(key)
        if found is None:
            found = await self._sum(seen, every=rights.allow_every("stats"))
            if len(self._sums) < SUMS_KEPT and self._sums_slot == recorder.slot:
                self._sums[key] = found
        return respond(found)

    async def _sum(self, seen: frozenset[str], *, every: bool) -> HistoryAnswer:
        recorder = self._recorder
        if every:
            answer = _answer(recorder.total, recorder.slot)
        else:
            answer = _answer(History(), recorder.slot)
            histories = [recorder.queues[name] for name in seen]
            slot, series = recorder.slot, dict[str, list[float | None]]()
            async for history in in_turns(histories, 1):
                add_series(series, _answer(history, slot).series)
            answer.series = series
            answer.series.pop("oldest_ready_ms", None)  # the sum of these is nothing's age
        own = recorder.own.series(recorder.slot, OWN_GAUGES, OWN_COUNTERS)
        answer.series = {**answer.series, **own}
        return answer

    async def queue_history(self, request: web.Request) -> web.Response:
        """Return the last hour of one queue; where many are, from when it was asked for."""
        check_path(request)
        parameters_of(request, NoOptions)
        queue = check_name(request.match_info["queue"])
        self._recorder.watched()
        history = self._recorder.queues.get(queue)
        if history is None:
            if not await self._queues.catalog.exists(queue):
                raise NotFound(f"There is no queue {queue}.")
            history = History()
        self._recorder.choice.ask(queue, self._clock.monotonic())
        return respond(_answer(history, self._recorder.slot))

    async def forecast(self, request: web.Request) -> web.Response:
        """Return how many accounts fall due within each quarter of the next six hours."""
        parameters_of(request, NoOptions)
        whole = await self._forecast_now()
        seen = self._rights(request).accounts(*LOOK)
        shown = {name: due for name, due in whole.providers.items() if seen.allow(name)}
        return respond(msgspec.structs.replace(whole, providers=shown))

    async def _forecast_now(self) -> Forecast:
        async with self._forecasting:
            now_s = self._clock.monotonic()
            if self._forecast is None or now_s - self._forecast_at >= FORECAST_AGE_S:
                self._forecast = await self._read_forecast()
                self._forecast_at = now_s
            return self._forecast

    async def _read_forecast(self) -> Forecast:
        tokens = self._tokens
        names = [] if tokens is None else tokens.providers()
        left, found = iter(names[:FORECAST_PROVIDERS_MAX]), dict[str, list[int]]()
        mark: dict[str, int] = {}  # of a copy that stands in for the primary

        async def read() -> None:
            assert tokens is not None
            for name in left:
                due, told = await tokens.due(name, FORECAST_STEP_MS, FORECAST_STEPS)
                found[name] = list(due)
                mark.update(told)

        from_ms = self._clock.unix_ms()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(FORECAST_AT_ONCE, len(names))):
                    group.create_task(read())
        except ExceptionGroup as failed:
            raise _first(failed) from None
        shown = {name: found[name] for name in names if name in found}
        return Forecast(FORECAST_STEP_MS, from_ms, shown, len(names) - len(shown), **mark)


def _answer(history: History, slot: int) -> HistoryAnswer:
    first_ms = (slot - POINTS + 1) * STEP_MS
    return HistoryAnswer(STEP_MS, first_ms, history.series(slot, GAUGES, COUNTERS))


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    """Return an error of ours that is among them, else all."""
    ours = failed.subgroup(Error)
    found: Exception = failed if ours is None else ours
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


ROUTES = (
    Route(
        "GET",
        "/v1/overview",
        "R.STATUS",
        DataRoutes.overview,
        answer=Overview,
        errors=(BadArg,),
    ),
    Route("GET", "/v1/alerts", "R.STATUS", DataRoutes.alerts, answer=AlertList, errors=(BadArg,)),
    Route(
        "GET", "/v1/history", "Q.LIST", DataRoutes.history, answer=HistoryAnswer, errors=(BadArg,)
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/history",
        "Q.STATS",
        DataRoutes.queue_history,
        answer=HistoryAnswer,
        errors=(BadArg, NotFound, StoreDown),
    ),
    Route(
        "GET",
        "/v1/forecast",
        "T.STATS",
        DataRoutes.forecast,
        answer=Forecast,
        errors=(BadArg, NoAuth, StoreDown),
    ),
)
