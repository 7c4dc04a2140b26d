"""The routes of schedules of the HTTP door."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Exists, NotFound
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec
from tidewarden.server.http.params import (
    check_path,
    fields_of,
    integer_field,
    object_of,
    query_of,
    text_field,
)
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Check, RightsOf, Route, whole
from tidewarden.server.verbs.queue import queue_name

TRIGGERS = ("cron", "every_ms", "at_ms")
NUMBERS = ("priority", "delay_ms", "within_ms", "lease_ms", "attempts", "backoff_ms", "ttl_ms")
NAMES = {
    "CRON": "cron",
    "EVERY": "every_ms",
    "AT": "at_ms",
    "TZ": "zone",
    "CATCHUP": "catchup",
    "LANE": "lane",
} | {name.removesuffix("_ms").upper(): name for name in NUMBERS}
"""What the verbs call the fields, which their errors name."""
_VERBS_WORD = re.compile(rf"\b({'|'.join(NAMES)})\b")

UnixMs: TypeAlias = Annotated[
    int, Meta(description="Unix time in milliseconds.", examples=[1_795_258_800_000])
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
    A schedule: its trigger (one of ``cron``, ``every_ms`` and ``at_ms``), its queue and its task.

    Of ``payload`` and ``payload_base64`` there is at most one.
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


class ShownSchedule(msgspec.Struct, kw_only=True):
    """
    A schedule as it stands.

    Of one that this version cannot read there are the name, the queue, ``next_ms`` and ``state``.
    """

    name: Name
    queue: QueueName
    next_ms: Annotated[
        int,
        Meta(description="Its next tick, Unix milliseconds.", examples=[1_795_258_800_000]),
    ]
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


class ScheduleList(msgspec.Struct):
    """Schedules, by name."""

    schedules: list[ShownSchedule]


class NextTick(msgspec.Struct):
    """Says when a schedule ticks next."""

    next_ms: UnixMs


class ScheduleDeleted(msgspec.Struct):
    """Says that the schedule is gone."""

    deleted: bool = True


class SchedulePaused(msgspec.Struct):
    """Says that the schedule rests."""

    paused: bool = True


class ScheduleRoutes:
    """
    ``/v1/schedules``. A schedule's name stands in the path, its own ``/`` as it is or as ``%2F``.
    """

    def __init__(self, schedules: Schedules, check: Check, rights: RightsOf) -> None:
        self._schedules = schedules
        self._check = check
        self._rights = rights

    async def list(self, request: web.Request) -> web.Response:
        """The schedules that whoever asks may see."""
        query_of(request, ())
        rights = self._rights(request)
        found = [
            one for one in await self._schedules.list() if rights.allow("schedule", one["name"])
        ]
        return respond({"schedules": [_shown(one) for one in found]})

    async def get(self, request: web.Request) -> web.Response:
        """One schedule."""
        name = _name(request)
        for one in await self._schedules.list():
            if one["name"] == name:
                return respond(_shown(one))
        raise NotFound(f"There is no schedule {name[:200]!r}.")

    async def put(self, request: web.Request) -> web.Response:
        """
        Store or replace a schedule (its trigger, its queue and its task), and return the next tick.
        """
        name = _name(request)
        fields = object_of(await request.read(), "A schedule", fields_of(PutSchedule))
        if "queue" not in fields:
            raise BadArg("queue is missing: where its tasks are put.")
        queue = queue_name(text_field(fields, "queue").encode("utf-8", "surrogatepass"))
        self._check(request, "PUT /v1/schedules/{name}", (("put",), queue))
        try:
            spec, task = _spec(fields), _task(fields)
            next_ms = await whole(self._schedules.put(name, spec, queue, task))
        except BadArg as error:
            raise BadArg(_VERBS_WORD.sub(lambda word: NAMES[word[1]], str(error))) from None
        return respond({"next_ms": next_ms})

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a schedule; tasks that it has put stay."""
        name = _name(request)
        if not await whole(self._schedules.delete(name)):
            raise NotFound(f"There is no schedule {name[:200]!r}.")
        return respond({"deleted": True})

    async def pause(self, request: web.Request) -> web.Response:
        """Put nothing from now on."""
        await whole(self._schedules.pause(_name(request)))
        return respond({"paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on with the tick that it stood at."""
        return respond({"next_ms": await whole(self._schedules.resume(_name(request)))})


def _name(request: web.Request) -> str:
    check_path(request)
    query_of(request, ())
    return request.match_info["name"]


def _spec(fields: dict[str, Any]) -> Spec:
    given = [name for name in TRIGGERS if name in fields]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise BadArg(f"A schedule has one of {', '.join(TRIGGERS)}: found {found}.")
    (kind,) = given
    if kind != "cron" and "zone" in fields:
        raise BadArg(f"zone belongs to cron, not to {kind}.")
    catchup = text_field(fields, "catchup", "one")
    if kind == "cron":
        return Spec.cron(text_field(fields, "cron"), text_field(fields, "zone", "UTC"), catchup)
    number = integer_field(fields, kind)
    return Spec.every(number, catchup) if kind == "every_ms" else Spec.at(number, catchup)


def _task(fields: dict[str, Any]) -> TaskSpec:
    numbers: dict[str, Any] = {
        name: integer_field(fields, name) for name in NUMBERS if name in fields
    }
    lane = text_field(fields, "lane") if "lane" in fields else None
    return TaskSpec(_payload(fields), lane=lane, **numbers)


def _payload(fields: dict[str, Any]) -> bytes:
    if "payload_base64" not in fields:
        return text_field(fields, "payload").encode("utf-8", "surrogatepass")
    if "payload" in fields:
        raise BadArg("payload stands beside payload_base64; one of them is allowed.")
    try:
        return base64.b64decode(text_field(fields, "payload_base64"), validate=True)
    except (binascii.Error, ValueError):
        raise BadArg("payload_base64 must be base64: what was sent is not.") from None


def _shown(schedule: dict[str, Any]) -> dict[str, Any]:
    """As ``S.LIST`` has it, by the names that PUT takes."""
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
        "GET",
        SCHEDULE,
        "S.PAUSE",
        ScheduleRoutes.get,
        answer=ShownSchedule,
        errors=(NotFound, *STORE),
    ),
    # and ``put`` for the queue, which the body names
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
