"""The routes of schedules of the HTTP door."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, NotFound
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec
from tidewarden.server.access.required_rights import Requirement
from tidewarden.server.http.params import check_path, integer_field, object_of, query_of, text_field
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route
from tidewarden.server.verbs.queue import queue_name

TRIGGERS = ("cron", "every_ms", "at_ms")
NUMBERS = ("priority", "delay_ms", "within_ms", "lease_ms", "attempts", "backoff_ms", "ttl_ms")
FIELDS = (*TRIGGERS, "zone", "catchup", "queue", "payload", "payload_base64", *NUMBERS, "lane")
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

Check = Callable[[web.Request, str, Requirement], None]
"""Raises Denied unless whoever asks has the right to what it asks for."""
RightsOf = Callable[[web.Request], Rights]


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
        fields = object_of(await request.read(), "A schedule", FIELDS)
        if "queue" not in fields:
            raise BadArg("queue is missing: where its tasks are put.")
        queue = queue_name(text_field(fields, "queue").encode("utf-8", "surrogatepass"))
        self._check(request, "PUT /v1/schedules/{name}", (("put",), queue))
        try:
            spec, task = _spec(fields), _task(fields)
            next_ms = await asyncio.shield(
                asyncio.ensure_future(self._schedules.put(name, spec, queue, task))
            )
        except BadArg as error:
            raise BadArg(_VERBS_WORD.sub(lambda word: NAMES[word[1]], str(error))) from None
        return respond({"next_ms": next_ms})

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a schedule; tasks that it has put stay."""
        name = _name(request)
        if not await asyncio.shield(asyncio.ensure_future(self._schedules.delete(name))):
            raise NotFound(f"There is no schedule {name[:200]!r}.")
        return respond({"deleted": True})

    async def pause(self, request: web.Request) -> web.Response:
        """Put nothing from now on."""
        await asyncio.shield(asyncio.ensure_future(self._schedules.pause(_name(request))))
        return respond({"paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on with the tick that it stood at."""
        return respond(
            {
                "next_ms": await asyncio.shield(
                    asyncio.ensure_future(self._schedules.resume(_name(request)))
                )
            }
        )


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
    Route("GET", "/v1/schedules", "S.LIST", ScheduleRoutes.list),
    Route("POST", f"{SCHEDULE}/pause", "S.PAUSE", ScheduleRoutes.pause),
    Route("POST", f"{SCHEDULE}/resume", "S.RESUME", ScheduleRoutes.resume),
    Route("GET", SCHEDULE, "S.PAUSE", ScheduleRoutes.get),
    # and ``put`` for the queue, which the body names
    Route("PUT", SCHEDULE, "S.PAUSE", ScheduleRoutes.put, audit="S.PUT"),
    Route("DELETE", SCHEDULE, "S.DELETE", ScheduleRoutes.delete),
)
