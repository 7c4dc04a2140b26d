"""Lists every verb of the RESP door, by the bytes that a peer may write it with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tidewarden.server.audit.audited import Audited, noted
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending

from . import (
    cluster,
    connection,
    consumer,
    lock,
    provider,
    queue,
    queue_admin,
    schedule,
    session,
    token,
    traffic,
)
from .command import Command, Outcome


def table(commands: Iterable[Command[Connection]]) -> dict[bytes, Command[Connection]]:
    """
    Make the table of the commands, by name in upper and in lower case.

    A name in mixed case is looked up in upper case.
    """
    found: dict[bytes, Command[Connection]] = {}
    for command in commands:
        name = command.name.encode()
        if command.audited is not None:
            command = _noting(command, command.audited)
        found[name] = found[name.lower()] = command
    return found


def _noting(command: Command[Connection], audited: Audited) -> Command[Connection]:
    """Return the same verb, which the audit log notes."""

    def handler(connection: Connection, request: Request) -> Outcome:
        outcome = command.handler(connection, request)
        audit, words = connection.server.services.audit, audited.shown(request)
        if audit is None or words is None:
            return outcome
        peer = connection.peer

        def note(ended: str) -> None:
            audited.note(audit, peer.user or "", peer.address, command.name, words, ended)

        if isinstance(outcome, Pending):
            outcome.result = noted(outcome.result, note)
        else:
            note("ok")
        return outcome

    return dataclasses.replace(command, handler=handler)


COMMANDS: dict[bytes, Command[Connection]] = table(
    (
        *connection.COMMANDS,
        *session.COMMANDS,
        *queue.COMMANDS,
        *queue_admin.COMMANDS,
        *token.COMMANDS,
        *provider.COMMANDS,
        *schedule.COMMANDS,
        *lock.COMMANDS,
        *cluster.COMMANDS,
        *consumer.COMMANDS,
        *traffic.COMMANDS,
    )
)
