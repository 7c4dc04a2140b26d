"""Serves ``R.*``, which show this node's knowledge of its cluster, and change the cluster."""

from __future__ import annotations

from tidewarden.cluster import Backups
from tidewarden.errors import BadArg, Error
from tidewarden.server.access.required_rights import ADMIN, LOGIN, every, every_as_user
from tidewarden.server.audit.audit_log import NOTHING
from tidewarden.server.audit.audited import unless, when, whole
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.server.services import ClusterOperations, Services, StoreOperations

from .command import Command
from .options import Option, Options, number, text

AUDIT = Options(
    "R.AUDIT",
    {
        "AFTER": Option("after", text),
        "COUNT": Option("count", number),
        "USER": Option("user", text),
    },
)


def status(connection: Connection, request: Request) -> bytes:
    """Answer ``R.STATUS``."""
    return encoder.encode(dict(connection.server.services.cluster.status()), connection.resp)


def transfer(connection: Connection, request: Request) -> Pending:
    """Answer ``R.TRANSFER``."""
    node = text("A node's name", request[1]) if len(request) > 1 else None
    return Pending(_operations(connection).transfer(node), encoder.encode)


def join(connection: Connection, request: Request) -> Pending:
    """Answer ``R.JOIN``."""
    name, address = text("A node's name", request[1]), text("A node's address", request[2])
    return Pending(_operations(connection).join(name, address), encoder.encode)


def leave(connection: Connection, request: Request) -> Pending:
    """Answer ``R.LEAVE``."""
    return Pending(_operations(connection).leave(text("A node's name", request[1])), encoder.encode)


def backup(connection: Connection, request: Request) -> Pending:
    """Answer ``R.BACKUP``: make a backup; READ a piece of it; DROP it."""
    backups = served_backups(connection.server.services)
    if len(request) == 1:
        return Pending(backups.make(), encoder.encode)
    word, name = request[1].upper(), text("A backup's name", request[2]) if len(request) > 2 else ""
    if word == b"READ" and len(request) == 4:
        return Pending(backups.read(name, number("An offset", request[3])), encoder.encode)
    if word == b"DROP" and len(request) == 3:
        return Pending(backups.drop(name), encoder.encode)
    raise BadArg("R.BACKUP takes nothing, READ name offset, or DROP name.")


def switchover(connection: Connection, request: Request) -> Pending:
    """Answer ``R.SWITCHOVER``."""
    node = text("A node's name", request[1]) if len(request) > 1 else None
    return Pending(_stores(connection, "R.SWITCHOVER").switchover(node), encoder.encode)


def recover(connection: Connection, request: Request) -> Pending:
    """Answer ``R.RECOVER``: without ACCEPTLOSS it says what it would do, and does nothing."""
    stores = _stores(connection, "R.RECOVER")
    named = list(request[1:])
    begin_empty = bool(named) and named[-1].upper() == b"BEGINEMPTY"
    if begin_empty:
        del named[-1]
    accepted = bool(named) and named[-1].upper() == b"ACCEPTLOSS"
    if accepted:
        del named[-1]
    if len(named) > 1 or (begin_empty and not accepted):
        raise BadArg("R.RECOVER takes [node] [ACCEPTLOSS [BEGINEMPTY]].")
    node = text("A node's name", named[0]) if named else None
    done = stores.recover(node, begin_empty) if accepted else stores.choice(node)
    return Pending(done, encoder.encode)


def confirm(connection: Connection, request: Request) -> Pending:
    """Answer ``R.CONFIRM``."""
    return Pending(_stores(connection, "R.CONFIRM").confirm(), encoder.encode)


def discarded(connection: Connection, request: Request) -> Pending:
    """Answer ``R.DISCARDED``."""
    return Pending(_stores(connection, "R.DISCARDED").discarded(), encoder.encode)


def audit(connection: Connection, request: Request) -> Pending:
    """Answer ``R.AUDIT``."""
    log = connection.server.services.audit
    if log is None:
        raise Error(NOTHING)
    return Pending(log.page(**AUDIT.parse(request, 1)), encoder.encode)


def _stores(connection: Connection, verb: str) -> StoreOperations:
    return served_stores(connection.server.services, verb)


def served_stores(services: Services, verb: str) -> StoreOperations:
    """Return the replicated stores. Raises: BadArg: this node has none, so there is no ``verb``."""
    stores = services.stores
    if stores is None:
        raise BadArg(
            f"{verb} is about replicated embedded stores, and this node has none: the cluster has"
            " one store, or this node is a worker (ask a member). R.TRANSFER has another node lead."
            " The primary of a Redis or Valkey of your own is moved there: SENTINEL FAILOVER,"
            " CLUSTER FAILOVER."
        )
    return stores


def _operations(connection: Connection) -> ClusterOperations:
    return served_operations(connection.server.services)


def served_operations(services: Services) -> ClusterOperations:
    """Return the part that changes the cluster. Raises: Error: this node is no member."""
    if services.operations is None:
        raise Error("This node is a worker, which elects nobody: ask a member.")
    return services.operations


def served_backups(services: Services) -> Backups:
    """Return the part that copies the store. Raises: Error: this node makes no backups."""
    if services.backups is None:
        raise Error("This node makes no backups.")
    return services.backups


COMMANDS = (
    Command("R.STATUS", status, 1, 1, LOGIN, group="cluster"),
    Command(
        "R.AUDIT",
        audit,
        1,
        7,
        every_as_user(*ADMIN),
        "[AFTER cursor] [COUNT n] [USER u]",
        group="cluster",
    ),
    Command(
        "R.TRANSFER", transfer, 1, 2, every(*ADMIN), "[node]", group="cluster", audited=whole()
    ),
    Command(
        "R.JOIN", join, 3, 3, every(*ADMIN), "node host:base_port", group="cluster", audited=whole()
    ),
    Command(
        "R.BACKUP",
        backup,
        1,
        4,
        every(*ADMIN),
        "[READ name offset | DROP name]",
        group="cluster",
        audited=unless(b"READ"),
    ),
    Command(
        "R.SWITCHOVER", switchover, 1, 2, every(*ADMIN), "[node]", group="cluster", audited=whole()
    ),
    Command(
        "R.RECOVER",
        recover,
        1,
        4,
        every(*ADMIN),
        "[node] [ACCEPTLOSS [BEGINEMPTY]]",
        group="cluster",
        audited=when(b"ACCEPTLOSS"),
    ),
    Command("R.CONFIRM", confirm, 1, 1, every(*ADMIN), group="cluster", audited=whole()),
    Command("R.DISCARDED", discarded, 1, 1, every(*ADMIN), group="cluster"),
    Command("R.LEAVE", leave, 2, 2, every(*ADMIN), "node", group="cluster", audited=whole()),
)
