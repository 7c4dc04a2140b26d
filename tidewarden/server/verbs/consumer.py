"""Shows and ends consumers, for R.CONSUMERS, Q.HOLDERS, CLIENT KILL and SESSION END."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec

from tidewarden.errors import BadArg, Error, Timeout
from tidewarden.peer_line import EVERY_NODE, silent_ones
from tidewarden.server.access.required_rights import ADMIN, LOGIN, on
from tidewarden.server.access.users import DEFAULT_NAME
from tidewarden.server.consumers.cluster_consumers import Closed, ClusterConsumers
from tidewarden.server.consumers.questions import KillAsk, asker_of
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.server.services import Services

from .command import Command
from .options import Option, Options, number, shown, text
from .queue import queue_name

CONSUMERS = Options(
    "R.CONSUMERS",
    {
        "USER": Option("of_user", text),
        "QUEUE": Option("queue", text),
        "NODE": Option("node", text),
        "COUNT": Option("count", number),
        "AFTER": Option("after", text),
    },
)
HOLDERS = Options(
    "Q.HOLDERS",
    {
        "ID": Option("task_id", text),
        "COUNT": Option("count", number),
        "AFTER": Option("after", text),
    },
)


def yes_or_no(word: str, value: bytes) -> bool:
    """Read yes or no."""
    if value.lower() not in (b"yes", b"no"):
        raise BadArg(f"{word} is yes or no: found {shown(value)}.")
    return value.lower() == b"yes"


def some_text(word: str, value: bytes) -> str:
    """Read text that is not empty: empty would mean everybody."""
    if not value:
        raise BadArg(f"{word} must not be empty.")
    return text(word, value)


def one_or_more(word: str, value: bytes) -> int:
    """Read a number that is not 0."""
    if not (found := number(word, value)):
        raise BadArg(f"{word} is 1 or more: found 0.")
    return found


KILL = Options(
    "CLIENT KILL",
    {
        "ID": Option("client", one_or_more),
        "ADDR": Option("address", some_text),
        "USER": Option("user", some_text),
        "NAME": Option("name", some_text),
        "SESSION": Option("session", some_text),
        "SKIPME": Option("spares", yes_or_no),
        "NODE": Option("node", some_text),
    },
)
TOGETHER = 4
"""The most questions of one connection under way at a time: each node reads all its consumers."""
ALL_OF_IT = ("spares", "node")
"""The options of CLIENT KILL that name no connection."""


def served_consumers(services: Services) -> ClusterConsumers:
    """Return the part that knows the cluster's consumers. Raises: Error: this node has none."""
    if services.consumers_of_cluster is None:
        raise Error("This node knows no consumers but its own.")
    return services.consumers_of_cluster


def consumers(connection: Connection, request: Request) -> Pending:
    """Answer ``R.CONSUMERS``."""
    fields = CONSUMERS.parse(request, 1)
    known, peer = served_consumers(connection.server.services), connection.peer
    page = known.page(peer.user or DEFAULT_NAME, peer.rights, **fields)
    return Pending(_told(page), encoder.encode)


def holders(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.HOLDERS``."""
    queue, fields = queue_name(request[1]), HOLDERS.parse(request, 2)
    page = served_consumers(connection.server.services).holders(queue, **fields)
    return Pending(_told(page), encoder.encode)


def kill(connection: Connection, rest: Request) -> Pending:
    """
    Answer ``CLIENT KILL`` with how many were closed, or OK in its old form, ``CLIENT KILL addr``.

    Raises: Timeout: a node did not answer, and the message says which.
    """
    old = len(rest) == 1
    fields: dict[str, Any] = (
        {"address": some_text("ADDR", rest[0]), "spares": False} if old else KILL.parse(rest, 0)
    )
    if not fields.keys() - ALL_OF_IT:
        raise BadArg("CLIENT KILL needs ID, ADDR, USER, NAME or SESSION: whom it is to end.")
    known = served_consumers(connection.server.services)
    # a number is one of a node's
    node = fields.pop("node", known.name if "client" in fields else EVERY_NODE)

    async def closed() -> int:
        asker = asker_of(known.name, connection.peer.address)
        found = await known.kill(KillAsk(asker, **fields), node)
        if old and not found.closed and not found.unreachable:
            raise Error("No such client")
        return _all_of(found)

    return Pending(closed(), _ok if old else _count)


def _all_of(found: Closed) -> int:
    """Return how many connections were closed. Raises: Timeout: there may be others."""
    if found.unreachable:
        silent = silent_ones(found.unreachable)
        raise Timeout(
            f"{found.closed} connections were closed; not all nodes have answered: {silent}"
        )
    return found.closed


def end_session(connection: Connection, request: Request) -> Pending:
    """Answer ``SESSION END uuid``: of its user's own, or anybody's to an administrator of all."""
    uuid, peer = text("A session", request[2]), connection.peer
    user = "" if peer.rights.allow_every("admin") else peer.user or DEFAULT_NAME
    known = served_consumers(connection.server.services)
    return Pending(_told(known.end_session(uuid, user, peer.address)), encoder.encode)


async def _told(answer: Awaitable[msgspec.Struct]) -> Any:
    """Return an answer that is encoded in turns: it may be long."""
    return msgspec.to_builtins(await answer)


def _count(closed: Any, resp: int) -> bytes:
    return encoder.integer(closed)


def _ok(_: Any, resp: int) -> bytes:
    return encoder.OK


COMMANDS = (
    Command(
        "R.CONSUMERS",
        consumers,
        1,
        11,
        LOGIN,
        "[USER u] [QUEUE q] [NODE name|all] [COUNT n] [AFTER cursor]",
        group="cluster",
        together=TOGETHER,
    ),
    Command(
        "Q.HOLDERS",
        holders,
        2,
        8,
        on(ADMIN, 1),
        "queue [ID id] [COUNT n] [AFTER cursor]",
        group="queue",
        together=TOGETHER,
    ),
)
