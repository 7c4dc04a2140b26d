"""Serves ``SESSION``, by which a connection joins a session that outlives it, or ends one."""

from __future__ import annotations

from tidewarden.errors import BadArg, Draining
from tidewarden.server.access.required_rights import LOGIN
from tidewarden.server.access.users import DEFAULT_NAME
from tidewarden.server.audit.audited import subcommand
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending

from .command import Command
from .consumer import end_session
from .options import Option, Options, number, text

SESSION = Options("SESSION", {"GRACE": Option("grace_ms", number)})


def session(connection: Connection, request: Request) -> Pending:
    """Answer ``SESSION [uuid] [GRACE ms]`` and ``SESSION END uuid``."""
    server = connection.server
    if len(request) == 3 and request[1].upper() == b"END":
        return end_session(connection, request)
    named = len(request) > 1 and request[1].upper() != b"GRACE"
    uuid = text("A session", request[1]) if named else ""
    fields = SESSION.parse(request, 2 if named else 1)
    if named and not uuid:
        raise BadArg("SESSION takes a uuid that it answered, or none for a new session: found ''.")
    if server.peers.draining:
        raise Draining("This node is going down and lets no session in. Connect to another.")
    user = connection.peer.user or DEFAULT_NAME
    return Pending(
        server.queues.join_session(connection.open_session(), user, uuid, **fields), _uuid
    )


def _uuid(uuid: str, resp: int) -> bytes:
    return encoder.bulk(uuid)


COMMANDS = (
    Command(
        "SESSION",
        session,
        1,
        4,
        LOGIN,
        "[uuid] [GRACE ms] | END uuid",
        audited=subcommand(b"END"),
    ),
)
