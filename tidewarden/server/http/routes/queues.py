"""Serves queues: their settings and figures, and what steers a queue as a whole."""

from __future__ import annotations

import bisect
import contextlib
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Full, Internal, NotFound, Stale, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.settings import LIMITS, OURS, QueueSettings
from tidewarden.queue.task import TIME_MAX_MS
from tidewarden.server.http.caller import name_in_path, queue_in_path
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, RightsOf, Route, whole
from tidewarden.server.http.task_fields import Count, MaxStaleMs
from tidewarden.server.verbs.queue_admin import seen_names

from .tasks import QUEUE, Done

QueueChanges: type[msgspec.Struct] = msgspec.defstruct(
    "QueueChanges",
    [
        (
            field.name,
            (
                Annotated[field.type, Meta(ge=LIMITS[field.name][0], le=LIMITS[field.name][1])]
                if field.name in LIMITS
                else field.type
            )
            | UnsetType,
            UNSET,
        )
        for field in msgspec.structs.fields(QueueSettings)
        if field.name not in OURS
    ],
    forbid_unknown_fields=True,
    kw_only=True,
    module=__name__,
)
"""Settings to change; what is absent stays. Its fields and their limits are those of Q.CONFIG."""


class QueueOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says how a queue's figures are read."""

    by_shard: bool = False
    max_stale_ms: MaxStaleMs = 0


class ListOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which queues: ``count`` names after ``after``."""

    count: Count = 100
    after: str = ""


class QueueList(msgspec.Struct):
    """Lists figures of queues, by name; ``after`` is empty at the end."""

    queues: list[dict[str, Any]]
    after: str


class QueueState(msgspec.Struct):
    """Shows a queue's settings and figures."""

    queue: str
    settings: dict[str, Any]
    stats: dict[str, Any]


class Settings(msgspec.Struct):
    """Shows a queue's settings."""

    settings: dict[str, Any]


class Pause(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says for how long takes stop; without ``ms``: until somebody resumes them."""

    ms: Annotated[int, Meta(ge=1, le=TIME_MAX_MS // 2)] | UnsetType = UNSET


class Purge(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which tasks go: those in one state, or all."""

    state: Literal["delayed", "ready", "leased", "buried", "waiting"] | UnsetType = UNSET


class Purged(msgspec.Struct):
    """Says how many tasks were removed."""

    purged: int


class DropOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says whether a queue goes with its tasks and its links, which ``force`` asks for."""

    force: bool = False


class QueueDropped(msgspec.Struct):
    """Says how many tasks went with the queue."""

    dropped: int


class ReleaseAll(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says whose leases end, of one holder (as ``n0.4``) or of one session; all without either."""

    holder: Annotated[str, Meta(min_length=1, max_length=250)] | UnsetType = UNSET
    session: Annotated[str, Meta(min_length=1, max_length=250)] | UnsetType = UNSET


class Released(msgspec.Struct):
    """Says how many leases were ended."""

    released: int


class CheckOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says whether faults are mended, which ``repair`` asks for."""

    repair: bool = False


class Checks(msgspec.Struct):
    """Says what is wrong with each queue, those of the system too."""

    queues: list[dict[str, Any]]


class QueueRoutes:
    """
    Answers ``/v1/queues`` and ``/v1/queues/{queue}``.

    A ``/`` in a queue's name is ``%2F`` in the path.
    """

    def __init__(self, queues: Queues, rights: RightsOf) -> None:
        self._queues = queues
        self._rights = rights

    async def listing(self, request: web.Request) -> web.Response:
        """Return the figures of the queues that the caller may see, by name."""
        asked = parameters_of(request, ListOptions)
        rights = self._rights(request)
        names = sorted(await seen_names(await self._queues.admin.names(), rights))
        first = bisect.bisect_right(names, asked.after)
        found: list[dict[str, Any]] = []
        for name in names[first : first + asked.count]:
            # Its settings cannot be read (the doctor names it), or it was dropped meanwhile.
            with contextlib.suppress(Internal, NotFound):
                found.append(await self._queues.admin.stats(name, marks=True))
        more = first + asked.count < len(names)
        return respond(QueueList(found, names[first + asked.count - 1] if more else ""))

    async def get(self, request: web.Request) -> web.Response:
        """Return a queue's settings and figures."""
        queue, asked = queue_in_path(request), parameters_of(request, QueueOptions)
        stats = await self._stats(queue, asked)
        settings = await self._queues.admin.settings(queue, marks=True)
        return respond(QueueState(queue, settings, stats))

    async def stats(self, request: web.Request) -> web.Response:
        """Return a queue's figures."""
        queue, asked = queue_in_path(request), parameters_of(request, QueueOptions)
        return respond(await self._stats(queue, asked))

    async def _stats(self, queue: str, asked: QueueOptions) -> dict[str, Any]:
        found = await self._queues.admin.stats(
            queue, by_shard=asked.by_shard, max_stale_ms=asked.max_stale_ms, marks=True
        )
        if "topic" in found:
            raise NotFound(f"{queue} is a topic, and no queue: see /v1/topics")
        return found

    async def configure(self, request: web.Request) -> web.Response:
        """Change settings of a queue, which is made when it is new."""
        queue = queue_in_path(request)
        parameters_of(request, NoOptions)
        asked = await body_of(request, QueueChanges)
        values = {
            name: value
            for name, value in msgspec.structs.asdict(asked).items()
            if value is not UNSET
        }
        if not values:
            raise BadArg(f"Nothing to change; there are {', '.join(asked.__struct_fields__)}.")
        return respond(Settings(await whole(self._queues.admin.configure(queue, values))))

    async def pause(self, request: web.Request) -> web.Response:
        """Stop takes, for a while or until they are resumed; puts go on."""
        queue, asked = queue_in_path(request), await body_of(request, Pause)
        ms = None if asked.ms is UNSET else asked.ms
        await whole(self._queues.admin.pause(queue, ms))
        return respond(Done())

    async def resume(self, request: web.Request) -> web.Response:
        """Let takes go on."""
        queue, _ = queue_in_path(request), await body_of(request, NoOptions)
        await whole(self._queues.admin.resume(queue))
        return respond(Done())

    async def purge(self, request: web.Request) -> web.Response:
        """Remove every task in one state, or in any, the leased ones too."""
        queue, asked = queue_in_path(request), await body_of(request, Purge)
        state = "" if asked.state is UNSET else asked.state
        return respond(Purged(await whole(self._queues.bulk.purge(queue, state))))

    async def drop(self, request: web.Request) -> web.Response:
        """Drop a queue, which has to be empty, or goes with its tasks."""
        queue, asked = queue_in_path(request), parameters_of(request, DropOptions)
        dropped = await whole(self._queues.dropped.drop(queue, force=asked.force))
        return respond(QueueDropped(dropped))

    async def release_all(self, request: web.Request) -> web.Response:
        """End every lease as a release, whoever holds it, or those of one holder or session."""
        queue, asked = queue_in_path(request), await body_of(request, ReleaseAll)
        whose = {
            name: value
            for name, value in msgspec.structs.asdict(asked).items()
            if value is not UNSET
        }
        if len(whose) > 1:
            raise BadArg("holder excludes session: give one of them.")
        return respond(Released(await whole(self._queues.bulk.release_all(queue, **whose))))

    async def check(self, request: web.Request) -> web.Response:
        """Look whether the queue's records agree with each other, and mend them if asked to."""
        queue = name_in_path(request, "queue", "A queue's name")
        asked = await body_of(request, CheckOptions)
        return respond(await whole(self._queues.consistency.check(queue, repair=asked.repair)))

    async def check_all(self, request: web.Request) -> web.Response:
        """Look whether the records of every queue agree with each other."""
        asked = await body_of(request, CheckOptions)
        return respond(Checks(await whole(self._check_all(asked.repair))))

    async def _check_all(self, repair: bool) -> list[dict[str, Any]]:
        found = []
        for name in await self._queues.catalog.names():
            with contextlib.suppress(NotFound):  # it was dropped since the names were read
                found.append(await self._queues.consistency.check(name, repair=repair))
        return found


def _changes(request: web.Request) -> list[bytes]:
    """Return the arguments as Q.CONFIG has them, with which it sets."""
    return [request.match_info["queue"].encode("utf-8", "surrogateescape"), b"SET"]


def _all(_: web.Request) -> list[bytes]:
    """Return the arguments as Q.CHECK has them for every queue."""
    return [b"*"]


ROUTES = (
    Route(
        "GET",
        "/v1/queues",
        "Q.LIST",
        QueueRoutes.listing,
        query=ListOptions,
        answer=QueueList,
        errors=(BadArg, StoreDown),
    ),
    Route(
        "GET",
        f"{QUEUE}/stats",
        "Q.STATS",
        QueueRoutes.stats,
        query=QueueOptions,
        answer=dict[str, Any],
        errors=(BadArg, NotFound, StoreDown),
    ),
    Route(
        "GET",
        QUEUE,
        "Q.STATS",
        QueueRoutes.get,
        query=QueueOptions,
        answer=QueueState,
        errors=(BadArg, NotFound, StoreDown),
    ),
    Route(
        "PATCH",
        QUEUE,
        "Q.CONFIG",
        QueueRoutes.configure,
        body=QueueChanges,
        answer=Settings,
        errors=(BadArg, Full, Stale, *STORE),
        arguments=_changes,
    ),
    Route(
        "DELETE",
        QUEUE,
        "Q.DROP",
        QueueRoutes.drop,
        query=DropOptions,
        answer=QueueDropped,
        errors=(BadArg, Full, NotFound, Stale, *STORE),
    ),
    Route(
        "POST",
        f"{QUEUE}/pause",
        "Q.PAUSE",
        QueueRoutes.pause,
        body=Pause,
        answer=Done,
        errors=(BadArg, *STORE),
    ),
    Route(
        "POST",
        f"{QUEUE}/resume",
        "Q.RESUME",
        QueueRoutes.resume,
        body=NoOptions,
        answer=Done,
        errors=(BadArg, *STORE),
    ),
    Route(
        "POST",
        f"{QUEUE}/purge",
        "Q.PURGE",
        QueueRoutes.purge,
        body=Purge,
        answer=Purged,
        errors=(BadArg, *STORE),
    ),
    Route(
        "POST",
        f"{QUEUE}/release-all",
        "Q.RELEASEALL",
        QueueRoutes.release_all,
        body=ReleaseAll,
        answer=Released,
        errors=(BadArg, *STORE),
    ),
    Route(
        "POST",
        f"{QUEUE}/check",
        "Q.CHECK",
        QueueRoutes.check,
        body=CheckOptions,
        answer=dict[str, Any],
        errors=(BadArg, *STORE),
    ),
    Route(
        "POST",
        "/v1/check",
        "Q.CHECK",
        QueueRoutes.check_all,
        body=CheckOptions,
        answer=Checks,
        errors=(BadArg, *STORE),
        arguments=_all,
    ),
)
