"""
Serves ``T.*`` and ``V.*``, each by one call of the tokens.

A secret is in no error text.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidewarden.config.rights import ACCOUNT_LOOK, Rights
from tidewarden.errors import BadArg, Denied, Error
from tidewarden.server.access.peer import denied
from tidewarden.server.access.required_rights import every_as_user, on_account, some_as_user
from tidewarden.server.audit.audit_log import AuditLog
from tidewarden.server.audit.audited import of_account, whole
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.tokens import AccountToken, Tokens
from tidewarden.tokens.connect.connecting import ConnectLink
from tidewarden.tokens.connect.devices import DeviceLink
from tidewarden.tokens.custody.export import ignored
from tidewarden.tokens.verbs.grants import Put

from .command import ANY, Command
from .json_values import check_values
from .options import MAX_STALE, Option, Options, lowered, number, text

LIFE = {
    "MINTTL": Option("min_ttl_ms", number),
    "WAIT": Option("wait_ms", number),
    "MAXSTALE": MAX_STALE,
}
GET = Options("T.GET", LIFE | {"NEWER": Option("newer", number), "KEEP": Option("keep", None)})
REFRESH = Options("T.REFRESH", {"GENERATION": Option("generation", number)})
MGET = Options("T.MGET", LIFE, open_ended=True)
PUT = Options("T.PUT", {"KEEP": Option("keep", None), "VERBOSE": Option("verbose", None)})
LIST = Options(
    "T.LIST",
    {
        "PROVIDER": Option("provider", text),
        "STATE": Option("state", lowered),
        "COUNT": Option("count", number),
        "AFTER": Option("after", text),
    },
)
EXPORT = Options(
    "T.EXPORT",
    {
        "PROVIDER": Option("provider", text),
        "COUNT": Option("count", number),
        "AFTER": Option("after", text),
    },
)
CONNECT = Options(
    "T.CONNECT",
    {
        "RETURN": Option("return_to", text),
        "SCOPE": Option("scope", text),
        "PARAMETERS": Option("parameters", lambda word, value: parameters_of(word, value)),
    },
)
DEVICE = Options(
    "T.DEVICE",
    {
        "SCOPE": Option("scope", text),
        "PARAMETERS": Option("parameters", lambda word, value: parameters_of(word, value)),
    },
)
ROTATE = Options("V.ROTATE", {"FORCE": Option("force", None)})
Note = Callable[[str], None]
"""Hears of an account, ``provider/name``."""
STEERED = ("release", "probe", "quarantine")
"""The words for what an operator can do about a provider."""


def fields_of(document: bytes) -> dict[str, Any]:
    """
    Read an account's fields from JSON.

    Raises: BadArg, TooBig, without quoting what may be a secret.
    """
    check_values(document)
    try:
        found = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadArg("An account is a JSON object; what was sent cannot be read as JSON.") from None
    if not isinstance(found, dict):
        raise BadArg(f"An account is a JSON object; a JSON {type(found).__name__} was sent.")
    return found


def parameters_of(word: str, document: bytes) -> dict[str, Any]:
    """Read an account's parameters from JSON. Raises: BadArg, TooBig."""
    check_values(document)
    try:
        return msgspec.json.decode(document, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadArg(f'{word} is a JSON object: {{"NAME": "value"}}.') from None


def account_name(argument: bytes) -> str:
    """Read ``provider/account``. Raises: BadArg: no slash, or nothing on one of its sides."""
    name = text("An account's name", argument)
    provider, _, rest = name.partition("/")
    if not provider or not rest:
        raise BadArg("An account is named provider/account.")
    return name


def provider_name(argument: bytes) -> str:
    """Read a provider's name. Raises: BadArg: it is empty, or an account's."""
    name = text("A provider's name", argument)
    if not name or "/" in name:
        raise BadArg(f"A provider is named alone, without an account: found {name[:60]!r}.")
    return name


def subject_name(argument: bytes) -> str:
    """Read ``provider/account``, or a provider alone. Raises: BadArg: it is neither."""
    return account_name(argument) if b"/" in argument else provider_name(argument)


def put(connection: Connection, request: Request) -> Pending:
    """Answer ``T.PUT``."""
    options = PUT.parse(request, 3)
    account, fields, keep = (
        account_name(request[1]),
        fields_of(request[2]),
        options.get("keep", False),
    )
    return Pending(
        _tokens(connection).put_told(account, fields, keep=keep),
        _told if options.get("verbose") else _generation,
    )


def connect(connection: Connection, request: Request) -> Pending:
    """Answer ``T.CONNECT``."""
    fields, user = CONNECT.parse(request, 2), connection.peer.user or ""
    link = _tokens(connection).connecting.link(account_name(request[1]), user=user, **fields)
    return Pending(link, _url)


def connect_device(connection: Connection, request: Request) -> Pending:
    """Answer ``T.DEVICE``."""
    fields, user = DEVICE.parse(request, 2), connection.peer.user or ""
    codes = _tokens(connection).devices.start(account_name(request[1]), user=user, **fields)
    return Pending(codes, _codes)


def get(connection: Connection, request: Request) -> Pending:
    """Answer ``T.GET``."""
    fields, name = GET.parse(request, 2), account_name(request[1])
    waits = _waits(connection, fields)
    render = _kept_token if fields.pop("keep", False) else _token
    audit = connection.server.services.audit
    if audit is not None:
        render = functools.partial(_noted_token, audit, connection.peer.user or "", name, render)
    return Pending(_tokens(connection).get(name, **fields), render, waits)


def get_many(connection: Connection, request: Request) -> Pending:
    """Answer ``T.MGET``."""
    fields, start = MGET.parse_until(request, 1)
    names = [account_name(word) for word in request[start:]]
    if not names:
        raise BadArg("T.MGET names at least one account.")
    most = connection.server.batch_max
    if len(names) > most:
        raise BadArg(f"T.MGET names {len(names)} accounts; allowed are {most} (limits.batch_max).")
    waits = _waits(connection, fields)

    def deny(name: str) -> Denied:
        peer = connection.peer
        error = no_reader("T.MGET", name, peer.user or "")
        connection.server.users.deny(peer.user or "", peer.address, error)
        return error

    audit, user = connection.server.services.audit, connection.peer.user or ""
    note = None if audit is None else functools.partial(audit.read, user)
    found = read_many(_tokens(connection), names, connection.peer.rights, deny, note, **fields)
    return Pending(found, _tokens_or_errors, waits)


async def read_many(
    tokens: Tokens,
    names: list[str],
    rights: Rights,
    deny: Callable[[str], Denied],
    note: Note | None,
    **fields: int,
) -> Sequence[AccountToken | Error]:
    """
    Read the tokens of many accounts; each result is a token, or why there is none.

    ``deny`` makes the error for one that is not allowed; ``note`` is told each that was read.
    """
    readable = rights.accounts("token:read")
    allowed = [name for name in names if readable.allow(name)]
    found = await tokens.get_many(allowed, **fields) if allowed else []
    if note is not None:
        for name, one in zip(allowed, found, strict=True):
            if not isinstance(one, Error):
                note(name)
    left = iter(found)
    return [next(left) if readable.allow(name) else deny(name) for name in names]


def no_reader(what: str, account: str, user: str) -> Denied:
    """Make the error for an account among others, whose token the user may not read."""
    return denied(what, f"token:read:{account[:200]}", user)


def _waits(connection: Connection, fields: dict[str, Any]) -> bool:
    waits = bool(fields.get("wait_ms", 0))
    if waits:
        connection.check_wait()
    return waits


def listing(connection: Connection, request: Request) -> Pending:
    """Answer ``T.LIST``."""
    seen = connection.peer.rights.accounts(*ACCOUNT_LOOK)
    return Pending(_tokens(connection).list(**LIST.parse(request, 1), seen=seen), encoder.encode)


def peek(connection: Connection, request: Request) -> Pending:
    """Answer ``T.PEEK``."""
    return Pending(_tokens(connection).peek(account_name(request[1])), encoder.encode)


def why(connection: Connection, request: Request) -> Pending:
    """Answer ``T.WHY``."""
    return Pending(_tokens(connection).why(subject_name(request[1])), encoder.encode)


def provider(connection: Connection, request: Request) -> Pending:
    """Answer ``T.PROVIDER``."""
    action, name = lowered("An action", request[1]), provider_name(request[2])
    if action not in STEERED:
        allowed = ", ".join(STEERED).upper()
        raise BadArg(f"T.PROVIDER has no action {action[:40]!r}; there are {allowed}.")
    return Pending(steered(_tokens(connection), action, name), encoder.encode)


async def steered(tokens: Tokens, action: str, name: str) -> dict[str, Any]:
    """Do an operator's act on a provider; return the provider's story from then on."""
    actions = {
        "release": tokens.release_provider,
        "probe": tokens.probe_provider,
        "quarantine": tokens.quarantine_provider,
    }
    await actions[action](name)
    return await tokens.why(name)


def refresh(connection: Connection, request: Request) -> Pending:
    """Answer ``T.REFRESH``."""
    fields = REFRESH.parse(request, 2)
    return Pending(_tokens(connection).refresh(account_name(request[1]), **fields), _ok)


def delete(connection: Connection, request: Request) -> Pending:
    """Answer ``T.DELETE``."""
    return Pending(_tokens(connection).delete(account_name(request[1])), _integer)


def stats(connection: Connection, request: Request) -> Pending:
    """Answer ``T.STATS``."""
    return Pending(seen_stats(_tokens(connection), connection.peer.rights), encoder.encode)


async def seen_stats(tokens: Tokens, rights: Rights) -> dict[str, dict[str, Any]]:
    """Return the figures of the providers of which the user may see all accounts."""
    seen, found = rights.accounts(*ACCOUNT_LOOK), await tokens.stats()
    return {name: figures for name, figures in found.items() if seen.allow(name)}


def export(connection: Connection, request: Request) -> Pending:
    """Answer ``T.EXPORT``."""
    options, exported = EXPORT.parse(request, 4), connection.peer.rights.accounts("token:export")
    told = _noting(connection, "T.EXPORT")
    return Pending(
        _tokens(connection).custody.export(
            _sealing(request), **options, exported=exported, told=told
        ),
        encoder.encode,
    )


def import_sealed(connection: Connection, request: Request) -> Pending:
    """Answer ``T.IMPORT``."""
    written = connection.peer.rights.accounts("token:write")
    told = _noting(connection, "T.IMPORT")
    return Pending(
        _tokens(connection).custody.import_sealed(_sealing(request), request[4:], written, told),
        encoder.encode,
    )


def _noting(connection: Connection, action: str) -> Note:
    """Return the callback that tells the audit log of each account of a request."""
    audit, peer = connection.server.services.audit, connection.peer
    if audit is None:
        return ignored
    return functools.partial(audit.account, peer.user or "", peer.address, action)


def _sealing(request: Request) -> tuple[bytes, bytes, int]:
    """Read key, id and next line of a sealed file. Raises: BadArg, which does not quote the key."""
    try:
        key, file_id = bytes.fromhex(request[1].decode()), bytes.fromhex(request[2].decode())
    except ValueError:
        raise BadArg("The key and the id of a sealed file are hexadecimal digits.") from None
    return key, file_id, number("line", request[3])


def answers(connection: Connection, request: Request) -> Pending:
    """Answer ``T.ANSWERS``."""
    return Pending(_tokens(connection).custody.answers(account_name(request[1])), encoder.encode)


def vault_status(connection: Connection, request: Request) -> Pending:
    """Answer ``V.STATUS``."""
    return Pending(_tokens(connection).custody.status(), encoder.encode)


def vault_rotate(connection: Connection, request: Request) -> Pending:
    """Answer ``V.ROTATE``."""
    return Pending(_tokens(connection).custody.rotate(**ROTATE.parse(request, 1)), encoder.encode)


def _tokens(connection: Connection) -> Tokens:
    tokens = connection.server.services.tokens
    if tokens is None:
        raise Error("This node serves no tokens.")
    return tokens


def _ok(result: object, resp: int) -> bytes:
    return encoder.OK


def _generation(put: Put, resp: int) -> bytes:
    return encoder.integer(put.generation)


def _told(put: Put, resp: int) -> bytes:
    return encoder.encode([put.generation, put.change, put.state], resp)


def _url(link: ConnectLink, resp: int) -> bytes:
    return encoder.encode(link.url, resp)


def _codes(link: DeviceLink, resp: int) -> bytes:
    return encoder.encode(dataclasses.asdict(link), resp)


def _integer(result: int | bool, resp: int) -> bytes:
    return encoder.integer(int(result))


def _token(token: AccountToken, resp: int) -> bytes:
    return encoder.encode(_values(token), resp)


def _kept_token(token: AccountToken, resp: int) -> bytes:
    values = _values(token)[:5]
    return encoder.encode([*values, msgspec.json.encode(token.extras), token.keep_ms], resp)


def _noted_token(
    audit: AuditLog,
    user: str,
    name: str,
    render: Callable[[AccountToken, int], bytes],
    token: AccountToken,
    resp: int,
) -> bytes:
    audit.read(user, name)
    return render(token, resp)


def _values(token: AccountToken) -> list[Any]:
    values = [
        token.access_token,
        token.token_type,
        token.expires_at_ms,
        token.generation,
        token.state,
    ]
    return [*values, msgspec.json.encode(token.extras)] if token.extras else values


def _tokens_or_errors(found: Sequence[AccountToken | Error], resp: int) -> bytes:
    return encoder.encode(
        [f"{one.code} {one}" if isinstance(one, Error) else _values(one) for one in found], resp
    )


READ, WRITE = on_account("token:read"), on_account("token:write")
LOOK = on_account(*ACCOUNT_LOOK)
LOOK_AT_ANY = some_as_user(*ACCOUNT_LOOK)
COMMANDS = (
    Command(
        "T.PUT",
        put,
        3,
        5,
        WRITE,
        "provider/account json [KEEP] [VERBOSE]",
        group="token",
        audited=of_account(),
    ),
    Command(
        "T.CONNECT",
        connect,
        2,
        8,
        WRITE,
        "provider/account [RETURN url] [SCOPE scope] [PARAMETERS json]",
        group="token",
        audited=of_account(),
    ),
    Command(
        "T.DEVICE",
        connect_device,
        2,
        6,
        WRITE,
        "provider/account [SCOPE scope] [PARAMETERS json]",
        group="token",
        audited=of_account(),
    ),
    Command(
        "T.GET",
        get,
        2,
        11,
        READ,
        "provider/account [MINTTL ms] [WAIT ms] [NEWER generation] [MAXSTALE ms] [KEEP]",
        group="token",
    ),
    Command(
        "T.MGET",
        get_many,
        2,
        ANY,
        some_as_user("token:read"),
        "[MINTTL ms] [WAIT ms] [MAXSTALE ms] provider/account [provider/account …]",
        group="token",
    ),
    Command(
        "T.LIST",
        listing,
        1,
        9,
        LOOK_AT_ANY,
        "[PROVIDER p] [STATE s] [COUNT n] [AFTER cursor]",
        group="token",
    ),
    Command("T.PEEK", peek, 2, 2, LOOK, "provider/account", group="token"),
    Command(
        "T.ANSWERS",
        answers,
        2,
        2,
        on_account("token:export"),
        "provider/account",
        group="token",
        audited=of_account(reads=True),
    ),
    Command("T.WHY", why, 2, 2, LOOK, "provider/account | provider", group="token"),
    Command(
        "T.PROVIDER",
        provider,
        3,
        3,
        on_account("token:admin", position=-1),
        "RELEASE | PROBE | QUARANTINE provider",
        group="token",
        audited=whole(),
    ),
    Command(
        "T.REFRESH",
        refresh,
        2,
        4,
        WRITE,
        "provider/account [GENERATION generation]",
        group="token",
        audited=of_account(),
    ),
    Command(
        "T.DELETE", delete, 2, 2, WRITE, "provider/account", group="token", audited=of_account()
    ),
    Command("T.STATS", stats, 1, 1, LOOK_AT_ANY, group="token"),
    Command(
        "T.EXPORT",
        export,
        4,
        10,
        some_as_user("token:export"),
        "key id line [PROVIDER p] [COUNT n] [AFTER cursor]",
        group="token",
    ),
    Command(
        "T.IMPORT",
        import_sealed,
        5,
        ANY,
        some_as_user("token:write"),
        "key id line sealed [sealed …]",
        group="token",
    ),
    Command(
        "V.STATUS",
        vault_status,
        1,
        1,
        every_as_user("token:read", "token:write", "admin"),
        group="token",
    ),
    Command(
        "V.ROTATE",
        vault_rotate,
        1,
        2,
        every_as_user("admin"),
        "[FORCE]",
        group="token",
        audited=whole(),
    ),
)
