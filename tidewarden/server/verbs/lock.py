"""Serves ``L.*``, the verbs of locks."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, Draining, Error
from tidewarden.queue.locks import Locks
from tidewarden.queue.settings import LOCKS_QUEUE
from tidewarden.queue.task import COUNT_MAX
from tidewarden.server.access.required_rights import LOGIN, on
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.server.services import Services

from .command import Command
from .options import Option, Options, data, number, text
from .queue import ok

ACQUIRE = Options("L.ACQUIRE", {"WAIT": Option("wait_ms", number), "KEY": Option("key", data)})
LIST = Options("L.LIST", {"COUNT": Option("count", number), "AFTER": Option("after", text)})


def acquire(connection: Connection, request: Request) -> Pending:
    """Answer ``L.ACQUIRE``."""
    name, lease_ms = _name(request), number("The lease (ms)", request[2])
    fields = ACQUIRE.parse(request, 3)
    if fields.get("key") == b"":
        raise BadArg("KEY is empty; allowed are 1 to 200 bytes, or no KEY.")
    server = connection.server
    if server.peers.draining:
        raise Draining("This node is going down and hands out nothing new. Connect to another.")
    waits = fields.get("wait_ms", 0) > 0
    if waits:
        connection.check_wait()
    locks = _locks(connection)
    return Pending(
        locks.acquire(connection.open_session(), name, lease_ms, **fields), encoder.encode, waits
    )


def renew(connection: Connection, request: Request) -> Pending:
    """Answer ``L.RENEW``."""
    name, fence, lease_ms = (
        _name(request),
        number("A fence", request[2]),
        number("The lease (ms)", request[3]),
    )
    return Pending(_locks(connection).renew(connection.open_session(), name, fence, lease_ms), ok)


def release(connection: Connection, request: Request) -> Pending:
    """Answer ``L.RELEASE``."""
    name, fence = _name(request), number("A fence", request[2])
    return Pending(_locks(connection).release(connection.open_session(), name, fence), ok)


def peek(connection: Connection, request: Request) -> Pending:
    """Answer ``L.PEEK``."""
    server, rights = connection.server, connection.peer.rights
    return Pending(described_lock(server.services, rights, _name(request)), encoder.encode)


def described_lock(services: Services, rights: Rights, name: str) -> Awaitable[dict[str, Any]]:
    """Describe a lock; and who holds it, to whoever may see that, where this node knows it."""
    if services.consumers_of_cluster is None or not rights.allow("admin", LOCKS_QUEUE):
        return served_locks(services).peek(name)
    return services.consumers_of_cluster.lock(name)


def listing(connection: Connection, request: Request) -> Pending:
    """Answer ``L.LIST``."""
    fields = {"count": 100, "after": "", **LIST.parse(request, 1)}
    return Pending(seen_locks(_locks(connection), connection.peer.rights, **fields), _page)


async def seen_locks(
    locks: Locks, rights: Rights, count: int, after: str
) -> tuple[list[dict[str, Any]], str]:
    """
    Return a page of the locks to which the user has a right, and the cursor behind it.

    A cursor names the lock that it goes on from: it is one of the user's.
    """
    if rights.allow_every("lock") or not 1 <= count <= COUNT_MAX:
        return await locks.page(count, after)
    found: list[dict[str, Any]] = []
    size = COUNT_MAX
    while len(found) < count:
        page, behind = await locks.page(size, after)
        size = COUNT_MAX
        own = [place for place, lock in enumerate(page) if rights.allow("lock", lock["name"])]
        if own:
            last = own[: count - len(found)][-1]
            if last + 1 < len(page):  # the page ends with a lock of the user's
                page, behind = await locks.page(last + 1, after)
                if not page or not rights.allow("lock", page[-1]["name"]):
                    size = 1  # some were released meanwhile; one at a time this gets on
                    continue
            found += [lock for lock in page if rights.allow("lock", lock["name"])]
        if behind in ("", after):
            return found, ""
        after = behind
    return found, after


def _name(request: Request) -> str:
    return text("A lock's name", request[1])


def _locks(connection: Connection) -> Locks:
    return served_locks(connection.server.services)


def served_locks(services: Services) -> Locks:
    """Return the node's locks. Raises: Error: it serves none."""
    if services.locks is None:
        raise Error("This node serves no locks.")
    return services.locks


def _page(result: tuple[list[dict[str, Any]], str], resp: int) -> bytes:
    return encoder.encode(list(result), resp)


COMMANDS = (
    Command(
        "L.ACQUIRE", acquire, 3, 7, on(("lock",), 1), "name ms [WAIT ms] [KEY bytes]", group="lock"
    ),
    Command("L.RENEW", renew, 4, 4, on(("lock",), 1), "name fence ms", group="lock"),
    Command("L.RELEASE", release, 3, 3, on(("lock",), 1), "name fence", group="lock"),
    Command("L.PEEK", peek, 2, 2, on(("lock",), 1), "name", group="lock"),
    Command("L.LIST", listing, 1, 5, LOGIN, "[COUNT n] [AFTER cursor]", group="lock"),
)
