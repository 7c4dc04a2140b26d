"""Serves what is of the node itself: health for load balancers, leader, metrics, status."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.clock import Clock
from tidewarden.config.rights import Rights
from tidewarden.errors import Error
from tidewarden.server.http import metrics
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route
from tidewarden.server.services import Services

log = logging.getLogger("tidewarden.server")

OF_USERS = frozenset({"denied_total"})
"""Figures by user, which only users see who may see all figures."""
Stats = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]


OF_NODE = {"pid", "store_pid", "last_gap_ms"}
"""Numbers of a status that are no figures of the cluster."""


Role: TypeAlias = Annotated[
    Literal["leader", "follower", "candidate", "orphan", "worker"],
    Meta(
        description="In the election; `orphan`: no leader is heard of, and it keeps serving;"
        " `worker`: it takes part in none."
    ),
]
NodeName: TypeAlias = Annotated[str, Meta(description="A node's name.", examples=["n1"])]
Address: TypeAlias = Annotated[str, Meta(description="Host and port.", examples=["127.0.0.1:7420"])]
Seconds: TypeAlias = Annotated[
    float | None, Meta(description="Seconds; null: never, or not known.", examples=[0.2])
]


class Health(msgspec.Struct):
    """Says whether all is well, and why not."""

    ok: bool
    reason: Annotated[str, Meta(description="Why not; empty: all is well.")]
    warning: (
        Annotated[str, Meta(description="What somebody should look at all the same.")] | UnsetType
    ) = UNSET


class Leader(msgspec.Struct):
    """Says who leads, as the node knows."""

    node: NodeName
    role: Role
    leader: Annotated[str, Meta(description="Empty: none is known.", examples=["n1"])]


class StoreOfNode(msgspec.Struct):
    """Shows the store that a node uses."""

    name: Annotated[str, Meta(examples=["valkey"])]
    version: Annotated[str, Meta(examples=["8.1.1"])]
    at: Annotated[str, Meta(description="Where it is.", examples=["127.0.0.1:7423"])]
    up: bool
    clock_steps: Annotated[int, Meta(description="How often its clock has been set.")]
    clock_stepped_ms: int
    clock_stepped_ago_s: Seconds


class SessionCounts(msgspec.Struct):
    """Counts the sessions at a node."""

    attached: Annotated[int, Meta(description="To connections of this node.")]
    detached: Annotated[int, Meta(description="Those whose grace runs here.")]
    ended_total: Annotated[int, Meta(description="Those that ended here since the start.")]


class ProcessOfNode(msgspec.Struct):
    """Shows a further process of a node, which serves connections."""

    process: int
    pid: int
    ready: bool
    connections: int


class CopyOfStore(msgspec.Struct):
    """Shows one of the replicated stores."""

    role: Literal["primary", "member", "learner", "away"]
    incarnation: Annotated[str, Meta(description="Which start of it.")]
    behind: Annotated[
        int | None, Meta(description="Bytes that it lacks of the primary's; null: not known.")
    ]
    sync: Annotated[
        float | None, Meta(description="The share of a full copy that it has; null: none comes in.")
    ]
    why: Annotated[str, Meta(description="Why it is not in sync; empty: it is.")]


class MemberOfCluster(msgspec.Struct):
    """Shows one node of the cluster."""

    address: Address
    votes: bool
    met: Annotated[bool, Meta(description="Whether it was heard since it is a member.")]
    boot: Annotated[int, Meta(description="Which start of it.")]
    store_age_ms: Annotated[
        int, Meta(description="Since its last sign of life at the store; -1: none.")
    ]
    raft_heard_s: Seconds
    store: CopyOfStore | UnsetType = UNSET


class Status(msgspec.Struct):
    """Shows a node and its cluster, as the node sees it."""

    node: NodeName
    pid: int
    version: Annotated[str, Meta(description="Of Tidewarden.")]
    role: Role
    leader: Annotated[str, Meta(description="Empty: none is known.", examples=["n1"])]
    epoch: Annotated[int, Meta(description="The number of the leadership.")]
    sweeping: Annotated[bool, Meta(description="Whether it does what only the leader does.")]
    term: Annotated[int, Meta(description="Raft's.")]
    view: Annotated[int, Meta(description="The number of the primaryship of the stores.")]
    primary: Annotated[
        str,
        Meta(
            description="`embedded`: there is one store; `external`: your own; else the node whose"
            " store takes the writes.",
            examples=["n1"],
        ),
    ]
    quorum: Annotated[bool, Meta(description="Whether a majority of the members is heard.")]
    holder: Annotated[str, Meta(description="What its leases stand under.", examples=["n1.4"])]
    store: StoreOfNode
    sessions: SessionCounts
    processes: list[ProcessOfNode]
    members: Annotated[dict[str, MemberOfCluster], Meta(description="By their names.")]
    raft: Annotated[dict[str, Any], Meta(description="Figures of the election, for its doctors.")]
    in_sync: (
        Annotated[
            str,
            Meta(
                description="Nodes whose stores have every acknowledged write, blanks between.",
                examples=["n1 n2 n3"],
            ),
        ]
        | UnsetType
    ) = UNSET
    store_pid: int | UnsetType = UNSET
    loss: (
        Annotated[
            Literal["", "possible", "likely"],
            Meta(description="What a last resort may have lost, until that is confirmed."),
        ]
        | UnsetType
    ) = UNSET
    proposal: Annotated[str, Meta(description="A set that is about to be.")] | UnsetType = UNSET
    last_gap_ms: (
        Annotated[int, Meta(description="How long no primary was open last; -1: never.")]
        | UnsetType
    ) = UNSET
    store_problems: Annotated[list[str], Meta(description="Sentences.")] | UnsetType = UNSET


def fine() -> str:
    """Return no complaint."""
    return ""


class NodeRoutes:
    """
    Answers ``/health/*``, ``/leader``, ``/metrics`` and ``/v1/status``.

    Args:
        services: what metrics and status are of.
        clock: for pauses while metrics are rendered.
        rights: those of the caller.
        alive: why ``/health/live`` should say 503, or ``""``: asked per request, must not block.
        ready: the same for ``/health/ready``.
        warning: what an operator should look at all the same; shown there.
        stats: for ``/metrics``, a part's name and its ``stats``; queues and tokens are asked
            anyway.
    """

    def __init__(
        self,
        services: Services,
        clock: Clock,
        rights: Callable[[web.Request], Rights],
        *,
        alive: Callable[[], str],
        ready: Callable[[], str],
        warning: Callable[[], str],
        stats: Mapping[str, Stats],
    ) -> None:
        self._queues = services.queues
        self._tokens = services.tokens
        self._cluster = services.cluster
        self._clock = clock
        self._rights = rights
        self._alive = alive
        self._ready = ready
        self._warning = warning
        self._stats = stats

    async def live(self, request: web.Request) -> web.Response:
        """Say whether the process should go on, or be started again."""
        return self._health(self._alive())

    async def ready(self, request: web.Request) -> web.Response:
        """Say whether the node should be sent requests."""
        return self._health(self._ready())

    def _health(self, complaint: str) -> web.Response:
        found: dict[str, Any] = {"ok": not complaint, "reason": complaint}
        if warning := self._warning():
            found["warning"] = warning
        return respond(found, 503 if complaint else 200)

    async def leader(self, request: web.Request) -> web.Response:
        """Say whether this node leads; 503: it does not."""
        status = self._cluster.status()
        found = {
            "node": status.get("node"),
            "role": status.get("role"),
            "leader": status.get("leader"),
        }
        return respond(found, 200 if status.get("role") == "leader" else 503)

    async def status(self, request: web.Request) -> web.Response:
        """Return what this node knows of itself and its cluster."""
        return respond(dict(self._cluster.status()))

    async def metrics(self, request: web.Request) -> web.Response:
        """Return Prometheus text."""
        pieces = await self.metrics_text(self._rights(request))
        headers = {
            "Content-Type": "text/plain; version=0.0.4; charset=utf-8",
            "Content-Length": str(sum(map(len, pieces))),
        }
        return web.Response(body=metrics.in_parts(pieces, self._clock), headers=headers)

    async def metrics_text(self, rights: Rights) -> list[bytes]:
        """Return the pieces of what a caller with these rights may see of the metrics."""
        samples: list[metrics.Sample] = [("cluster", {}, _numbers(self._cluster.status()))]
        hidden = frozenset[str]() if rights.allow_every("stats") else OF_USERS
        for part, ask in self._stats.items():
            found = await _asked(ask)
            samples.append((part, {}, {key: found[key] for key in found if key not in hidden}))
        # The node's own figures matter most just when the store is away.
        async for some in metrics.of_store(self._queues, self._tokens, rights):
            samples += some
        return await metrics.render(samples, self._clock)


async def _asked(ask: Stats) -> Mapping[str, Any]:
    try:
        found = ask()
        return await found if inspect.isawaitable(found) else found
    except Error as error:
        log.debug("metrics without a part: %s", error)
        return {}


def _numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in status.items()
        if isinstance(value, int | float) and name not in OF_NODE
    }
    return {
        **found,
        "leads": int(status.get("role") == "leader"),
        "members": len(status.get("members") or ()),
    }


ROUTES = (
    Route("GET", "/health/live", "", NodeRoutes.live, answer=Health, others=((503, Health),)),
    Route("GET", "/health/ready", "", NodeRoutes.ready, answer=Health, others=((503, Health),)),
    Route("GET", "/leader", "", NodeRoutes.leader, answer=Leader, others=((503, Leader),)),
    Route(
        "GET",
        "/metrics",
        "Q.LIST",
        NodeRoutes.metrics,
        answer=bytes,
        media="text/plain",
        counted="/metrics",
    ),
    Route("GET", "/v1/status", "R.STATUS", NodeRoutes.status, answer=Status),
)
