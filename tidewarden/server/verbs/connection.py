"""
Serves the verbs that stock clients need to connect.

They are HELLO, AUTH, PING, CLIENT, INFO, COMMAND, MULTI and their like.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tidewarden import __version__
from tidewarden.clock import sleep
from tidewarden.errors import BadArg, Error, NoAuth
from tidewarden.server.access.peer import UNAUTHENTICATED
from tidewarden.server.access.required_rights import (
    ADMIN,
    LOGIN,
    OPEN,
    Arguments,
    Requirement,
    depends,
)
from tidewarden.server.audit.audited import subcommand
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.context import ServerContext
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.server.resp.transaction import Transaction

from .command import ANY, Command
from .consumer import kill
from .options import shown, text

MUTE_ALL = 1 << 60
LINES_A_TURN = 500
# what an unauthenticated peer pays for a look at its secret, beside the stretching of passwords
CHECK_S = 0.000_1


def ping(connection: Connection, request: Request) -> bytes:
    """Answer ``PING``."""
    return encoder.PONG if len(request) == 1 else encoder.encode(request[1], connection.resp)


def echo(connection: Connection, request: Request) -> bytes:
    """Answer ``ECHO``."""
    return encoder.encode(request[1], connection.resp)


def auth(connection: Connection, request: Request) -> Pending:
    """Answer ``AUTH secret`` and ``AUTH user secret``."""
    user = text("A user's name", request[1]) if len(request) == 3 else ""
    return Pending(_enter(connection, user, request[-1]), _ok)


async def _enter(connection: Connection, user: str, secret: bytes) -> None:
    users = connection.server.users
    if connection.unauthenticated is not None:
        connection.unauthenticated.charge(CHECK_S)
    found = await users.authenticate(
        user, secret.decode("utf-8", "surrogateescape"), connection.peer.address
    )
    connection.enter(found)


def hello(connection: Connection, request: Request) -> bytes | Pending:
    """Answer ``HELLO [version [AUTH user secret] [SETNAME name]]``."""
    resp = connection.resp
    if len(request) > 1:
        if request[1] not in (b"2", b"3"):
            return encoder.error_line(
                "NOPROTO", "unsupported protocol version: this server speaks 2 and 3"
            )
        resp = int(request[1])
    user, secret, name = "", None, None
    position = 2
    while position < len(request):
        word, left = request[position].upper(), len(request) - position - 1
        if word == b"AUTH" and left >= 2:
            user, secret = text("A user's name", request[position + 1]), request[position + 2]
            position += 3
        elif word == b"SETNAME" and left >= 1:
            name = _client_name(request[position + 1])
            position += 2
        else:
            raise BadArg(
                "HELLO takes [version [AUTH user secret] [SETNAME name]]: found"
                f" {shown(request[position])}."
            )

    def greet(result: object, _: int) -> bytes:
        connection.resp = resp
        if name is not None:
            connection.peer.name = name
        return encoder.encode(_greeting(connection), resp)

    if secret is not None:
        return Pending(_enter(connection, user, secret), greet)
    if connection.peer.may is UNAUTHENTICATED:
        raise NoAuth("HELLO must be called with AUTH user secret, or after AUTH.")
    return greet(None, resp)


def _greeting(connection: Connection) -> dict[str, Any]:
    return {
        "server": "tidewarden",
        "version": __version__,
        "proto": connection.resp,
        "id": connection.id,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }


def leave(connection: Connection, request: Request) -> bytes:
    """Answer ``QUIT``."""
    connection.hang_up()
    return encoder.OK


def reset(connection: Connection, request: Request) -> bytes:
    """Answer ``RESET``: the peer is as if newly connected, but its leases stay."""
    connection.resp = 2
    connection.peer.name = ""
    connection.mute = 0
    connection.transaction = None
    connection.leave()
    return b"+RESET\r\n"


def select(connection: Connection, request: Request) -> bytes:
    """Answer ``SELECT 0``."""
    if request[1] != b"0":
        raise BadArg(f"There is one database, 0: found {shown(request[1])}.")
    return encoder.OK


def client(connection: Connection, request: Request) -> bytes | Pending:
    """Answer ``CLIENT`` and its subcommands."""
    word = request[1].upper()
    rest = request[2:]
    if word == b"KILL" and rest:
        return kill(connection, rest)
    handler = CLIENT.get((word, len(rest)))
    if handler is None:
        raise Error(
            "unknown subcommand or wrong number of arguments for 'CLIENT"
            f" {shown(request[1])[1:-1]}'"
        )
    return handler(connection, rest)


def _client_name(argument: bytes) -> str:
    name = text("A connection's name", argument)
    if len(name) > 200 or any(not "!" <= letter <= "~" for letter in name):
        raise BadArg("A connection's name has at most 200 visible ASCII characters and no blanks.")
    return name


def _set_name(connection: Connection, rest: Request) -> bytes:
    connection.peer.name = _client_name(rest[0])
    return encoder.OK


SAID = (b"LIB-NAME", b"LIB-VER", b"HOST", b"PID")
"""The names of what a client may tell of itself: the first two as in Redis."""


def _set_info(connection: Connection, rest: Request) -> bytes:
    key = rest[0].upper()
    if key not in SAID:
        raise Error(f"Unrecognized option {shown(rest[0])}")
    connection.peer.agent[key.decode().lower()] = _client_name(rest[1])
    return encoder.OK


def _reply(connection: Connection, rest: Request) -> bytes:
    word = rest[0].upper()
    if word not in (b"ON", b"OFF", b"SKIP"):
        raise BadArg(f"CLIENT REPLY takes ON, OFF or SKIP: found {shown(rest[0])}.")
    connection.mute = {b"ON": 0, b"OFF": MUTE_ALL, b"SKIP": 2}[word]
    return encoder.OK


def _on_off(connection: Connection, rest: Request) -> bytes:
    if rest[0].upper() not in (b"ON", b"OFF"):
        raise BadArg(f"ON or OFF is allowed: found {shown(rest[0])}.")
    return encoder.OK


OF_REDIS = (
    "idle=0 sub=0 psub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0"
    " omem=0 tot-mem=0"
)
"""The fields without which redis-py 5 cannot read a line of CLIENT INFO; here they say nothing."""


def _line(connection: Connection) -> str:
    now = connection.server.clock.monotonic()
    agent = connection.peer.agent
    return (
        f"id={connection.id} addr={connection.peer.address} name={connection.peer.name}"
        f" age={int(now - connection.peer.since)} db=0 {OF_REDIS}"
        f" cmd={connection.last_command.lower() or 'NULL'} user={connection.peer.user or 'default'}"
        f" resp={connection.resp} lib-name={agent.get('lib-name', '')}"
        f" lib-ver={agent.get('lib-ver', '')} host={agent.get('host', '')}"
        f" pid={agent.get('pid', '')}\n"
    )


async def _list(server: ServerContext[Connection]) -> str:
    """Write a line for each peer; as many in one turn of the loop as take a millisecond or two."""
    peers, lines = list(server.peers.connections), list[str]()
    for first in range(0, len(peers), LINES_A_TURN):
        lines += map(_line, peers[first : first + LINES_A_TURN])
        await sleep(server.clock, 0.0)
    return "".join(lines)


CLIENT: dict[tuple[bytes, int], Callable[[Connection, Request], bytes | Pending]] = {
    (b"SETNAME", 1): _set_name,
    (b"GETNAME", 0): lambda connection, rest: encoder.encode(
        connection.peer.name or None, connection.resp
    ),
    (b"SETINFO", 2): _set_info,
    (b"ID", 0): lambda connection, rest: encoder.integer(connection.id),
    (b"INFO", 0): lambda connection, rest: encoder.bulk(_line(connection)),
    (b"LIST", 0): lambda connection, rest: Pending(
        _list(connection.server), lambda text, _: encoder.bulk(text)
    ),
    (b"NO-EVICT", 1): _on_off,
    (b"NO-TOUCH", 1): _on_off,
    (b"REPLY", 1): _reply,
}


def info(connection: Connection, request: Request) -> bytes:
    """Answer ``INFO``."""
    wanted = {word.decode("ascii", "replace").lower() for word in request[1:]}
    return encoder.bulk(connection.server.info(wanted))


def time(connection: Connection, request: Request) -> Pending:
    """Answer ``TIME`` with the store's clock, by which everything here is due."""
    return Pending(connection.server.queues.catalog.time(), encoder.encode)


def command(connection: Connection, request: Request) -> bytes:
    """Answer ``COMMAND``, ``COMMAND COUNT``, ``LIST``, ``DOCS`` and ``INFO``."""
    known = {item.name: item for item in connection.server.commands.values()}
    word = request[1].upper() if len(request) > 1 else b""
    wanted = [name.decode("ascii", "replace").upper() for name in request[2:]]
    if word == b"COUNT":
        return encoder.integer(len(known))
    if word == b"LIST":
        return encoder.encode([name.lower() for name in known], connection.resp)
    if word == b"DOCS":
        found = (
            [known[name] for name in wanted if name in known] if wanted else list(known.values())
        )
        docs = {
            item.name.lower(): {"summary": item.usage or item.name, "group": item.group}
            for item in found
        }
        return encoder.encode(docs, connection.resp)
    if word in (b"", b"INFO"):
        rows = [_described(known.get(name), connection.resp) for name in wanted or known]
        return b"*%d\r\n%b" % (len(rows), b"".join(rows))
    raise Error(f"unknown subcommand for 'COMMAND {shown(request[1])[1:-1]}'")


@functools.lru_cache(maxsize=1024)
def _described(item: Command[Any] | None, resp: int) -> bytes:
    """Encode a row of COMMAND INFO."""
    if item is None:
        return encoder.encode(None, resp)
    arity = item.least if item.least == item.most else -item.least
    # Flags, keys from, to and step; categories, tips, key specifications, subcommands: redis-py
    # reads all ten.
    return encoder.encode([item.name.lower(), arity, [], 0, 0, 0, [], [], [], []], resp)


def multi(connection: Connection, request: Request) -> bytes:
    """Answer ``MULTI``."""
    if connection.transaction is not None:
        raise Error("MULTI calls can not be nested")
    connection.transaction = Transaction()
    return encoder.OK


def execute(connection: Connection, request: Request) -> bytes:
    """
    Answer ``EXEC`` with the header of its array.

    The array's elements are the replies of the requests that run next.
    """
    transaction = _end_transaction(connection, "EXEC")
    if transaction.failed:
        return encoder.error_line("EXECABORT", "Transaction discarded because of previous errors.")
    connection.run_transaction(transaction.requests)
    return b"*%d\r\n" % len(transaction.requests)


def discard(connection: Connection, request: Request) -> bytes:
    """Answer ``DISCARD``."""
    _end_transaction(connection, "DISCARD")
    return encoder.OK


def _end_transaction(connection: Connection, name: str) -> Transaction:
    if connection.transaction is None:
        raise Error(f"{name} without MULTI")
    transaction, connection.transaction = connection.transaction, None
    return transaction


def _ok(result: object, resp: int) -> bytes:
    return encoder.OK


OF_OTHERS = (b"LIST", b"KILL")
"""The subcommands of CLIENT that are about other connections."""


def _client_requires(request: Arguments) -> Iterable[Requirement]:
    return [(ADMIN, None)] if len(request) > 1 and request[1].upper() in OF_OTHERS else ()


COMMANDS = (
    Command("PING", ping, 1, 2, LOGIN, "[message]"),
    Command("ECHO", echo, 2, 2, LOGIN, "message"),
    Command("HELLO", hello, 1, 7, OPEN, "[2|3 [AUTH user secret] [SETNAME name]]"),
    Command("AUTH", auth, 2, 3, OPEN, "[user] secret"),
    Command("QUIT", leave, 1, ANY, OPEN, immediate=True),
    Command("RESET", reset, 1, 1, OPEN, immediate=True),
    Command("SELECT", select, 2, 2, LOGIN, "0"),
    Command(
        "CLIENT",
        client,
        2,
        ANY,
        depends(ADMIN, _client_requires),
        "SETNAME|GETNAME|SETINFO|ID|INFO|LIST|KILL|NO-EVICT|NO-TOUCH|REPLY …",
        audited=subcommand(b"KILL"),
    ),
    Command("INFO", info, 1, ANY, LOGIN, "[section …]"),
    Command("TIME", time, 1, 1, LOGIN),
    Command("COMMAND", command, 1, ANY, LOGIN, "[COUNT|LIST|DOCS|INFO …]"),
    Command("MULTI", multi, 1, 1, LOGIN, immediate=True),
    Command("EXEC", execute, 1, 1, LOGIN, immediate=True),
    Command("DISCARD", discard, 1, 1, LOGIN, immediate=True),
)
