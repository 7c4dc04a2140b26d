"""``R.*``: what this node knows of its cluster, and what changes the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tidewarden.errors import BadArg, Error
from tidewarden.server.access.permissions import ADMIN, LOGIN, every
from tidewarden.server.resp import encoder

from .command import Command, Pending, Request
from .options import number, text

if TYPE_CHECKING:
    from tidewarden.server.resp.connection import Connection


class ClusterView(Protocol):
    """What a node knows of its cluster."""

    def status(self) -> Mapping[str, Any]: ...


class ClusterOperations(Protocol):
    """Changes the cluster: a member of Raft does, which this room does not import."""

    def transfer(self, node: str | None) -> Awaitable[str]: ...
    def join(self, name: str, address: str) -> Awaitable[int]: ...
    def leave(self, name: str) -> Awaitable[int]: ...


def status(connection: Connection, request: Request) -> bytes:
    """R.STATUS"""
    return encoder.encode(dict(connection.server.cluster.status()), connection.resp)


def transfer(connection: Connection, request: Request) -> Pending:
    """R.TRANSFER"""
    node = text("A node's name", request[1]) if len(request) > 1 else None
    return Pending(_steering(connection).transfer(node), encoder.encode)


def join(connection: Connection, request: Request) -> Pending:
    """R.JOIN"""
    name, address = text("A node's name", request[1]), text("A node's address", request[2])
    return Pending(_steering(connection).join(name, address), encoder.encode)


def leave(connection: Connection, request: Request) -> Pending:
    """R.LEAVE"""
    return Pending(_steering(connection).leave(text("A node's name", request[1])), encoder.encode)


def backup(connection: Connection, request: Request) -> Pending:
    """R.BACKUP: make one; READ a piece of it; DROP it"""
    backups = connection.server.backups
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


def _steering(connection: Connection) -> ClusterOperations:
    steering = connection.server.steering
    if steering is None:
        raise Error("This node is a worker, which elects nobody: ask a member.")
    return steering


COMMANDS = (
    Command("R.STATUS", status, 1, 1, LOGIN, group="cluster"),
    Command("R.TRANSFER", transfer, 1, 2, every(*ADMIN), "[node]", group="cluster"),
    Command("R.JOIN", join, 3, 3, every(*ADMIN), "node host:base_port", group="cluster"),
    Command(
        "R.BACKUP", backup, 1, 4, every(*ADMIN), "[READ name offset | DROP name]", group="cluster"
    ),
    Command("R.LEAVE", leave, 2, 2, every(*ADMIN), "node", group="cluster"),
)
