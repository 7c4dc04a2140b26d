"""Serves buried tasks, which failed for good, until somebody kicks or moves them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Full, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.admin import ALL
from tidewarden.server.http.caller import queue_in_path
from tidewarden.server.http.params import body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Check, Route, whole
from tidewarden.server.http.task_fields import MaxStaleMs, Ms, StaleMs, TaskId
from tidewarden.server.verbs.queue import queue_name

from .tasks import QUEUE, PageOptions, TaskPage, page_of

Many = Annotated[int, Meta(ge=1, le=ALL, description="How many at most.")]


class Chosen(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    Says which buried tasks: ``count`` of them, or ``all``.

    With ``reason_prefix`` those whose reason begins so, with ``age_ms`` those that have been buried
    for as long.
    """

    count: Many | UnsetType = UNSET
    all: Literal[True] | UnsetType = UNSET
    reason_prefix: str = ""
    age_ms: Ms = 0

    def many(self) -> int:
        """Return how many. Raises: BadArg: it is not said, or twice."""
        if (self.count is UNSET) is (self.all is UNSET):
            raise BadArg("Send one of count and all, which says how many tasks.")
        return ALL if self.count is UNSET else self.count


class Kick(Chosen, forbid_unknown_fields=True, kw_only=True):
    """Says which buried tasks become ready; ``id``: this one alone."""

    id: TaskId | UnsetType = UNSET


class Move(Chosen, forbid_unknown_fields=True, kw_only=True):
    """Says which buried tasks are moved, and to which queue."""

    to: Annotated[str, Meta(description="The queue that gets them.", examples=["mail.retry"])]


class ReasonOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says how old the counts may be."""

    max_stale_ms: MaxStaleMs = 0


class Reason(msgspec.Struct):
    """Shows how many tasks were buried for one reason, when, and the last of them."""

    reason: str
    tasks: int
    first_ms: int
    last_ms: int
    example: str


class Reasons(msgspec.Struct):
    """
    Shows why tasks were buried: of ``tasks`` that were looked at, ``others`` have further reasons.

    ``more``: so many are buried that some were not looked at.
    """

    queue: str
    tasks: int
    reasons: list[Reason]
    others: int
    more: bool
    stale_ms: StaleMs | UnsetType = UNSET


class Kicked(msgspec.Struct):
    """Says how many tasks became ready."""

    kicked: int


class Moved(msgspec.Struct):
    """Says how many tasks were moved."""

    moved: int


class BuriedRoutes:
    """Answers ``/v1/queues/{queue}/buried``."""

    def __init__(self, queues: Queues, check: Check) -> None:
        self._queues = queues
        self._check = check

    async def page(self, request: web.Request) -> web.Response:
        """Return a page of the buried tasks with their histories, the longest buried first."""
        queue, asked = queue_in_path(request), parameters_of(request, PageOptions)
        return respond(await page_of(self._queues, queue, asked, "buried"))

    async def reasons(self, request: web.Request) -> web.Response:
        """Count the buried tasks by why they were buried, the most frequent reason first."""
        queue, asked = queue_in_path(request), parameters_of(request, ReasonOptions)
        return respond(await self._queues.admin.reasons(queue, asked.max_stale_ms, marks=True))

    async def kick(self, request: web.Request) -> web.Response:
        """Make buried tasks ready."""
        queue, asked = queue_in_path(request), await body_of(request, Kick)
        fields: dict[str, Any]
        if asked.id is UNSET:
            fields = {
                "count": asked.many(),
                "reason_prefix": asked.reason_prefix,
                "age_ms": asked.age_ms,
            }
        elif asked == Kick(id=asked.id):
            fields = {"task_id": asked.id}
        else:
            raise BadArg("id names the task, and stands alone.")
        return respond(Kicked(await whole(self._queues.admin.kick(queue, **fields))))

    async def move(self, request: web.Request) -> web.Response:
        """Put buried tasks into another queue under their ids, as new tasks."""
        queue, asked = queue_in_path(request), await body_of(request, Move)
        target = queue_name(asked.to.encode("utf-8", "surrogatepass"))
        self._check(request, f"POST {QUEUE}/buried/move", (("admin",), target))
        moved = await whole(
            self._queues.bulk.move(
                queue,
                target,
                count=asked.many(),
                reason_prefix=asked.reason_prefix,
                age_ms=asked.age_ms,
            )
        )
        return respond(Moved(moved))


ROUTES = (
    Route(
        "GET",
        f"{QUEUE}/buried",
        "Q.PEEK",
        BuriedRoutes.page,
        query=PageOptions,
        answer=TaskPage,
        errors=(BadArg, StoreDown),
    ),
    Route(
        "GET",
        f"{QUEUE}/buried/reasons",
        "Q.REASONS",
        BuriedRoutes.reasons,
        query=ReasonOptions,
        answer=Reasons,
        errors=(BadArg, StoreDown),
    ),
    Route(
        "POST",
        f"{QUEUE}/buried/kick",
        "Q.KICK",
        BuriedRoutes.kick,
        body=Kick,
        answer=Kicked,
        errors=(BadArg, *STORE),
    ),
    Route(
        "POST",
        f"{QUEUE}/buried/move",
        "Q.MOVE",
        BuriedRoutes.move,
        body=Move,
        answer=Moved,
        errors=(BadArg, Full, *STORE),
    ),
)
