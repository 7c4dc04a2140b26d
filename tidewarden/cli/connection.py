"""
Connects a verb of the command line to a node.

It finds the address and the user, and maps errors to exit codes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import hiredis
import typer

from tidewarden.errors import BadArg

from .options import DATA_DIR, REFUSED, UNREACHABLE, USAGE, stop

if TYPE_CHECKING:
    from tidewarden.client.address import Address

CONNECT_S = 5.0
"""So long a node may take to accept a connection, and to answer who it is."""
READ_BYTES = 65_536
CLOSED = "the node closed the connection"
WHO = (
    " (name a user: --url redis://USER:SECRET@HOST:PORT; or the data folder of `tidewarden up`:"
    " --data-dir DIR)"
)
NOT_ALL = object()
"""What the reader gives while an answer is not whole."""


class NodeError(Exception):
    """A node could not be asked, or refused."""


class Broken(NodeError):
    """Nobody answers there, or no node does, or the connection broke."""


class Refused(NodeError):
    """A node refused, in words such as ``NOTFOUND There is no queue 'x'``."""


class NotAuthenticated(Refused):
    """A node does not know the user; the words are without NOAUTH or WRONGPASS."""


def addresses(url: str, data_dir: Path) -> list[str]:
    """
    List where a node may answer, best first.

    These are the addresses of ``url`` if given, separated by commas, else the nodes that ``up``
    keeps in ``data_dir``.

    The admin's secret that ``up`` wrote there is used for them; it goes to loopback addresses only.
    Ends the program when another folder than the usual one was named and has no cluster: it was
    mistyped, and no other cluster is meant.
    """
    from tidewarden.client.local import local_urls  # it takes the client with it

    if urls := [one.strip() for one in url.split(",") if one.strip()]:
        return urls
    if data_dir != Path(DATA_DIR) and not any(data_dir.glob("n*/node.toml")):
        raise stop(
            f"--data-dir {data_dir}: found no data of `tidewarden up` there (no n0/node.toml)",
            USAGE,
        )
    return local_urls(data_dir)


class NodeLine:
    """Connects to one node, and asks one thing after the other."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._reader = hiredis.Reader(notEnoughData=NOT_ALL)

    def call(self, *command: str | bytes | int) -> Any:
        """
        Send one verb and return its answer.

        Raises: Refused: the node refused. Broken. UnicodeEncodeError: a word is no UTF-8.
        """
        return plain(self.raw(*command))

    def raw(self, *command: str | bytes | int) -> Any:
        """
        Send one verb and return its answer as bytes.

        Raises: as :meth:`call`.
        """
        self._send(_packed(command))
        return _good(self._answer())

    def batch(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        """
        Send many verbs in one go; returns an answer each, or a :class:`Refused`.

        Raises: Broken, UnicodeEncodeError.
        """
        self._send(b"".join(map(_packed, commands)))
        answers = [self._answer() for _ in commands]
        return [
            _refusal(one) if isinstance(one, hiredis.ReplyError) else plain(one) for one in answers
        ]

    def stream(self, *command: str | bytes | int) -> Iterator[Any]:
        """
        Send one verb, and give what it pushes, each as a list, and at last its answer.

        Raises: as :meth:`call`.
        """
        self._send(_packed(command))
        found: Any = []
        while isinstance(found, list):
            found = plain(_good(self._answer()))
            yield found

    def wait_at_most(self, silence_s: float | None) -> None:
        """Break the connection when an answer takes longer; None: however long it takes."""
        self._line.settimeout(silence_s)

    def close(self) -> None:
        """Close it. Whatever it holds under a lease is ready again at once."""
        self._line.close()

    def _send(self, packed: bytes) -> None:
        try:
            self._line.sendall(packed)
        except OSError as error:
            raise self._broken(error) from None

    def _answer(self) -> Any:
        try:
            while (found := self._reader.gets()) is NOT_ALL:
                data = self._line.recv(READ_BYTES)
                if not data:
                    raise self._broken(None)
                self._reader.feed(data)
        except OSError as error:
            raise self._broken(error) from None
        except hiredis.ProtocolError as error:
            self.close()
            raise Broken(
                f"{error}: what answers there is not a node's port for Redis clients (its HTTP port"
                " is the next one)"
            ) from None
        return found

    def _broken(self, error: OSError | None) -> Broken:
        """Close it; raise what this returns. ``error`` None: the node closed it."""
        limit_s = self._line.gettimeout()
        self.close()
        if isinstance(error, TimeoutError):
            return Broken(f"no answer within {limit_s:g} s")
        return Broken(CLOSED if error is None else error.strerror or str(error))


def _packed(command: Sequence[str | bytes | int]) -> bytes:
    """Encode one request. Raises: UnicodeEncodeError: a word is no UTF-8."""
    words = (word.encode() if isinstance(word, str) else word for word in command)
    packed: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # typed for one
    return packed


def _good(answer: Any) -> Any:
    """Return an answer that is no refusal. Raises: Refused."""
    if isinstance(answer, hiredis.ReplyError):
        raise _refusal(answer)
    return answer


def _refusal(answer: hiredis.ReplyError) -> Refused:
    text = str(answer)
    word, _, message = text.partition(" ")
    if word in ("NOAUTH", "WRONGPASS"):
        return NotAuthenticated(message)
    return Refused(text.removeprefix("ERR "))


class OptionError(ValueError):
    """An address has an option that there is not, or that cannot be used."""


def dial(address: str, silence_s: float | None = None) -> NodeLine:
    """
    Connect to one address.

    An answer that takes longer than ``silence_s`` breaks the connection.

    Raises: Broken, Refused. ValueError: it is no address.
    """
    from tidewarden.client.address import parse

    try:
        where = parse(address)
    except BadArg:
        raise ValueError("it is no node's address") from None
    for name, _ in parse_qsl(urlsplit(address).query, keep_blank_values=True):
        if name != "ca":
            raise OptionError(f"there is no option {name!r}")
    line = NodeLine(_connect(where))
    try:
        who = ("AUTH", where.user or "default", where.secret) if where.secret else ()
        line.wait_at_most(min(CONNECT_S, silence_s or CONNECT_S))
        line.call("HELLO", 3, *who)  # maps arrive as maps
    except BaseException:
        line.close()
        raise
    line.wait_at_most(silence_s)  # None: a waiting take is silent for as long as it waits
    return line


def _connect(where: Address) -> socket.socket:
    """Open a connection, by TLS where the address says so. Raises: Broken, OptionError."""
    try:
        context = where.context()
    except OSError as error:
        raise OptionError(f"ca={where.ca_file}: {error.strerror or error}") from None
    try:
        line = socket.create_connection((where.host, where.port), CONNECT_S)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(line, server_hostname=where.host) if context else line
        except BaseException:
            line.close()
            raise
    except OSError as error:
        late = f"no connection within {CONNECT_S:g} s"
        told = late if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Broken(told) from None


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
        except Refused as error:
            raise stop(f"{shown(address)} refused: {said(error)}{who}", REFUSED) from None
        except Broken as error:
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
    except NotAuthenticated as error:
        raise stop(f"refused: {said(error)}{who}", REFUSED) from None
    except Refused as error:
        hint = who if str(error).startswith(("NOAUTH", "DENIED", "NOPERM")) else ""
        raise stop(f"refused: {error}{hint}", REFUSED) from None
    except UnicodeEncodeError:
        raise stop("an argument is no UTF-8 text", USAGE) from None
    except Broken as error:
        raise stop(
            f"the connection broke, what was asked may or may not have happened: {error}",
            UNREACHABLE,
        ) from None
    finally:
        line.close()


def maybe_tls(address: str, error: Exception) -> str:
    """Explain that a closed connection may mean that the node speaks TLS."""
    plain_speech = address.startswith("redis://") and str(error) == CLOSED
    return " (a node with a certificate: rediss://…?ca=FILE)" if plain_speech else ""


def no_address(address: str, error: ValueError) -> typer.Exit:
    """
    Return the error that ``--url`` is no address.

    Of Python's message it contains only what quotes no secret; raise what this returns.
    """
    from tidewarden.client.address import FORM

    why = f": {error}" if isinstance(error, OptionError) else ""
    return stop(f"--url {shown(address)!r} is no node's address{why}; allowed: {FORM}", USAGE)


def shown(address: str) -> str:
    """Return ``address`` without its secret."""
    scheme, separator, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else address.rpartition("@")[2]


def said(error: NodeError) -> str:
    """Return the node's words of an error."""
    return f"not authenticated: {error}" if isinstance(error, NotAuthenticated) else str(error)


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
