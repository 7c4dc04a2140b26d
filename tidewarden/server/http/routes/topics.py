"""Serves topics: names whose tasks go to each queue that is linked to them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Full, NotFound, Stale, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.settings import LIMITS
from tidewarden.server.http.caller import queue_in_path
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, RightsOf, Route, whole
from tidewarden.server.verbs.queue_admin import seen_topics


class Topic(msgspec.Struct):
    """Shows a topic and the queues that are linked to it."""

    topic: str
    queues: list[str]


class Topics(msgspec.Struct):
    """Lists topics by name."""

    topics: list[Topic]


class LinkOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says what the queue is set to before; what is absent stays. As those of Q.CONFIG."""

    expire_ms: Annotated[int, Meta(ge=0, le=LIMITS["expire_ms"][1])] | UnsetType = UNSET
    capacity: Annotated[int, Meta(ge=0, le=LIMITS["capacity"][1])] | UnsetType = UNSET


class Linked(msgspec.Struct):
    """Says whether the queue was not linked before."""

    linked: bool


class Unlinked(msgspec.Struct):
    """Says whether the queue was linked before."""

    unlinked: bool


class TopicDropped(msgspec.Struct):
    """Says how many queues were linked to the topic."""

    unlinked: int


class TopicRoutes:
    """Answers ``/v1/topics``. A ``/`` in a name is ``%2F`` in the path."""

    def __init__(self, queues: Queues, rights: RightsOf) -> None:
        self._queues = queues
        self._rights = rights

    async def listing(self, request: web.Request) -> web.Response:
        """Return the topics and queues that the caller may see."""
        parameters_of(request, NoOptions)
        return respond(Topics(await self._seen(request)))

    async def get(self, request: web.Request) -> web.Response:
        """Return one topic."""
        name = queue_in_path(request, "topic")
        parameters_of(request, NoOptions)
        for topic in await self._seen(request):
            if topic.topic == name:
                return respond(topic)
        raise NotFound(f"there is no topic {name}")

    async def _seen(self, request: web.Request) -> list[Topic]:
        found = await seen_topics(self._queues, self._rights(request))
        return [Topic(name, queues) for name, queues in sorted(found.items())]

    async def drop(self, request: web.Request) -> web.Response:
        """Drop a topic; its queues stay, with what they hold."""
        topic = queue_in_path(request, "topic")
        parameters_of(request, NoOptions)
        return respond(TopicDropped(await whole(self._queues.dropped.drop_topic(topic))))

    async def link(self, request: web.Request) -> web.Response:
        """Link a queue to a topic, each of which is made if it is new."""
        topic, queue = queue_in_path(request, "topic"), queue_in_path(request)
        asked = msgspec.structs.asdict(await body_of(request, LinkOptions))
        settings = {name: value for name, value in asked.items() if value is not UNSET}
        return respond(Linked(await whole(self._queues.topics.link(topic, queue, settings)) == 1))

    async def unlink(self, request: web.Request) -> web.Response:
        """Put no more of a topic's tasks into a queue; what it holds stays."""
        topic, queue = queue_in_path(request, "topic"), queue_in_path(request)
        parameters_of(request, NoOptions)
        return respond(Unlinked(await whole(self._queues.topics.unlink(topic, queue)) == 1))


def _both(request: web.Request) -> list[bytes]:
    """Return the arguments as Q.LINK has them."""
    found = request.match_info
    return [found[key].encode("utf-8", "surrogateescape") for key in ("topic", "queue")]


TOPIC = "/v1/topics/{topic}"
ROUTES = (
    Route(
        "GET", "/v1/topics", "Q.LIST", TopicRoutes.listing, query=NoOptions, answer=Topics,
        errors=(StoreDown,),
    ),
    Route(
        "GET", TOPIC, "Q.STATS", TopicRoutes.get, query=NoOptions, answer=Topic,
        errors=(BadArg, NotFound, StoreDown),
    ),
    Route(
        "DELETE", TOPIC, "Q.DROPTOPIC", TopicRoutes.drop, query=NoOptions, answer=TopicDropped,
        errors=(BadArg, NotFound, StoreDown),
    ),
    Route(
        "PUT", f"{TOPIC}/queues/{{queue}}", "Q.LINK", TopicRoutes.link, body=LinkOptions,
        answer=Linked, errors=(BadArg, Full, NotFound, Stale, *STORE), arguments=_both,
    ),
    Route(
        "DELETE", f"{TOPIC}/queues/{{queue}}", "Q.UNLINK", TopicRoutes.unlink, query=NoOptions,
        answer=Unlinked, errors=(BadArg, NotFound, StoreDown), arguments=_both,
    ),
)  # fmt: skip
