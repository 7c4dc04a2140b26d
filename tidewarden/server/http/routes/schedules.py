"""Serves schedules."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Exists, Full, NotFound
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.outlook import WITHIN_MS_MAX
from tidewarden.scheduler.schedules import KEY_BYTES_MAX, NEXT_MAX, NEXT_SHOWN, Schedules
from tidewarden.scheduler.trigger import DAY_MS, Spec
from tidewarden.server.http.params import NoOptions, body_of, check_path, parameters_of
from tidewarden.server.http.payloads import bytes_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Check, RightsOf, Route, whole
from tidewarden.server.http.task_fields import UnixMs
from tidewarden.server.verbs.queue import queue_name

TRIGGERS = ("cron", "every_ms", "at_ms")
NUMBERS = ("priority", "delay_ms", "within_ms", "lease_ms", "attempts", "backoff_ms", "ttl_ms")

NextMs: TypeAlias = Annotated[
    int, Meta(description="Its next tick, Unix milliseconds.", examples=[1_795_258_800_000])
]
Name: TypeAlias = Annotated[str, Meta(description="A schedule's name.", examples=["nightly"])]
QueueName: TypeAlias = Annotated[
    str, Meta(description="Where its tasks are put.", examples=["reports"])
]
Catchup: TypeAlias = Annotated[
    Literal["none", "one", "all"], Meta(description="Which of missed ticks are made up for.")
]
Cron: TypeAlias = Annotated[
    str, Meta(description="When it ticks, as cron has it.", examples=["0 3 * * *"])
]


class PutSchedule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    Describes a schedule: its trigger, its queue and its task.

    The trigger is one of ``cron``, ``every_ms`` and ``at_ms``. Of ``payload`` and
    ``payload_base64`` there is at most one.
    """

    queue: QueueName
    cron: Cron | UnsetType = UNSET
    every_ms: Annotated[int, Meta(ge=10, description="Milliseconds between ticks.")] | UnsetType = (
        UNSET
    )
    at_ms: UnixMs | UnsetType = UNSET
    zone: (
        Annotated[str, Meta(description="The time zone of `cron`.", examples=["Europe/Berlin"])]
        | UnsetType
    ) = UNSET
    catchup: Catchup = "one"
    payload: Annotated[str, Meta(description="As text.", examples=["run"])] | UnsetType = UNSET
    payload_base64: Annotated[bytes, Meta(description="As base64.")] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    delay_ms: Annotated[int, Meta(description="From the tick.")] | UnsetType = UNSET
    within_ms: Annotated[int, Meta(description="From the tick.")] | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    backoff_ms: int | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    lane: str | UnsetType = UNSET

    def spec(self) -> Spec:
        """Return when the schedule ticks. Raises: BadArg: it has no trigger, or two."""
        given = [name for name in TRIGGERS if getattr(self, name) is not UNSET]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise BadArg(f"A schedule has one of {', '.join(TRIGGERS)}: found {found}.")
        if self.cron is not UNSET:
            zone = "UTC" if self.zone is UNSET else self.zone
            return Spec.cron(self.cron, zone, self.catchup)
        if self.zone is not UNSET:
            raise BadArg(f"zone belongs to cron, not to {given[0]}.")
        if self.every_ms is not UNSET:
            return Spec.every(self.every_ms, self.catchup)
        assert self.at_ms is not UNSET
        return Spec.at(self.at_ms, self.catchup)

    def task(self) -> TaskSpec:
        """Return the task that the schedule puts. Raises: BadArg: it has two payloads."""
        given = {name: getattr(self, name) for name in (*NUMBERS, "lane")}
        return TaskSpec(
            bytes_of("payload", self.payload, self.payload_base64, UNSET) or b"",
            **{name: value for name, value in given.items() if value is not UNSET},
        )


class LastRun(msgspec.Struct, kw_only=True):
    """Tells of the latest task that a schedule has put, and what has become of it."""

    id: Annotated[str, Meta(description="The task's id.", examples=["nightly:1795258800000"])]
    how: Annotated[
        Literal["tick", "hand"], Meta(description="Whether a tick put it, or somebody ran it.")
    ]
    due_ms: Annotated[
        int, Meta(description="Its tick, or when it was run by hand, Unix milliseconds.")
    ]
    put_ms: Annotated[int, Meta(description="When it was put, Unix milliseconds.")]
    state: Annotated[
        Literal["delayed", "ready", "waiting", "leased", "buried", "done", "deleted", "unknown"],
        Meta(description="Of the task. `unknown`: it has gone, and its end was not noted."),
    ]
    attempts: Annotated[int, Meta(description="So far, of a task that is there.")]
    reason: Annotated[str, Meta(description="Of its latest failure, or why it was buried.")]
    ended_ms: (
        Annotated[int, Meta(description="When it was done, deleted or buried, Unix milliseconds.")]
        | UnsetType
    ) = UNSET


class ShownSchedule(msgspec.Struct, kw_only=True):
    """
    Shows a schedule as it stands.

    A schedule that this version cannot read has its name, its queue, ``next_ms`` and ``state``.
    """

    name: Name
    queue: QueueName
    next_ms: NextMs
    state: Annotated[
        Literal["active", "paused", "stuck", "unreadable"],
        Meta(description="`stuck`: its next tick cannot be computed."),
    ]
    kind: Literal["cron", "every", "at"] | UnsetType = UNSET
    cron: Cron | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    every_ms: int | UnsetType = UNSET
    anchor_ms: (
        Annotated[int, Meta(description="From when on the ticks count, Unix milliseconds.")]
        | UnsetType
    ) = UNSET
    at_ms: UnixMs | UnsetType = UNSET
    catchup: Catchup | UnsetType = UNSET
    payload: (
        Annotated[str, Meta(description="Its first bytes, as text.", examples=["run"])] | UnsetType
    ) = UNSET
    payload_base64: (
        Annotated[bytes, Meta(description="The same where they are no UTF-8.")] | UnsetType
    ) = UNSET
    payload_bytes: Annotated[int, Meta(description="Length of the whole payload.")] | UnsetType = (
        UNSET
    )
    priority: int | UnsetType = UNSET
    delay_ms: int | UnsetType = UNSET
    within_ms: int | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    backoff_ms: int | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    last: (
        Annotated[LastRun, Meta(description="Its latest run; absent: it has not run.")] | UnsetType
    ) = UNSET
    next: (
        Annotated[
            list[int],
            Meta(description="Of one schedule: its next ticks, none while it is paused or stuck."),
        ]
        | UnsetType
    ) = UNSET


class ScheduleOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Has the parameters of one schedule."""

    count: Annotated[
        int, Meta(ge=1, le=NEXT_MAX, description="How many of its next ticks are told.")
    ] = NEXT_SHOWN


class OutlookOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Has the parameters of what schedules will put."""

    ms: Annotated[
        int, Meta(ge=1, le=WITHIN_MS_MAX, description="How far ahead, in milliseconds.")
    ] = DAY_MS


class RunSchedule(msgspec.Struct, forbid_unknown_fields=True):
    """Says which run this is."""

    id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=KEY_BYTES_MAX,
                description="An id of yours: a request that is sent again with it puts no second"
                " task.",
                examples=["deploy-42"],
            ),
        ]
        | UnsetType
    ) = UNSET


class ScheduleTick(msgspec.Struct):
    """Says when a schedule will put a task."""

    name: Name
    queue: QueueName
    at_ms: UnixMs


class ScheduleRate(msgspec.Struct):
    """Says how often a schedule ticks that does so more often than each half hour."""

    name: Name
    queue: QueueName
    next_ms: NextMs
    per_day: Annotated[int, Meta(description="Ticks of a day on which it ticks.")]


class Upcoming(msgspec.Struct):
    """Tells what schedules will put, as far as the caller may see them."""

    from_ms: UnixMs
    until_ms: Annotated[int, Meta(description="Up to when it is complete, Unix milliseconds.")]
    ticks: Annotated[list[ScheduleTick], Meta(description="In their order.")]
    rates: list[ScheduleRate]
    resting: Annotated[int, Meta(description="Schedules that are paused, stuck or unreadable.")]
    more: Annotated[bool, Meta(description="Whether there are others, after `until_ms`.")]


class ScheduleList(msgspec.Struct):
    """Lists schedules by name."""

    schedules: list[ShownSchedule]


class NextTick(msgspec.Struct):
    """Says when a schedule ticks next."""

    next_ms: NextMs


class ScheduleDeleted(msgspec.Struct):
    """Says that the schedule is gone."""

    deleted: bool = True


class SchedulePaused(msgspec.Struct):
    """Says that the schedule rests."""

    paused: bool = True


class ScheduleRan(msgspec.Struct):
    """Says under which id the task was put."""

    id: str


class ScheduleRoutes:
    """
    Answers ``/v1/schedules``.

    A schedule's name stands in the path, its own ``/`` as it is or as ``%2F``.
    """

    def __init__(self, schedules: Schedules, check: Check, rights: RightsOf) -> None:
        self._schedules = schedules
        self._check = check
        self._rights = rights

    async def list(self, request: web.Request) -> web.Response:
        """Return the schedules that the caller may see."""
        parameters_of(request, NoOptions)
        rights = self._rights(request)
        found = [
            one for one in await self._schedules.list() if rights.allow("schedule", one["name"])
        ]
        return respond({"schedules": [_shown(one) for one in found]})

    async def get(self, request: web.Request) -> web.Response:
        """Return one schedule, with its next ticks."""
        check_path(request)
        asked = parameters_of(request, ScheduleOptions)
        return respond(_shown(await self._schedules.get(request.match_info["name"], asked.count)))

    async def outlook(self, request: web.Request) -> web.Response:
        """Return what schedules that the caller may see will put."""
        asked, rights = parameters_of(request, OutlookOptions), self._rights(request)
        seen = partial(rights.allow, "schedule")
        return respond(await self._schedules.outlook(asked.ms, seen))

    async def put(self, request: web.Request) -> web.Response:
        """
        Store or replace a schedule (its trigger, its queue and its task), and return the next tick.
        """
        name, asked = _name(request), await body_of(request, PutSchedule)
        queue = queue_name(asked.queue.encode("utf-8", "surrogatepass"))
        self._check(request, "PUT /v1/schedules/{name}", (("put",), queue))
        next_ms = await whole(self._schedules.put(name, asked.spec(), queue, asked.task()))
        return respond({"next_ms": next_ms})

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a schedule; tasks that it has put stay."""
        name = _name(request)
        if not await whole(self._schedules.delete(name)):
            raise NotFound(f"There is no schedule {name[:200]!r}.")
        return respond({"deleted": True})

    async def pause(self, request: web.Request) -> web.Response:
        """Pause a schedule: it puts nothing from now on."""
        await whole(self._schedules.pause(_name(request)))
        return respond({"paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        """Resume a schedule with the tick that it stood at."""
        return respond({"next_ms": await whole(self._schedules.resume(_name(request)))})

    async def run(self, request: web.Request) -> web.Response:
        """Put the schedule's task now, once; its ticks stay as they are."""
        name, asked = _name(request), await body_of(request, RunSchedule)
        key = "" if asked.id is UNSET else asked.id
        return respond({"id": await whole(self._schedules.run(name, key))})


def _name(request: web.Request) -> str:
    check_path(request)
    parameters_of(request, NoOptions)
    return request.match_info["name"]


def _shown(schedule: dict[str, Any]) -> dict[str, Any]:
    """Return a schedule of ``S.LIST`` by the names that PUT takes."""
    found = {
        ("cron" if name == "expr" else name): value
        for name, value in schedule.items()
        if name != "payload"
    }
    payload = schedule.get("payload")
    if not isinstance(payload, bytes):
        return found
    try:
        return found | {"payload": payload.decode()}
    except UnicodeDecodeError:
        return found | {"payload_base64": base64.b64encode(payload).decode()}


SCHEDULE = "/v1/schedules/{name}"
ROUTES = (
    Route("GET", "/v1/schedules", "S.LIST", ScheduleRoutes.list, answer=ScheduleList, errors=STORE),
    Route(
        "GET",
        "/v1/schedules:next",
        "S.NEXT",
        ScheduleRoutes.outlook,
        query=OutlookOptions,
        answer=Upcoming,
        errors=STORE,
    ),
    Route(
        "POST",
        f"{SCHEDULE}/pause",
        "S.PAUSE",
        ScheduleRoutes.pause,
        answer=SchedulePaused,
        errors=(NotFound, *STORE),
    ),
    Route(
        "POST",
        f"{SCHEDULE}/resume",
        "S.RESUME",
        ScheduleRoutes.resume,
        answer=NextTick,
        errors=(NotFound, *STORE),
    ),
    Route(
        "POST",
        f"{SCHEDULE}/run",
        "S.RUN",
        ScheduleRoutes.run,
        body=RunSchedule,
        answer=ScheduleRan,
        errors=(BadArg, Full, NotFound, *STORE),
    ),
    Route(
        "GET",
        SCHEDULE,
        "S.GET",
        ScheduleRoutes.get,
        query=ScheduleOptions,
        answer=ShownSchedule,
        errors=(NotFound, *STORE),
    ),
    # It needs ``put`` for the queue, too, which the body names.
    Route(
        "PUT",
        SCHEDULE,
        "S.PAUSE",
        ScheduleRoutes.put,
        body=PutSchedule,
        example={
            "cron": "0 3 * * *",
            "zone": "Europe/Berlin",
            "queue": "reports",
            "payload": "run",
        },
        answer=NextTick,
        errors=(Exists, *STORE),
        audit="S.PUT",
    ),
    Route(
        "DELETE",
        SCHEDULE,
        "S.DELETE",
        ScheduleRoutes.delete,
        answer=ScheduleDeleted,
        errors=(NotFound, *STORE),
    ),
)
