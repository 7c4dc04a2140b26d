"""
The error words of Tidewarden: one tree, one table, the same at every door.

A door renders an :class:`Error` as ``-CODE message`` (RESP) or as ``{"error": code, "message": …}``
with :attr:`Error.http_status` (HTTP). What a caller should do about each word is in
``docs/protocol.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Field:
    """
    Stands in an error's message for a field of the request.

    Args:
        name: as Python and JSON call it.
        word: as RESP calls it; empty: the name in capitals, without its unit.
    """

    name: str
    word: str = ""

    def __str__(self) -> str:
        return self.word or self.name.removesuffix("_ms").upper()


class Error(Exception):
    """
    Base of every error a caller may handle.

    Its arguments are the pieces of the message, texts and fields. ``str(error)`` is the message as
    RESP has it, a whole sentence without the code.
    """

    code: ClassVar[str] = "ERR"
    http_status: ClassVar[int] = 500

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    @property
    def http_message(self) -> str:
        """Return the message as HTTP has it: fields have their names in JSON."""
        return "".join(one.name if isinstance(one, Field) else str(one) for one in self.args)


class BadArg(Error):
    """
    A request is malformed: which argument, what was found, what is allowed.

    Correct it; a retry will not help.
    """

    code = "BADARG"
    http_status = 400


class NoAuth(Error):
    """
    The caller has not said who it is, or said it wrongly.

    Send AUTH (RESP) or a bearer token (HTTP).
    """

    code = "NOAUTH"
    http_status = 401


class WrongPass(Error):
    """AUTH or a bearer token named no user, or carried the wrong secret."""

    code = "WRONGPASS"
    http_status = 401


class Denied(Error):
    """The caller is known and may not do this."""

    code = "DENIED"
    http_status = 403


class NotFound(Error):
    """The named thing does not exist (any more)."""

    code = "NOTFOUND"
    http_status = 404


class Exists(Error):
    """The id is taken and the request asked to fail then."""

    code = "EXISTS"
    http_status = 409


class NotHeld(Error):
    """
    The task is not held under this lease: it ended, or it was never taken.

    Drop the work; somebody else has it.
    """

    ENDED: ClassVar[str] = (
        "This lease has ended, or never was. Drop the work: somebody else has it or will have it."
    )
    """What an ack is answered that came too late."""
    code = "NOTHELD"
    http_status = 409


class Stale(Error):
    """
    A leader or node of the past spoke. Nothing was changed. The message carries what is stored.
    """

    code = "STALE"
    http_status = 409


class NoQuorum(Error):
    """
    A write missed its durability in time. It may or may not exist: repeat it with the same id.
    """

    code = "NOQUORUM"
    http_status = 503


class NoLeader(Error):
    """Only a leader can do this and none is known. Try again shortly."""

    code = "NOLEADER"
    http_status = 503


class Full(Error):
    """The store or the queue has no room for more. Take and acknowledge, then try again."""

    code = "FULL"
    http_status = 507


class TooBig(Error):
    """Over a limit (payload, batch, line …); the message names it."""

    code = "TOOBIG"
    http_status = 413


class Draining(Error):
    """This node is going down and takes nothing new. Connect to another."""

    code = "DRAINING"
    http_status = 503


class Timeout(Error):
    """The operation did not finish in time; it may still happen."""

    code = "TIMEOUT"
    http_status = 504


class StoreDown(Error):
    """
    The store cannot be reached or refuses; the message is in its own words.

    A write may or may not exist.
    """

    code = "STOREDOWN"
    http_status = 503


class Internal(Error):
    """A defect of ours. It is in the node's log, with a trace."""

    code = "INTERNAL"
    http_status = 500


class Unreachable(Error):
    """
    No node could be reached in time, or an unsafe request lost its connection.

    Only the SDK raises it; an unsafe request cannot be repeated safely.

    The message says which; in the second case it may or may not have happened. No door answers it.
    """

    code = "UNREACHABLE"
    http_status = 503


class ConfigError(Error):
    """
    The configuration cannot be used.

    ``problems`` lists every one: file, key, what was found, what is allowed.
    """

    code = "CONFIG"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


_ALL: tuple[type[Error], ...] = (Error, *Error.__subclasses__())
BY_CODE: dict[str, type[Error]] = {cls.code: cls for cls in _ALL}


def from_wire(line: str) -> Error:
    """
    Return the error that a reply line ``CODE message`` stands for.

    An unknown word becomes a plain :class:`Error`.
    """
    code, _, message = line.partition(" ")
    cls = BY_CODE.get(code)
    if cls is None or cls is ConfigError:
        return Error(line)
    return cls(message)
