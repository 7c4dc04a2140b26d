"""``R.*``: what this node knows of its cluster, and what changes the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidewarden.errors import Error

from . import replies
from .options import text
from .parts import Steering
from .verbs import Command, Pending, Request

if TYPE_CHECKING:
    from .connection import Connection


def status(connection: Connection, request: Request) -> bytes:
    """R.STATUS"""
    return replies.encode(dict(connection.server.cluster.status()), connection.resp)


def transfer(connection: Connection, request: Request) -> Pending:
    """R.TRANSFER"""
    node = text("A node's name", request[1]) if len(request) > 1 else None
    return Pending(_steering(connection).transfer(node), replies.encode)


def _steering(connection: Connection) -> Steering:
    steering = connection.server.steering
    if steering is None:
        raise Error("This node takes part in no elections.")
    return steering


COMMANDS = (
    Command("R.STATUS", status, 1, 1, group="cluster"),
    Command("R.TRANSFER", transfer, 1, 2, "[node]", group="cluster"),
)
