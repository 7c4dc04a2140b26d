"""``R.*``: what this node knows of its cluster, and what changes the cluster."""

from __future__ import annotations

from tidewarden.errors import BadArg, Error
from tidewarden.server.access.required_rights import ADMIN, LOGIN, every
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.server.services import ClusterOperations

from .command import Command
from .options import number, text


def status(connection: Connection, request: Request) -> bytes:
    """R.STATUS."""
    return encoder.encode(dict(connection.server.services.cluster.status()), connection.resp)


def transfer(connection: Connection, request: Request) -> Pending:
    """R.TRANSFER."""
    node = text("A node's name", request[1]) if len(request) > 1 else None
    return Pending(_operations(connection).transfer(node), encoder.encode)


def join(connection: Connection, request: Request) -> Pending:
    """R.JOIN."""
    name, address = text("A node's name", request[1]), text("A node's address", request[2])
    return Pending(_operations(connection).join(name, address), encoder.encode)


def leave(connection: Connection, request: Request) -> Pending:
    """R.LEAVE."""
    return Pending(_operations(connection).leave(text("A node's name", request[1])), encoder.encode)


def backup(connection: Connection, request: Request) -> Pending:
    """R.BACKUP: make one; READ a piece of it; DROP it."""
    backups = connection.server.services.backups
    if backups is None:
        raise Error("This node makes no backups.")
    if len(request) == 1:
        return Pending(backups.make(), encoder.encode)
    word, name = request[1].upper(), text("A backup's name", request[2]) if len(request) > 2 else ""
    if word == b"READ" and len(request) == 4:
        return Pending(backups.read(name, number("An offset", request[3])), encoder.encode)
    if word == b"DROP" and len(request) == 3:
        return Pending(backups.drop(name), encoder.encode)
    raise BadArg("R.BACKUP takes nothing, READ name offset, or DROP name.")


def _operations(connection: Connection) -> ClusterOperations:
    operations = connection.server.services.operations
    if operations is None:
        raise Error("This node is a worker, which elects nobody: ask a member.")
    return operations


COMMANDS = (
    Command("R.STATUS", status, 1, 1, LOGIN, group="cluster"),
    Command("R.TRANSFER", transfer, 1, 2, every(*ADMIN), "[node]", group="cluster"),
    Command("R.JOIN", join, 3, 3, every(*ADMIN), "node host:base_port", group="cluster"),
    Command(
        "R.BACKUP", backup, 1, 4, every(*ADMIN), "[READ name offset | DROP name]", group="cluster"
    ),
    Command("R.LEAVE", leave, 2, 2, every(*ADMIN), "node", group="cluster"),
)
