"""Passes verbs from a node's further processes to its first: tokens, schedules, cluster, INFO."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from .resp.connection import Connection
from .resp.parser import Request
from .resp.relay_line import RelayLine
from .resp.reply_slot import Pending
from .verbs.command import Command, Outcome
from .verbs.traffic import push

STREAMS = b"R.TAP"
"""The verb that takes as long as the peer said, and ends with its connection."""
GROUPS = ("token", "schedule", "cluster")  # of verbs that the first process does
NAMES = ("INFO", "L.PEEK", "Q.HOLDERS")  # and others of its
SUBCOMMANDS = {"CLIENT": b"KILL", "SESSION": b"END"}
"""The verbs of which the first process does one form, which is about the consumers of all nodes."""


def relay(connection: Connection, request: Request) -> Pending:
    """Have the first process do any verb."""
    server = connection.server
    assert server.hand_over is not None
    speaks = (connection.peer.user, connection.resp, connection.peer.address)
    line = connection.relay
    if line is None or line.speaks != speaks:
        if line is not None:
            line.close()
        line = connection.relay = RelayLine(server.hand_over, *speaks)
    waits = request[0].upper() == STREAMS
    return Pending(line.ask(request, functools.partial(push, connection)), _as_it_is, waits)


def _as_it_is(reply: bytes, resp: int) -> bytes:
    return reply


def relayed(
    commands: Mapping[bytes, Command[Connection]],
) -> dict[bytes, Command[Connection]]:
    """Make the table of verbs of a further process."""
    return {
        name: dataclasses.replace(command, handler=relay)
        if command.group in GROUPS or command.name in NAMES
        else _relayed_in_part(command)
        for name, command in commands.items()
    }


def _relayed_in_part(command: Command[Connection]) -> Command[Connection]:
    word = SUBCOMMANDS.get(command.name)
    if word is None:
        return command

    def either(connection: Connection, request: Request) -> Outcome:
        if len(request) > 1 and request[1].upper() == word:
            return relay(connection, request)
        return command.handler(connection, request)

    return dataclasses.replace(command, handler=either)
