"""
Answers operators at a node that waits for a primary: who is there, and what a last resort would do.

A node serves once a store takes the writes. When none can be chosen without an operator's word, it
would wait for ever, and could not be given that word. So meanwhile its RESP port has the verbs of
the cluster and of connections; every other verb says what is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from tidewarden import __version__
from tidewarden.clock import Clock, sleep
from tidewarden.cluster.replication.replication import Replication
from tidewarden.config.load import Config
from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.queue import Queues
from tidewarden.raft import RaftMember
from tidewarden.raft.state import base_address
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.server import RespServer
from tidewarden.server.services import Services
from tidewarden.server.verbs.command import Command
from tidewarden.server.verbs.table import COMMANDS

from .os_process import tell_supervisor

log = logging.getLogger("tidewarden.daemon")

PATIENCE_S = 1.0
"""A primary that is chosen sooner, as at most starts, is not worth a door."""
EXTEND_S = 10.0
CONNECTIONS_MAX = 100
SERVED = {"cluster", "connection"}
"""The groups of verbs that need no store; of the latter all but these:"""
NEEDS_STORE = {"TIME", "SESSION"}


class WaitingStatus:
    """Shows what a node knows of its cluster before there is a store to ask."""

    def __init__(self, config: Config, member: RaftMember, replication: Replication) -> None:
        self._config, self._member, self._replication = config, member, replication

    def status(self) -> dict[str, Any]:
        """Return the part of R.STATUS that is known."""
        raft, seen = self._member, self._replication.seen
        return {
            "node": self._config.node.name,
            "pid": os.getpid(),
            "version": __version__,
            "role": raft.role(),
            "leader": raft.leader() or "",
            "epoch": int(raft.committed().get("epoch", 0)),
            "sweeping": False,
            "term": raft.term,
            "quorum": raft.has_quorum(),
            "holder": "",
            "store": {"name": "", "version": "", "at": "", "up": False},
            "sessions": {},
            "processes": [],
            "members": self._members(),
            "raft": raft.status(),
            **seen.shown(),
        }

    def _members(self) -> dict[str, dict[str, Any]]:
        raft, copies = self._member, self._replication.seen.copies()
        return {
            name: {
                "address": base_address(seat.address),
                "votes": seat.votes,
                "met": seat.met,
                "boot": 0,
                "store_age_ms": -1,
                "raft_heard_s": None,
                **({"store": copies[name]} if name in copies else {}),
            }
            for name, seat in sorted(raft.seats().items())
        }


def waiting_commands(
    commands: Mapping[bytes, Command[Connection]], replication: Replication
) -> dict[bytes, Command[Connection]]:
    """Return the table in which what needs the store says why it cannot be had."""

    def refuse(connection: Connection, request: Request) -> bytes:
        raise (NoQuorum if replication.finder.alone else StoreDown)(
            f"No store takes writes yet, and this node waits: {replication.seen.waits_for()}."
        )

    return {
        word: command
        if command.group in SERVED and command.name not in NEEDS_STORE
        else dataclasses.replace(command, handler=refuse)
        for word, command in commands.items()
    }


@contextlib.asynccontextmanager
async def waiting_door(
    config: Config, clock: Clock, member: RaftMember, replication: Replication
) -> AsyncIterator[None]:
    """Answer operators, after a second, until it is left; the supervisor is told to be patient."""
    opening = asyncio.create_task(
        _serve(config, clock, member, replication), name="door of a node that waits"
    )
    try:
        yield
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


async def _serve(
    config: Config, clock: Clock, member: RaftMember, replication: Replication
) -> None:
    await sleep(clock, PATIENCE_S)
    server = RespServer(
        config,
        Services(
            cast(Queues, None),  # no verb that is served here reaches them
            WaitingStatus(config, member, replication),
            operations=member,
            stores=replication,
        ),
        clock,
        commands=waiting_commands(COMMANDS, replication),
        connections_max=CONNECTIONS_MAX,
    )
    try:
        await server.start()
    except OSError as error:
        log.error("port %d cannot be had: %s", config.node.resp_port, error)
        return
    log.info("R.STATUS and R.RECOVER are answered while a primary is waited for")
    try:
        while True:
            tell_supervisor(f"EXTEND_TIMEOUT_USEC={int(6 * EXTEND_S * 1_000_000)}")
            await sleep(clock, EXTEND_S)
    finally:
        await server.stop(0.0)
