"""Serves buried tasks, which failed for good, until somebody kicks, moves or deletes them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Error, Full, NotFound, NotHeld, StoreDown, TooBig
from tidewarden.queue import Queues
from tidewarden.queue.buried import ALL, Choice
from tidewarden.queue.task import COUNT_MAX
from tidewarden.server.http.caller import queue_in_path
from tidewarden.server.http.params import body_of, parameters_of
from tidewarden.server.http.payloads import bytes_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Check, Route, whole
from tidewarden.server.http.task_fields import (
    MaxStaleMs,
    Ms,
    Payload,
    PayloadBase64,
    PayloadJson,
    StaleMs,
    TaskId,
    UnixMs,
)
from tidewarden.server.verbs.queue import queue_name

from .tasks import QUEUE, PageOptions, TaskPage, page_of

WITHIN_S = 5.0
"""A request does as much as it can within that time, so that its answer comes soon."""
Many = Annotated[int, Meta(ge=1, le=ALL, description="How many at most.")]
Left = Annotated[
    int,
    Meta(description="So many of those are still buried, of the first 100,000 of the queue."),
]


class Chosen(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    Says which buried tasks: those of ``ids``, or ``count`` of them, or ``all``.

    With ``reason`` those that were buried for it, with ``reason_prefix`` those whose reason begins
    so, with ``age_ms`` those that have been buried for as long.
    """

    count: Many | UnsetType = UNSET
    all: Literal[True] | UnsetType = UNSET
    ids: Annotated[list[TaskId], Meta(min_length=1, max_length=COUNT_MAX)] | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    reason_prefix: str = ""
    age_ms: Ms = 0

    def choice(self) -> Choice:
        """Return which. Raises: BadArg: it is not said how many, or twice."""
        if sum(one is not UNSET for one in (self.count, self.all, self.ids)) != 1:
            raise BadArg("Send one of ids, count and all, which says how many tasks.")
        choice = Choice(reason_prefix=self.reason_prefix, age_ms=self.age_ms)
        if self.reason is not UNSET:
            choice["reason"] = self.reason
        if self.ids is not UNSET:
            choice["ids"] = self.ids
        else:
            choice["count"] = ALL if self.count is UNSET else self.count
        return choice


class Kick(Chosen, forbid_unknown_fields=True, kw_only=True):
    """
    Says which buried tasks become ready; ``id``: this one alone.

    That one gets another payload, where there is one in one of three forms, if it is buried since
    ``buried_ms``, or since whenever without it.
    """

    id: TaskId | UnsetType = UNSET
    payload: Payload | UnsetType = UNSET
    payload_base64: PayloadBase64 | UnsetType = UNSET
    payload_json: PayloadJson | UnsetType = UNSET
    buried_ms: UnixMs = 0

    def other_payload(self) -> bytes | None:
        """Return the payload that the task gets; None: it keeps its own. Raises: BadArg."""
        data = bytes_of("payload", self.payload, self.payload_base64, self.payload_json)
        if data is None and self.buried_ms:
            raise BadArg("buried_ms says something of a task that gets a payload.")
        if data is not None and self.id is UNSET:
            raise BadArg("A payload is that of one task: send its id.")
        return data

    @property
    def names_others(self) -> bool:
        """Return whether it says anything of other tasks than that of ``id``."""
        others = Kick(
            id=self.id,
            payload=self.payload,
            payload_base64=self.payload_base64,
            payload_json=self.payload_json,
            buried_ms=self.buried_ms,
        )
        return self != others


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
    """Says how many tasks became ready; ``left`` not where one ``id`` was asked for."""

    kicked: int
    left: Left | UnsetType = UNSET


class Moved(msgspec.Struct):
    """Says how many tasks were moved."""

    moved: int
    left: Left | UnsetType = UNSET


class Deleted(msgspec.Struct):
    """Says how many tasks were removed."""

    deleted: int
    left: Left | UnsetType = UNSET


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
        return respond(await self._queues.buried.reasons(queue, asked.max_stale_ms, marks=True))

    async def kick(self, request: web.Request) -> web.Response:
        """
        Make buried tasks ready, as many as can be within five seconds.

        One of them may get another payload in the same step. If it has that already and is not
        buried any more, as after a request that came twice, nothing is changed.
        """
        queue, asked = queue_in_path(request), await body_of(request, Kick)
        buried, payload = self._queues.buried, asked.other_payload()
        if asked.id is UNSET:
            choice = asked.choice()
            kicked = await whole(buried.kick(queue, within_s=WITHIN_S, **choice))
            return respond(Kicked(kicked, await self._left(queue, choice)))
        if asked.names_others:
            raise BadArg("id names the task, and stands alone, or with a payload and buried_ms.")
        if payload is None:
            return respond(Kicked(await whole(buried.kick(queue, ids=[asked.id]))))
        work = buried.put_again(queue, asked.id, payload, buried_ms=asked.buried_ms)
        return respond(Kicked(int(await whole(work))))

    async def move(self, request: web.Request) -> web.Response:
        """
        Put buried tasks into another queue under their ids, as new tasks.

        It puts as many as can be within five seconds.
        """
        queue, asked = queue_in_path(request), await body_of(request, Move)
        target = queue_name(asked.to.encode("utf-8", "surrogatepass"))
        self._check(request, f"POST {QUEUE}/buried/move", (("admin",), target))
        buried, choice = self._queues.buried, asked.choice()
        moved = await whole(buried.move(queue, target, within_s=WITHIN_S, **choice))
        return respond(Moved(moved, await self._left(queue, choice)))

    async def delete(self, request: web.Request) -> web.Response:
        """Remove buried tasks, as many as can be within five seconds."""
        queue, asked = queue_in_path(request), await body_of(request, Chosen)
        buried, choice = self._queues.buried, asked.choice()
        deleted = await whole(buried.delete(queue, within_s=WITHIN_S, **choice))
        return respond(Deleted(deleted, await self._left(queue, choice)))

    async def _left(self, queue: str, choice: Choice) -> int | UnsetType:
        """Count what is left; where that is not known now, what was done is told all the same."""
        try:
            return await self._queues.buried.left(queue, **choice)
        except Error:
            return UNSET


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
        example={"all": True, "reason": "550 no such mailbox"},
        answer=Kicked,
        errors=(BadArg, Full, NotFound, NotHeld, TooBig, *STORE),
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
    Route(
        "POST",
        f"{QUEUE}/buried/delete",
        "Q.PURGE",
        BuriedRoutes.delete,
        body=Chosen,
        example={"ids": ["welcome-7"]},
        answer=Deleted,
        errors=(BadArg, *STORE),
    ),
)
