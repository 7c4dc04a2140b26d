"""
Connects a verb of the command line to a node.

It finds the address and the user, and maps errors to exit codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
import typer
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidewarden.client.address import FORM
from tidewarden.client.local import DEFAULT_PORT, local_urls

from .options import DATA_DIR, REFUSED, UNREACHABLE, USAGE, stop

CONNECT_S = 5.0
WHO = (
    " (name a user: --url redis://USER:SECRET@HOST:PORT; or the data folder of `tidewarden up`:"
    " --data-dir DIR)"
)


def addresses(url: str, data_dir: Path) -> list[str]:
    """
    List where a node may answer, best first.

    These are the addresses of ``url`` if given, separated by commas, else the nodes that ``up``
    keeps in ``data_dir``.

    The admin's secret that ``up`` wrote there is used for them; it goes to loopback addresses only.
    Ends the program when another folder than the usual one was named and has no cluster: it was
    mistyped, and no other cluster is meant.
    """
    if urls := [one.strip() for one in url.split(",") if one.strip()]:
        return urls
    if data_dir != Path(DATA_DIR) and not any(data_dir.glob("n*/node.toml")):
        raise stop(
            f"--data-dir {data_dir}: found no data of `tidewarden up` there (no n0/node.toml)",
            USAGE,
        )
    return local_urls(data_dir)


class NodeLine:
    """Connects to one node."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def call(self, *command: str | bytes | int) -> Any:
        """
        Send one verb and return its answer.

        Raises: redis.ResponseError: the node refused.
        """
        return plain(self._client.execute_command(*command))  # type: ignore[no-untyped-call]  # redis-py

    def raw(self, *command: str | bytes | int) -> Any:
        """
        Send one verb and return its answer as bytes.

        Raises: as :meth:`call`.
        """
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py

    def batch(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        """Send many verbs in one go; returns an answer each, or a ``redis.ResponseError``."""
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py
        return [plain(answer) for answer in pipeline.execute(raise_on_error=False)]

    def stream(self, *command: str | bytes | int) -> Iterator[Any]:
        """
        Send one verb, and give what it pushes, each as a list, and at last its answer.

        Raises: as :meth:`call`.
        """
        connection: Any = self._client.connection
        connection.send_command(*command)
        found: Any = []
        while isinstance(found, list):
            found = plain(connection.read_response(push_request=True))
            yield found

    def close(self) -> None:
        """Close it. Whatever it holds under a lease is ready again at once."""
        self._client.close()


class OptionError(ValueError):
    """An address has an option that there is not."""


def dial(address: str, silence_s: float | None = None) -> NodeLine:
    """
    Connect to one address.

    An answer that takes longer than ``silence_s`` breaks the connection.

    Raises: redis.ConnectionError, redis.TimeoutError: nobody answers, or no node. ValueError: it is
    no address.
    """
    client: redis.Redis | None = None
    try:
        address, options = _of_redis(address)
        client = redis.Redis.from_url(
            address,
            **options,
            protocol=3,  # maps arrive as maps
            single_connection_client=True,  # leases belong to the connection
            socket_timeout=silence_s,  # None: a waiting take is silent for as long as it waits
            socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),  # redis-py would repeat a put that may have happened
        )
        client.ping()
    except BaseException as error:
        if client is not None:
            client.close()
        if isinstance(error, TypeError):  # how redis-py refuses an option of the address
            raise OptionError(str(error).partition("() ")[2] or str(error)) from None
        if isinstance(error, redis.InvalidResponse):
            raise redis.ConnectionError(
                f"{error}: what answers there is not a node's port for Redis clients (its HTTP port"
                " is the next one)"
            ) from None
        raise
    return NodeLine(client)


def _of_redis(address: str) -> tuple[str, dict[str, Any]]:
    """
    Translate an address of the SDK for redis-py.

    It gets our usual port, and redis-py's word for ``?ca=FILE``, whom to trust.
    """
    parts = urlsplit(address)
    query = parse_qsl(parts.query, keep_blank_values=True)
    options: dict[str, Any] = {}
    if file := dict(query).get("ca"):
        options["ssl_ca_certs"] = file
        address = urlunsplit(
            parts._replace(query=urlencode([pair for pair in query if pair[0] != "ca"]))
        )
    if parts.scheme in ("redis", "rediss"):
        options["port"] = DEFAULT_PORT  # that of the address goes before it
    return address, options


@contextmanager
def connected(url: str, data_dir: Path) -> Iterator[NodeLine]:
    """
    Yield a node to ask: the first that answers.

    Ends the program with a message and the right exit code on every error.
    """
    line: NodeLine | None = None
    faults: list[str] = []
    who = ""
    for address in addresses(url, data_dir):
        who = "" if "@" in address else WHO
        try:
            line = dial(address)
            break
        except (redis.AuthenticationError, redis.ResponseError) as error:
            raise stop(f"{shown(address)} refused: {said(error)}{who}", REFUSED) from None
        except (redis.ConnectionError, redis.TimeoutError) as error:
            faults.append(f"{shown(address)}: {error}{maybe_tls(address, error)}")
        except ValueError as error:
            raise no_address(address, error) from None
    if line is None:
        hint = (
            "is it running? `tidewarden up` starts a cluster; --url or TIDEWARDEN_URL names another"
            " node"
        )
        raise stop("no node can be reached (" + "; ".join(faults) + f"): {hint}", UNREACHABLE)
    try:
        yield line
    except redis.AuthenticationError as error:
        raise stop(f"refused: {said(error)}{who}", REFUSED) from None
    except redis.ResponseError as error:
        hint = who if str(error).startswith(("NOAUTH", "DENIED", "NOPERM")) else ""
        raise stop(f"refused: {error}{hint}", REFUSED) from None
    except UnicodeEncodeError:
        raise stop("an argument is no UTF-8 text", USAGE) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise stop(
            f"the connection broke, what was asked may or may not have happened: {error}",
            UNREACHABLE,
        ) from None
    finally:
        line.close()


def maybe_tls(address: str, error: Exception) -> str:
    """Explain that a closed connection may mean that the node speaks TLS."""
    plain_speech = address.startswith("redis://") and str(error).startswith(
        "Connection closed by server"
    )
    return " (a node with a certificate: rediss://…?ca=FILE)" if plain_speech else ""


def no_address(address: str, error: ValueError) -> typer.Exit:
    """
    Return the error that ``--url`` is no address.

    Of Python's message it contains only what quotes no secret; raise what this returns.
    """
    why = f": {error}" if isinstance(error, OptionError) else ""
    return stop(f"--url {shown(address)!r} is no node's address{why}; allowed: {FORM}", USAGE)


def shown(address: str) -> str:
    """Return ``address`` without its secret."""
    scheme, separator, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else address.rpartition("@")[2]


def said(error: redis.RedisError) -> str:
    """
    Return the node's words of an error.

    Redis-py strips the first word, NOAUTH or WRONGPASS, from errors that it has a class for.
    """
    return (
        f"not authenticated: {error}"
        if isinstance(error, redis.AuthenticationError)
        else str(error)
    )


def plain(value: Any) -> Any:
    """Turn byte strings into text wherever they are UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
