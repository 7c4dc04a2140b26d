"""
Declares the permissions of verbs and routes: which rights a request needs.

Each verb names its permission in its row of the command table, and each HTTP route the verb whose
permission it shares. Answers that list things (``Q.LIST``, ``L.LIST``, ``S.LIST``, ``/metrics``)
need no right and show each user what it may see. Those that list accounts (``T.LIST``) do the same,
but need a right to any account there may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from tidewarden.config.rights import Rights

Arguments = Sequence[bytes]


class AnyName(Enum):
    """Stands for one name at least, whichever it is."""

    SOME = "some"


SOME: Final = AnyName.SOME
Requirement = tuple[tuple[str, ...], str | AnyName | None]
"""
The user must have the right to the name under one of the words; the name None stands for all there
are, :data:`SOME` for any.
"""
Level = Literal["open", "login", "right", "user"]

ADMIN = ("admin",)
TAKE_OR_ADMIN = ("take", "admin")  # whoever takes a task reads it anyway


@dataclass(frozen=True, slots=True, eq=False)
class Permission:
    """
    Says what a caller needs for a verb.

    Args:
        level: ``open``: nothing; ``login``: the connection was let in; ``right``: and has the
            rights that are required; ``user``: and has named a user.
        words: of which rights one may be required, whatever the request.
        required: what one request requires; None: no right.
    """

    level: Level
    words: frozenset[str] = frozenset()
    required: Callable[[Arguments], Iterable[Requirement]] | None = None


OPEN = Permission("open")
"""Everybody may use it, before any login."""
LOGIN = Permission("login")
"""Everybody who was let in may use it: the answer shows each user its own part, or is for all."""


def on(words: tuple[str, ...], *positions: int) -> Permission:
    """Require one of the words for each of the names that stand at ``positions``."""

    def required(request: Arguments) -> Iterable[Requirement]:
        return [(words, name_of(request[position])) for position in positions]

    return Permission("right", frozenset(words), required)


def depends(
    words: tuple[str, ...], required: Callable[[Arguments], Iterable[Requirement]]
) -> Permission:
    """Require some of the words, as ``required`` tells from the request."""
    return Permission("right", frozenset(words), required)


def every(*words: str) -> Permission:
    """Require one of the words for everything."""
    return Permission("right", frozenset(words), lambda request: [(words, None)])


def every_as_user(*words: str) -> Permission:
    """
    Require one of the words for everything, and a named user also where the door is open to all.
    """
    return Permission("user", frozenset(words), lambda request: [(words, None)])


def on_account(*words: str, position: int = 1) -> Permission:
    """Require one of the words for the account or provider at ``position``, and a named user."""

    def required(request: Arguments) -> Iterable[Requirement]:
        return [(words, name_of(request[position]))]

    return Permission("user", frozenset(words), required)


def some_as_user(*words: str) -> Permission:
    """
    Require one of the words for any account, and a named user.

    The handler shows, or changes, only accounts to which the user has the right.
    """
    return Permission("user", frozenset(words), lambda request: [(words, SOME)])


def name_of(argument: bytes) -> str:
    """Return a name in the form of rights; a name that is no UTF-8 matches no right."""
    return argument.decode("utf-8", "backslashreplace")


def missing(rights: Rights, required: Iterable[Requirement]) -> str:
    """Return the first right that is missing, as it would be written; empty: none."""
    for words, name in required:
        if isinstance(name, str):
            if not any(rights.allow(word, name) for word in words):
                return " or ".join(f"{word}:{name[:200]}" for word in words)
            continue
        allowed = rights.allow_every if name is None else rights.allow_some
        if not any(allowed(word) for word in words):
            return " or ".join(words)
    return ""


def missing_for(rights: Rights, permission: Permission, request: Arguments = ()) -> str:
    """Return the first right that ``permission`` requires of ``request`` and that is missing."""
    if rights.whole or permission.required is None:
        return ""
    return missing(rights, permission.required(request))
