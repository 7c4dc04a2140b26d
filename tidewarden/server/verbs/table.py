"""Every verb of the RESP door, by the bytes a peer may write it with."""

from __future__ import annotations

from collections.abc import Iterable

from tidewarden.server.resp.connection import Connection

from . import (
    cluster,
    connection,
    lock,
    queue,
    queue_admin,
    schedule,
    session,
    token,
    traffic,
)
from .command import Command


def table(commands: Iterable[Command[Connection]]) -> dict[bytes, Command[Connection]]:
    """The commands by name in upper and in lower case; a mixed one is looked up in upper case."""
    found: dict[bytes, Command[Connection]] = {}
    for command in commands:
        name = command.name.encode()
        found[name] = found[name.lower()] = command
    return found


COMMANDS: dict[bytes, Command[Connection]] = table(
    (
        *connection.COMMANDS,
        *session.COMMANDS,
        *queue.COMMANDS,
        *queue_admin.COMMANDS,
        *token.COMMANDS,
        *schedule.COMMANDS,
        *lock.COMMANDS,
        *cluster.COMMANDS,
        *traffic.COMMANDS,
    )
)
