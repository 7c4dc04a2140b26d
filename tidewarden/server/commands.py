"""Every verb of the RESP door, by the bytes a peer may write it with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from . import (
    cluster_verbs,
    connection_verbs,
    lock_verbs,
    queue_verbs,
    schedule_verbs,
    session_verbs,
    token_verbs,
    upkeep_verbs,
)
from .demands import demands_of
from .verbs import Command


def table(commands: Iterable[Command]) -> dict[bytes, Command]:
    """The commands by name in upper and in lower case; a mixed one is looked up in upper case."""
    found: dict[bytes, Command] = {}
    for command in commands:
        if command.needs == "entry" and demands_of(command.name) is not None:
            command = dataclasses.replace(command, needs="right")
        name = command.name.encode()
        found[name] = found[name.lower()] = command
    return found


COMMANDS: dict[bytes, Command] = table(
    (
        *connection_verbs.COMMANDS,
        *session_verbs.COMMANDS,
        *queue_verbs.COMMANDS,
        *upkeep_verbs.COMMANDS,
        *token_verbs.COMMANDS,
        *schedule_verbs.COMMANDS,
        *lock_verbs.COMMANDS,
        *cluster_verbs.COMMANDS,
        *connection_verbs.LATER,
    )
)
