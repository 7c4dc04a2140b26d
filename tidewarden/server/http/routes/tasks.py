"""Serves tasks: puts, takes, and what becomes of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.clock import in_turns
from tidewarden.errors import (
    BadArg,
    Draining,
    Error,
    Exists,
    Full,
    NotFound,
    NotHeld,
    Stale,
    StoreDown,
    TooBig,
)
from tidewarden.queue import Queues
from tidewarden.queue.reads.condition import condition_of
from tidewarden.queue.task import Taken
from tidewarden.server.http.caller import (
    SessionHeader,
    queue_in_path,
    session_of,
    task_in_path,
)
from tidewarden.server.http.delivery import delivered
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.payloads import bytes_of, text_or_base64
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Check, Route, whole
from tidewarden.server.http.task_fields import (
    ChangeTask,
    Count,
    LeaseMs,
    LeaseNumber,
    MaxStaleMs,
    Ms,
    PutTask,
    SeenTask,
    StaleMs,
    TakenTask,
    TaskId,
    TaskOptions,
    UnixMs,
    WaitMs,
    seen,
    taken,
)
from tidewarden.server.verbs.queue import queue_name

TASKS_MAX = 500  # tasks that one request puts
ACKS_MAX = 1000  # acks that one request brings
QUEUES_MAX = 1000  # queues that one take names
BYTES = "application/octet-stream"

Body = TypeVar("Body")


class PutOutcome(msgspec.Struct):
    """Says what became of one of several tasks: its ``id``, or an error."""

    id: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class PutAnswer(msgspec.Struct):
    """Says the ``id`` of the one task, or what became of each of several, in their order."""

    id: str | UnsetType = UNSET
    tasks: list[PutOutcome] | UnsetType = UNSET


class TakeOne(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says what is taken from a queue; ``id``: that task and no other, wherever it waits."""

    count: Count = 1
    wait_ms: WaitMs = 0
    lease_ms: LeaseMs = 0
    id: TaskId | UnsetType = UNSET


class TakeAny(TakeOne, forbid_unknown_fields=True, kw_only=True):
    """Says what is taken from several queues; tasks of earlier ones come first."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=QUEUES_MAX)]


class TakenTasks(msgspec.Struct):
    """Lists what was taken; none: there was nothing in time."""

    tasks: list[TakenTask]


class Ack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says that a task is done, with a result for callers that wait for it."""

    lease: LeaseNumber
    result: Annotated[str, Meta(description="The result as text.")] | UnsetType = UNSET
    result_base64: Annotated[bytes, Meta(description="The result.")] | UnsetType = UNSET
    result_json: Annotated[msgspec.Raw, Meta(description="Any JSON value.")] | UnsetType = UNSET


class AckOne(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one of several tasks that are done."""

    id: TaskId
    lease: LeaseNumber


class AckMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Lists tasks that are done."""

    tasks: Annotated[list[AckOne], Meta(min_length=1, max_length=ACKS_MAX)]


class Acked(msgspec.Struct):
    """Says that the task is done."""

    acked: bool


class AckAnswer(msgspec.Struct):
    """Says whether a task is done; not: its lease has ended, or never was."""

    id: str
    lease: int
    acked: bool


class AckAnswers(msgspec.Struct):
    """Says whether each task is done, in their order."""

    tasks: list[AckAnswer]


class HandBack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Hands a task back; the attempt does not count."""

    lease: LeaseNumber
    delay_ms: Ms = 0
    reason: str = ""


class Fail(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says that a try has failed; without ``delay_ms`` the task waits for its backoff."""

    lease: LeaseNumber
    delay_ms: Ms | UnsetType = UNSET
    reason: str = ""


class Bury(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Puts a task aside until somebody kicks it."""

    lease: LeaseNumber
    reason: str = ""


class Touch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Lets a lease run on from now."""

    lease: LeaseNumber
    lease_ms: LeaseMs = 0


class LeaseEnd(msgspec.Struct):
    """Says when the lease ends now."""

    lease_end_ms: UnixMs


class Done(msgspec.Struct):
    """Says that it is done."""

    done: Literal[True] = True


class PeekOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says how a task is looked at."""

    max_stale_ms: MaxStaleMs = 0


class PageOptions(PeekOptions, forbid_unknown_fields=True, kw_only=True):
    """
    Says which page; ``after``: where the one before ended.

    With ``match`` or ``where`` those tasks alone are on it that fit.
    """

    count: Count = 100
    after: str = ""
    payloads: Annotated[bool, Meta(description="Whether the tasks come with their payloads.")] = (
        True
    )
    match: (
        Annotated[
            str,
            Meta(
                description="A glob, whose * stands for any run of characters.",
                examples=["*@example.org*"],
            ),
        ]
        | UnsetType
    ) = UNSET
    match_in: Annotated[
        Literal["payload", "id", "reason"], Meta(description="What has to match.")
    ] = "payload"
    where: (
        Annotated[
            str,
            Meta(
                description="A path of the payload, which is JSON, and what stands there.",
                examples=["$.to[0].name=ada"],
            ),
        ]
        | UnsetType
    ) = UNSET


class StateOptions(PageOptions, forbid_unknown_fields=True, kw_only=True):
    """Says which page of the tasks in which state."""

    state: Literal["delayed", "ready", "leased", "buried", "waiting"] = "ready"


class TaskPage(msgspec.Struct):
    """
    Lists tasks in one state, in its order; ``after`` is empty at the end.

    A search says at how many it ``looked``, and how many of these were ``unread``, because they are
    too long for ``where``.
    """

    tasks: list[SeenTask]
    after: str
    looked: int | UnsetType = UNSET
    unread: int | UnsetType = UNSET
    stale_ms: StaleMs | UnsetType = UNSET


class LeaseOption(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names the lease under which the caller holds the task."""

    lease: LeaseNumber = 0


class DeleteOptions(LeaseOption, forbid_unknown_fields=True, kw_only=True):
    """Says under which lease a task is removed; ``force``: though somebody holds it."""

    force: bool = False


class ResultOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says how long the end is waited for."""

    wait_ms: WaitMs = 0


class Ending(msgspec.Struct, kw_only=True):
    """Says how a task ended: with a ``result``, or a ``reason`` where it is buried."""

    state: Literal["done", "buried", "deleted", "unknown", "timeout"]
    result: str | UnsetType = UNSET
    result_base64: bytes | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class TaskRoutes:
    """
    Answers ``/v1/queues/{queue}/tasks`` and below, ``…/take``, ``…/ack`` and ``/v1/take``.

    A ``/`` in a queue's name or an id is ``%2F`` in the path.
    """

    def __init__(self, queues: Queues, long_polls: LongPolls, check: Check) -> None:
        self._queues = queues
        self._long_polls = long_polls
        self._check = check

    # --- put

    async def put(self, request: web.Request) -> web.Response:
        """
        Put one task, or each of up to 500 in a list, which are answered each by itself.

        A body of ``application/octet-stream`` is the payload, and the query has the options.
        """
        queue = queue_in_path(request)
        # aiohttp takes what has no type for bytes: then a list of tasks would be one payload
        if request.content_type == BYTES and request.headers.get("Content-Type"):
            options = parameters_of(request, TaskOptions)
            return await self._put_one(request, queue, options, await request.read())
        parameters_of(request, NoOptions)
        asked = await body_of(request, PUT_BODY)
        if isinstance(asked, PutTask):
            return await self._put_one(request, queue, asked, None)
        waits = max(one.wait_ms for one in asked)
        many = sum(one.wait_ms > 0 for one in asked)
        with self._long_polls.of(request, waits, many):
            work = asyncio.gather(*(self._put_each(queue, one) for one in asked))
            answers = await (work if waits else whole(work))
        return respond(PutAnswer(tasks=answers))

    async def _put_one(
        self, request: web.Request, queue: str, options: TaskOptions, payload: bytes | None
    ) -> web.Response:
        with self._long_polls.of(request, options.wait_ms):
            work = self._put(queue, options, payload)
            task_id = await (work if options.wait_ms else whole(work))
        return respond(PutAnswer(task_id))

    async def _put_each(self, queue: str, task: PutTask) -> PutOutcome:
        try:
            return PutOutcome(await self._put(queue, task, None))
        except Error as error:
            return PutOutcome(error=error.code, message=error.http_message)

    async def _put(self, queue: str, options: TaskOptions, payload: bytes | None) -> str:
        spec = options.task() if isinstance(options, PutTask) else options.spec(payload or b"")
        if options.wait_ms:
            return await self._queues.put_waiting(queue, spec, options.wait_ms)
        return await self._queues.put(queue, spec)

    # --- take

    async def take(self, request: web.Request) -> web.Response:
        """
        Take ready tasks under a lease, waiting for the first one.

        The lease belongs to no connection: it ends by its time, or with the session that the
        header Tidewarden-Session names. With ``Accept: application/octet-stream`` one task is
        answered as its payload, its other fields in headers; 204: there was none.
        """
        parameters_of(request, NoOptions)
        return await self._take(request, [queue_in_path(request)], await body_of(request, TakeOne))

    async def take_any(self, request: web.Request) -> web.Response:
        """Take ready tasks from the first of several queues that have any, as from one."""
        parameters_of(request, NoOptions)
        asked = await body_of(request, TakeAny)
        names = [queue_name(name.encode("utf-8", "surrogatepass")) for name in asked.queues]
        for name in names:
            self._check(request, "POST /v1/take", (("take",), name))
        return await self._take(request, names, asked)

    async def _take(
        self, request: web.Request, names: Sequence[str], asked: TakeOne
    ) -> web.Response:
        as_bytes = BYTES in request.headers.get("Accept", "")
        if as_bytes and asked.count != 1:
            raise BadArg(f"count is {asked.count}; with Accept: {BYTES} it is 1.")
        if self._queues.drain.started:
            raise Draining("This node is going down and hands out nothing new. Ask another.")
        with self._long_polls.of(request, asked.wait_ms):
            async with session_of(request, self._queues.unbound) as session:
                back = self._queues.consumer.give_back
                taking = self._queues.take(
                    session,
                    names,
                    count=asked.count,
                    wait_ms=asked.wait_ms,
                    lease_ms=asked.lease_ms,
                    task_id="" if asked.id is UNSET else asked.id,
                )
                try:
                    tasks = await taking
                except asyncio.CancelledError:
                    # the tasks and the end of their consumer came in one turn of the loop
                    if taking.done() and not taking.cancelled() and not taking.exception():
                        back(session, taking.result())
                    raise
                try:
                    response = _as_bytes(tasks) if as_bytes else _as_json(tasks)
                except BaseException:
                    back(session, tasks)
                    raise
                return await delivered(request, response, lambda: back(session, tasks))

    # --- the end of a lease

    async def ack(self, request: web.Request) -> web.Response:
        """Acknowledge that a task is done, with a result or without one."""
        queue, task_id = task_in_path(request)
        asked = await self._asked(request, Ack)
        result = bytes_of("result", asked.result, asked.result_base64, asked.result_json)
        async with session_of(request, self._queues.unbound) as session:
            pairs = ((task_id, asked.lease),)
            (done,) = await whole(self._queues.ack(session, queue, pairs, result or b""))
        if not done:
            raise NotHeld(NotHeld.ENDED)
        return respond(Acked(True))

    async def ack_many(self, request: web.Request) -> web.Response:
        """Acknowledge that several tasks are done; each is answered by itself."""
        queue = queue_in_path(request)
        asked = await self._asked(request, AckMany)
        async with session_of(request, self._queues.unbound) as session:
            pairs = [(one.id, one.lease) for one in asked.tasks]
            found = await whole(self._queues.ack(session, queue, pairs))
        return respond(
            AckAnswers(
                [
                    AckAnswer(task_id, lease, done == 1)
                    for (task_id, lease), done in zip(pairs, found, strict=True)
                ]
            )
        )

    async def release(self, request: web.Request) -> web.Response:
        """Hand a task back, after a while or at once; the attempt does not count."""
        asked = await self._asked(request, HandBack)
        return await self._end(
            request, self._queues.release, asked.lease, asked.delay_ms, asked.reason
        )

    async def fail(self, request: web.Request) -> web.Response:
        """Note that a try has failed: it is made again after a while, or the task is buried."""
        asked = await self._asked(request, Fail)
        delay_ms = None if asked.delay_ms is UNSET else asked.delay_ms
        return await self._end(request, self._queues.fail, asked.lease, delay_ms, asked.reason)

    async def bury(self, request: web.Request) -> web.Response:
        """Put a task aside until somebody kicks it."""
        asked = await self._asked(request, Bury)
        return await self._end(request, self._queues.bury, asked.lease, asked.reason)

    async def touch(self, request: web.Request) -> web.Response:
        """Let the lease run on from now."""
        asked = await self._asked(request, Touch)
        queue, task_id = task_in_path(request)
        async with session_of(request, self._queues.unbound) as session:
            end_ms = await whole(
                self._queues.touch(session, queue, task_id, asked.lease, asked.lease_ms)
            )
        return respond(LeaseEnd(end_ms))

    async def _end(
        self, request: web.Request, how: Callable[..., Awaitable[None]], *fields: Any
    ) -> web.Response:
        queue, task_id = task_in_path(request)
        async with session_of(request, self._queues.unbound) as session:
            await whole(how(session, queue, task_id, *fields))
        return respond(Done())

    async def _asked(self, request: web.Request, kind: type[Body]) -> Body:
        parameters_of(request, NoOptions)
        return await body_of(request, kind)

    # --- without taking it

    async def get(self, request: web.Request) -> web.Response:
        """Return a task as it lies, with how it has failed before."""
        queue, task_id = task_in_path(request)
        options = parameters_of(request, PeekOptions)
        found = await self._queues.admin.peek(queue, task_id, options.max_stale_ms, marks=True)
        return respond(seen(found))

    async def page(self, request: web.Request) -> web.Response:
        """Return a page of the tasks in one state, in its order."""
        queue, asked = queue_in_path(request), parameters_of(request, StateOptions)
        return respond(await page_of(self._queues, queue, asked, asked.state))

    async def update(self, request: web.Request) -> web.Response:
        """Change a task in place; a leased one under its lease."""
        queue, task_id = task_in_path(request)
        lease = parameters_of(request, LeaseOption).lease
        asked = await body_of(request, ChangeTask)
        if not any(value is not UNSET for value in msgspec.structs.astuple(asked)):
            raise BadArg(
                "Nothing to change; there are payload, delay_ms, at_ms, deadline_ms, within_ms,"
                " priority."
            )
        await whole(self._queues.admin.update(queue, task_id, asked.changes(lease)))
        return respond(Done())

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a task; a leased one under its lease, or with ``force``."""
        queue, task_id = task_in_path(request)
        asked = parameters_of(request, DeleteOptions)
        if asked.lease and asked.force:
            raise BadArg("lease and force exclude each other: give one of them.")
        found = await whole(
            self._queues.admin.delete(queue, task_id, lease=asked.lease, force=asked.force)
        )
        if not found:
            raise NotFound(f"there is no task {task_id} in {queue}")
        return respond(Done())

    async def result(self, request: web.Request) -> web.Response:
        """Wait until a task ends, and say how it did."""
        queue, task_id = task_in_path(request)
        wait_ms = parameters_of(request, ResultOptions).wait_ms
        with self._long_polls.of(request, wait_ms):
            state, data = await self._queues.wait(queue, task_id, wait_ms)
        text, base64 = text_or_base64(data)
        if state == "buried":
            reason = data.decode("utf-8", "replace")
            return respond(Ending(state="buried", reason=reason))
        if state != "done":
            text = base64 = UNSET
        return respond(Ending(state=state, result=text, result_base64=base64))  # type: ignore[arg-type]


async def page_of(queues: Queues, queue: str, asked: PageOptions, state: str) -> TaskPage:
    """Return a page of the tasks in one state, or of those that fit. Raises: BadArg."""
    where = (queue, state, asked.count, asked.after, asked.max_stale_ms)
    told: dict[str, Any]
    if asked.match is UNSET and asked.where is UNSET:
        found, after = await queues.admin.page(*where, marks=True, payloads=asked.payloads)
        told = {"after": after}
    else:
        condition = condition_of(
            None if asked.match is UNSET else asked.match,
            asked.match_in,
            None if asked.where is UNSET else asked.where,
        )
        told = await queues.search.find(*where, condition=condition, marks=True)
        found = told.pop("tasks")
    # Written one by one: payloads may have many mebibytes.
    tasks: list[Any] = [
        msgspec.Raw(msgspec.json.encode(seen(one, payload=asked.payloads)))
        async for one in in_turns(found, 1)
    ]
    return TaskPage(tasks, **told)


def _as_json(tasks: Sequence[Taken]) -> web.Response:
    return respond(TakenTasks([taken(task) for task in tasks]))


def _as_bytes(tasks: Sequence[Taken]) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    if not tasks:
        return web.Response(status=204, headers=headers)
    (task,) = tasks
    headers |= {
        "Tidewarden-Queue": task.queue,
        "Tidewarden-Id": quote(task.id, safe=""),
        "Tidewarden-Lease": str(task.lease),
        "Tidewarden-Attempt": str(task.attempt),
        "Tidewarden-Deadline-Ms": str(task.deadline_ms),
        "Tidewarden-Lease-End-Ms": str(task.lease_end_ms),
        "Content-Type": BYTES,
    }
    return web.Response(body=task.payload, headers=headers)


def _from(request: web.Request) -> list[bytes]:
    """Return the arguments as Q.TAKE has them; a body's queues are checked later."""
    queue = request.match_info.get("queue")
    return [b"FROM", *([] if queue is None else [queue.encode("utf-8", "surrogateescape")])]


def _under_lease(request: web.Request) -> list[bytes]:
    """Return the arguments as Q.UPDATE and Q.DELETE have them."""
    names = [request.match_info[key].encode("utf-8", "surrogateescape") for key in ("queue", "id")]
    return [*names, b"LEASE", request.query.get("lease", "0").encode("utf-8", "replace")]


PUT_BODY: Any = PutTask | Annotated[list[PutTask], Meta(min_length=1, max_length=TASKS_MAX)]
HELD = (BadArg, NotHeld, NotFound, Full, Stale, *STORE)  # a session may be gone, or taken over
QUEUE = "/v1/queues/{queue}"
TASK = f"{QUEUE}/tasks/{{id}}"
LEASED = tuple(
    (f"Tidewarden-{name}", f"With Accept: {BYTES}: {what}.")
    for name, what in (
        ("Queue", "the task's queue"),
        ("Id", "its id, percent-encoded"),
        ("Lease", "the number of its lease"),
        ("Attempt", "which attempt this is"),
        ("Deadline-Ms", "its deadline, Unix milliseconds"),
        ("Lease-End-Ms", "when the lease ends, Unix milliseconds"),
    )
)
ROUTES = (
    Route(
        "POST",
        f"{QUEUE}/tasks",
        "Q.PUT",
        TaskRoutes.put,
        raw=True,
        example={"id": "welcome-7", "payload": "hello", "priority": 50},
        query=TaskOptions,
        body=PUT_BODY,
        answer=PutAnswer,
        errors=(BadArg, Exists, NotHeld, Full, TooBig, *STORE),
    ),
    Route(
        "GET",
        f"{QUEUE}/tasks",
        "Q.PEEK",
        TaskRoutes.page,
        query=StateOptions,
        answer=TaskPage,
        errors=(BadArg, StoreDown),
    ),
    Route(
        "POST",
        f"{QUEUE}/take",
        "Q.TAKE",
        TaskRoutes.take,
        example={"count": 1, "wait_ms": 20_000, "lease_ms": 30_000},
        raw_answer=True,
        others=((204, None),),
        answer_headers=LEASED,
        headers=SessionHeader,
        reads=True,
        body=TakeOne,
        answer=TakenTasks,
        errors=(BadArg, Full, NotFound, Draining, Stale, *STORE),
        arguments=_from,
    ),
    Route(
        "POST",
        "/v1/take",
        "Q.TAKE",
        TaskRoutes.take_any,
        example={"queues": ["mail", "sms"], "wait_ms": 20_000},
        raw_answer=True,
        others=((204, None),),
        answer_headers=LEASED,
        headers=SessionHeader,
        reads=True,
        body=TakeAny,
        answer=TakenTasks,
        errors=(BadArg, Full, NotFound, Draining, Stale, *STORE),
        arguments=_from,
    ),
    Route(
        "POST",
        f"{QUEUE}/ack",
        "Q.ACK",
        TaskRoutes.ack_many,
        example={"tasks": [{"id": "welcome-7", "lease": 68_719_476_737}]},
        headers=SessionHeader,
        body=AckMany,
        answer=AckAnswers,
        errors=HELD,
    ),
    Route(
        "POST",
        f"{TASK}/ack",
        "Q.ACK",
        TaskRoutes.ack,
        example={"lease": 68_719_476_737, "result": "sent"},
        headers=SessionHeader,
        body=Ack,
        answer=Acked,
        errors=HELD,
    ),
    Route(
        "POST",
        f"{TASK}/release",
        "Q.RELEASE",
        TaskRoutes.release,
        headers=SessionHeader,
        body=HandBack,
        answer=Done,
        errors=HELD,
    ),
    Route(
        "POST",
        f"{TASK}/fail",
        "Q.FAIL",
        TaskRoutes.fail,
        example={"lease": 68_719_476_737, "reason": "550 no such mailbox"},
        headers=SessionHeader,
        body=Fail,
        answer=Done,
        errors=HELD,
    ),
    Route(
        "POST",
        f"{TASK}/bury",
        "Q.BURY",
        TaskRoutes.bury,
        headers=SessionHeader,
        body=Bury,
        answer=Done,
        errors=HELD,
    ),
    Route(
        "POST",
        f"{TASK}/touch",
        "Q.TOUCH",
        TaskRoutes.touch,
        headers=SessionHeader,
        body=Touch,
        answer=LeaseEnd,
        errors=HELD,
    ),
    Route(
        "GET",
        f"{TASK}/result",
        "Q.WAIT",
        TaskRoutes.result,
        query=ResultOptions,
        answer=Ending,
        errors=(BadArg, Full, *STORE),
    ),
    Route(
        "GET",
        TASK,
        "Q.PEEK",
        TaskRoutes.get,
        query=PeekOptions,
        answer=SeenTask,
        errors=(BadArg, NotFound, StoreDown),
    ),
    Route(
        "PATCH",
        TASK,
        "Q.UPDATE",
        TaskRoutes.update,
        example={"payload": "hello again", "delay_ms": 60_000},
        query=LeaseOption,
        body=ChangeTask,
        answer=Done,
        errors=(TooBig, *HELD),
        arguments=_under_lease,
    ),
    Route(
        "DELETE",
        TASK,
        "Q.DELETE",
        TaskRoutes.delete,
        query=DeleteOptions,
        answer=Done,
        errors=HELD,
        arguments=_under_lease,
    ),
)
