"""Serves the consumers of the cluster: who holds and waits, over all nodes, and their end."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, NotFound, StoreDown
from tidewarden.peer_line import EVERY_NODE
from tidewarden.server.consumers.cluster_consumers import (
    Closed,
    ConsumerPage,
    HolderPage,
)
from tidewarden.server.consumers.questions import LEASES_MAX, PAGE_MAX, KillAsk
from tidewarden.server.http.caller import queue_in_path, user_of
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import RightsOf, Route, whole
from tidewarden.server.services import Services
from tidewarden.server.verbs.consumer import served_consumers

from .tasks import QUEUE

NAME_MAX = 200
Text = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
NodeName = Annotated[
    str, Meta(max_length=NAME_MAX, description="One node's name, or all.", examples=["n0"])
]
After = Annotated[str, Meta(description="Where the page before ended.")]


class ConsumerOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which consumers: of a user, in a queue, of a node."""

    user: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    queue: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    node: NodeName = EVERY_NODE
    count: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many at most.")] = 100
    after: After = ""


class HolderOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says whose leases: of one task, or a page of them."""

    id: Annotated[str, Meta(max_length=NAME_MAX, description="Of this task alone.")] = ""
    count: Annotated[int, Meta(ge=1, le=LEASES_MAX, description="How many at most.")] = LEASES_MAX
    after: After = ""


class Kill(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says whose connections are closed: all that fit what is given, of which there is some."""

    client: (
        Annotated[int, Meta(ge=1, description="A number of its node's, which has to be named.")]
        | UnsetType
    ) = UNSET
    address: Text | UnsetType = UNSET
    user: Text | UnsetType = UNSET
    name: Text | UnsetType = UNSET
    session: Text | UnsetType = UNSET
    node: NodeName = EVERY_NODE


class ConsumerRoutes:
    """Answers ``/v1/consumers``, and who holds the tasks of a queue."""

    def __init__(self, services: Services, rights: RightsOf) -> None:
        self._services = services
        self._rights = rights

    async def listing(self, request: web.Request) -> web.Response:
        """Return a page of those who take, over all nodes, as far as the caller may see them."""
        asked = parameters_of(request, ConsumerOptions)
        page = await served_consumers(self._services).page(
            user_of(request),
            self._rights(request),
            of_user=asked.user,
            queue=asked.queue,
            node=asked.node,
            count=asked.count,
            after=asked.after,
        )
        return respond(page)

    async def holders(self, request: web.Request) -> web.Response:
        """Return who holds which tasks of a queue."""
        queue, asked = queue_in_path(request), parameters_of(request, HolderOptions)
        page = await served_consumers(self._services).holders(
            queue, task_id=asked.id, count=asked.count, after=asked.after
        )
        return respond(page)

    async def close(self, request: web.Request) -> web.Response:
        """Close connections, over all nodes; what they held is ready again."""
        parameters_of(request, NoOptions)
        asked = await body_of(request, Kill)
        named = {
            name: value
            for name, value in msgspec.structs.asdict(asked).items()
            if name != "node" and value is not UNSET
        }
        if "client" in named and asked.node == EVERY_NODE:
            raise BadArg("client is a number of its node's: node has to name that.")
        if not named:
            raise BadArg("Nobody is named: client, address, user, name or session is needed.")
        kill = served_consumers(self._services).kill(KillAsk("", **named), asked.node)
        return respond(await whole(kill))


def _kill(_: web.Request) -> list[bytes]:
    """Return the arguments as CLIENT has them where it ends others."""
    return [b"KILL"]


ROUTES = (
    Route(
        "GET", "/v1/consumers", "R.CONSUMERS", ConsumerRoutes.listing, query=ConsumerOptions,
        answer=ConsumerPage, errors=(BadArg, NotFound),
    ),
    Route(
        "POST", "/v1/consumers/close", "CLIENT", ConsumerRoutes.close, body=Kill, answer=Closed,
        errors=(BadArg, NotFound), arguments=_kill, example={"user": "mailer", "name": "worker-7"},
    ),
    Route(
        "GET", f"{QUEUE}/holders", "Q.HOLDERS", ConsumerRoutes.holders, query=HolderOptions,
        answer=HolderPage, errors=(BadArg, NotFound, StoreDown),
    ),
)  # fmt: skip
