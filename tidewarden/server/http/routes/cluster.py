"""Serves what a node knows of the cluster, and what changes the cluster."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.errors import BadArg, Exists, Full, NoLeader, NotFound, StoreDown, Timeout
from tidewarden.server.http.params import NoOptions, body_of, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route, whole
from tidewarden.server.services import Services
from tidewarden.server.verbs.cluster import (
    served_backups,
    served_operations,
    served_stores,
)
from tidewarden.server.verbs.options import DIGITS_MAX

from .tasks import BYTES, Done

NodeName = Annotated[str, Meta(min_length=1, max_length=200, examples=["n2"])]


class ToNode(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names a node; absent: the one that fits best."""

    node: NodeName | UnsetType = UNSET

    def name(self) -> str | None:
        """Return the node's name; None: the one that fits best."""
        return None if self.node is UNSET else self.node


class Join(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names a node that is to be a member."""

    node: NodeName
    address: Annotated[str, Meta(min_length=1, examples=["10.0.0.3:7420"])]


class Leave(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names a node that is to be no member any more."""

    node: NodeName


class Recover(ToNode, forbid_unknown_fields=True, kw_only=True):
    """Says which store is made primary; without ``accept_loss`` the answer says what would be."""

    accept_loss: bool = False
    begin_empty: Annotated[bool, Meta(description="Also a store that is empty.")] = False


class Leader(msgspec.Struct):
    """Says who leads now."""

    leader: str


class Members(msgspec.Struct):
    """Holds the version of the list of members."""

    version: int


class Primary(msgspec.Struct):
    """Says whose store is the primary now."""

    primary: str


class Confirmed(msgspec.Struct):
    """Says which loss somebody knows of now: ``possible``, ``likely``, or none."""

    loss: str


class Discarded(msgspec.Struct):
    """Lists what this node's store set aside."""

    discarded: list[dict[str, Any]]


class PieceOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says where the piece begins."""

    offset: Annotated[int, Meta(ge=0, lt=10**DIGITS_MAX)] = 0


class ClusterRoutes:
    """Answers ``/v1/cluster``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def status(self, request: web.Request) -> web.Response:
        """Return what this node knows of itself and its cluster."""
        parameters_of(request, NoOptions)
        return respond(dict(self._services.cluster.status()))

    async def transfer(self, request: web.Request) -> web.Response:
        """Have another node lead."""
        asked = await body_of(request, ToNode)
        operations = served_operations(self._services)
        return respond(Leader(await whole(operations.transfer(asked.name()))))

    async def join(self, request: web.Request) -> web.Response:
        """Let a node in as a member."""
        asked = await body_of(request, Join)
        operations = served_operations(self._services)
        return respond(Members(await whole(operations.join(asked.node, asked.address))))

    async def leave(self, request: web.Request) -> web.Response:
        """Have a node be no member any more."""
        asked = await body_of(request, Leave)
        operations = served_operations(self._services)
        return respond(Members(await whole(operations.leave(asked.node))))

    async def switchover(self, request: web.Request) -> web.Response:
        """Have another node's store be the primary, without any loss."""
        asked = await body_of(request, ToNode)
        stores = served_stores(self._services, "switchover")
        return respond(Primary(await whole(stores.switchover(asked.name()))))

    async def recover(self, request: web.Request) -> web.Response:
        """Say which store would be made primary though it is not in sync, or make it so."""
        asked = await body_of(request, Recover)
        stores = served_stores(self._services, "recover")
        if asked.accept_loss:
            return respond(dict(await whole(stores.recover(asked.name(), asked.begin_empty))))
        return respond(dict(await whole(stores.choice(asked.name()))))

    async def confirm(self, request: web.Request) -> web.Response:
        """Note that somebody knows of a loss."""
        await body_of(request, NoOptions)
        stores = served_stores(self._services, "confirm")
        return respond(Confirmed(await whole(stores.confirm())))

    async def discarded(self, request: web.Request) -> web.Response:
        """Return what this node's store set aside."""
        parameters_of(request, NoOptions)
        found = await served_stores(self._services, "discarded").discarded()
        return respond(Discarded([dict(one) for one in found]))

    async def make_backup(self, request: web.Request) -> web.Response:
        """Copy the embedded store, to be read in pieces from this node."""
        await body_of(request, NoOptions)
        return respond(await whole(served_backups(self._services).make()))

    async def read_backup(self, request: web.Request) -> web.Response:
        """Return at most a mebibyte of a copy; nothing at its end."""
        asked = parameters_of(request, PieceOptions)
        name = request.match_info["backup"]
        piece = await served_backups(self._services).read(name, asked.offset)
        headers = {"Content-Type": BYTES, "Cache-Control": "no-store"}
        return web.Response(body=piece, headers=headers)

    async def drop_backup(self, request: web.Request) -> web.Response:
        """Forget a copy."""
        parameters_of(request, NoOptions)
        name = request.match_info["backup"]
        if not await whole(served_backups(self._services).drop(name)):
            raise NotFound(f"There is no backup {name[:80]!r} here.")
        return respond(Done())


CLUSTER = "/v1/cluster"
BACKUP = f"{CLUSTER}/backups/{{backup}}"
RAFT = (BadArg, NotFound, NoLeader, Timeout)
ROUTES = (
    Route("GET", CLUSTER, "R.STATUS", ClusterRoutes.status, query=NoOptions, answer=dict[str, Any]),
    Route(
        "POST", f"{CLUSTER}/transfer", "R.TRANSFER", ClusterRoutes.transfer, body=ToNode,
        answer=Leader, errors=RAFT,
    ),
    Route(
        "POST", f"{CLUSTER}/join", "R.JOIN", ClusterRoutes.join, body=Join, answer=Members,
        errors=(Exists, *RAFT),
    ),
    Route(
        "POST", f"{CLUSTER}/leave", "R.LEAVE", ClusterRoutes.leave, body=Leave, answer=Members,
        errors=RAFT,
    ),
    Route(
        "POST", f"{CLUSTER}/switchover", "R.SWITCHOVER", ClusterRoutes.switchover, body=ToNode,
        answer=Primary, errors=RAFT,
    ),
    Route(
        "POST", f"{CLUSTER}/recover", "R.RECOVER", ClusterRoutes.recover, body=Recover,
        answer=dict[str, Any], errors=RAFT,
    ),
    Route(
        "POST", f"{CLUSTER}/confirm", "R.CONFIRM", ClusterRoutes.confirm, body=NoOptions,
        answer=Confirmed, errors=RAFT,
    ),
    Route(
        "GET", f"{CLUSTER}/discarded", "R.DISCARDED", ClusterRoutes.discarded, query=NoOptions,
        answer=Discarded, errors=RAFT,
    ),
    Route(
        "POST", f"{CLUSTER}/backups", "R.BACKUP", ClusterRoutes.make_backup, body=NoOptions,
        answer=dict[str, Any], errors=(BadArg, Exists, Full, StoreDown),
    ),
    Route(
        "GET", BACKUP, "R.BACKUP", ClusterRoutes.read_backup, query=PieceOptions, answer=bytes,
        media=BYTES, errors=(BadArg, NotFound),
    ),
    Route(
        "DELETE", BACKUP, "R.BACKUP", ClusterRoutes.drop_backup, query=NoOptions, answer=Done,
        errors=(BadArg, NotFound),
    ),
)  # fmt: skip
