"""
Opens a connection to the store.

Redis-py reads the URL and does TLS and AUTH; then the bare transport is ours.

redis-py's own request loop is not used on the hot path: it repeats commands by itself (up to ten
times by default) and allows one request at a time on a connection. Only our code, which knows ids
and leases, may repeat a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from pathlib import Path
from typing import Any

from tidewarden.errors import BadArg, StoreDown

from .redis_py import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    Connection,
    MaxConnectionsError,
    NoBackoff,
    RedisError,
    ResponseError,
    Retry,
    UnixDomainSocketConnection,
    parse_url,
)

SCHEMES = ("redis://", "rediss://", "unix://")
CONNECT_TIMEOUT_S = 5.0
OURS = ("protocol", "client_name", "socket_connect_timeout", "retry", "health_check_interval")
FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
BY = "by"
"""Option of our own URLs: the port of loopback that leads to the server, whose name TLS checks."""
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
_TLS_KEPT = 8
# redis-py reads what this host trusts anew for each connection: 20 ms in which the event loop
# stands still, and after a failover a process opens a dozen at once.
_tls: dict[tuple[str, ...], Any] = {}


def options_of(url: str) -> dict[str, Any]:
    """
    Return redis-py's connection arguments for a store URL.

    Raises: BadArg: the URL is not one of ``redis:// rediss:// unix://``, or does not parse.
    """
    if not url.startswith(SCHEMES):
        raise BadArg(f"the store URL {redact(url)!r} begins with none of {' '.join(SCHEMES)}")
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise BadArg(f"the store URL {redact(url)!r} does not parse: {error}") from None
    return options


def check_url(url: str, *, found: bool = False) -> None:
    """
    Check a store's URL; ``found``: a node has made it, and may have put a way around into it.

    Raises: BadArg: as of :func:`options_of`, or an option that redis-py does not know, or that
    names a file which does not exist.
    """
    options = options_of(url)
    if found:
        options.pop(BY, None)
    said = f"the store URL {redact(url)!r} has an option that cannot be: "
    if ours := [name for name in OURS if name in options]:
        raise BadArg(f"{said}{', '.join(ours)}, which nodes set themselves")
    try:
        _class_of(options)(**options)
    except (TypeError, ValueError, RedisError) as error:
        unknown = _UNKNOWN.search(str(error))
        tls = "; those of TLS go with rediss" if unknown and unknown[1].startswith("ssl_") else ""
        raise BadArg(
            said + (f"{unknown[1]}, which there is not{tls}" if unknown else str(error))
        ) from None
    for name in FILES:
        if name in options and not Path(options[name]).exists():
            raise BadArg(f"{said}{name} is {options[name]}, which is not there")


def _class_of(options: dict[str, Any]) -> type[Any]:
    """Return the connection's class, and take it out of ``options``."""
    named: type[Any] = options.pop("connection_class", Connection)
    return UnixDomainSocketConnection if "path" in options else named


def redact(url: str) -> str:
    """Return the URL without its password, for messages."""
    url = re.sub(r"([?&]\w*password=)[^&]*", r"\1…", url, flags=re.IGNORECASE)
    scheme, mark, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    if not at:
        return url
    user = credentials.partition(":")[0]
    return f"{scheme}{mark}{user}:…@{place}" if user else f"{scheme}{mark}…@{place}"


async def open_transport(
    url: str, name: str, protocol: asyncio.Protocol, *, primary: bool = False, called: str = "store"
) -> tuple[asyncio.Transport, object]:
    """
    Connect to the store and log in, then hand the transport to ``protocol``.

    It sends AUTH, SELECT and CLIENT SETNAME.

    ``primary``: refuse a server whose ROLE is another. ``called``: what it is, in messages.
    Returns: the transport, and an object to keep as long as it is used (asyncio closes a stream
    whose reader is collected). Raises: StoreDown: it cannot be reached, is loading, no primary, or
    refuses the password; in its own words.
    """
    options = options_of(url)
    cls, by = _class_of(options), options.pop(BY, None)
    connection = cls(
        **options,
        protocol=2,
        client_name=name,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )
    _share_tls(connection)
    if by is not None:
        _lead_by(connection, int(by))
    try:
        # not wait_for: on Python 3.11 that can swallow a cancellation
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect()
            role = await _role_of(connection) if primary else "master"
    except (RedisError, OSError, TimeoutError, RuntimeError) as error:
        # RuntimeError is how uvloop refuses to write to a connection that was lost a moment ago.
        with contextlib.suppress(RedisError, OSError, RuntimeError):
            await connection.disconnect(nowait=True)
        raise StoreDown(
            f"the {called} at {redact(url)} {_said(error, by_path='path' in options)}"
        ) from None
    except asyncio.CancelledError:
        await connection.disconnect(nowait=True)
        raise
    if role != "master":
        await connection.disconnect(nowait=True)
        raise StoreDown(
            f"the {called} at {redact(url)} is a replica; a failover is under way, or the sentinels"
            " are behind"
        )
    # redis-py has no public way to hand its socket over, nor to give it up.
    kept = (connection._reader, connection._writer)
    connection._reader = connection._writer = None
    transport: asyncio.Transport = kept[1].transport
    if kept[0].at_eof() or kept[0].exception() is not None or transport.is_closing():
        # Lost before ``protocol`` was there to be told of it: it would wait for ever.
        transport.abort()
        raise StoreDown(f"the {called} at {redact(url)} closed the connection at once")
    transport.set_protocol(protocol)
    transport.resume_reading()
    return transport, kept


def _lead_by(connection: Any, port: int) -> None:
    """Have a connection go to a port of loopback; TLS is with the server that the URL names."""
    usual = connection._connection_arguments  # noqa: SLF001  redis-py has no public way

    def led() -> dict[str, Any]:
        arguments = dict(usual())
        named = {"server_hostname": arguments["host"]} if "ssl" in arguments else {}
        return arguments | {"host": "127.0.0.1", "port": port} | named

    connection._connection_arguments = led  # noqa: SLF001


def _share_tls(connection: Any) -> None:
    """Give a connection by TLS what one before it, of the same options and files, has read."""
    own = getattr(connection, "ssl_context", None)
    if own is None:
        return
    options = [f"{name}={getattr(own, name)}" for name in own.__slots__ if name != "context"]
    usual = ssl.get_default_verify_paths()
    files = (own.ca_certs, own.ca_path, own.certfile, own.keyfile, usual.cafile, usual.capath)
    stamps = [_stamp_of(Path(file)) for file in files if file]
    if len(_tls) >= _TLS_KEPT:  # files that were replaced
        _tls.clear()
    connection.ssl_context = _tls.setdefault((*options, *stamps), own)


def _stamp_of(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        return str(error)
    return f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _said(error: Exception, by_path: bool) -> str:
    """
    Describe how an attempt to connect failed, and who has to act; ``by_path``: over a Unix socket.
    """
    if isinstance(error, TimeoutError):
        return f"does not answer: nothing came within {CONNECT_TIMEOUT_S:g} s"
    said = str(error).removesuffix(".") or type(error).__name__
    # redis-py wraps some of them
    error = error.__cause__ if isinstance(error.__cause__, RedisError) else error
    if isinstance(error, AuthenticationError | AuthorizationError):
        # An embedded one has a password of its own until it has a view and is ready for clients.
        starting = "it is just starting, or else " if by_path else ""
        return (
            f"refuses the login: {said}; {starting}the user and the password in store.url "
            "must be those that the server has now"
        )
    refused = isinstance(error, ResponseError | BusyLoadingError | MaxConnectionsError)
    return f"{'refuses' if refused else 'does not answer'}: {said}"


async def _role_of(connection: Any) -> str:
    await connection.send_command("ROLE")
    role: bytes = (await connection.read_response())[0]
    return role.decode()
