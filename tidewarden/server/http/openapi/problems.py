"""Describes the errors of the HTTP door: one schema, and a response for each set of words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tidewarden.errors import (
    BY_CODE,
    BadArg,
    ConfigError,
    Denied,
    Error,
    Full,
    Internal,
    NoAuth,
    NoQuorum,
    StoreDown,
    Timeout,
    TooBig,
    Unreachable,
    WrongPass,
)
from tidewarden.server.http.route import Route

from .schemas import REF, prose

NEVER_ANSWERED = (Error, ConfigError, Unreachable)
ALWAYS: tuple[type[Error], ...] = (BadArg, Denied, Full, Internal)
"""A request may be malformed, come from a foreign page, find no room, or meet a defect of ours."""
OF_USERS = (NoAuth, WrongPass)
OF_BODIES = (TooBig, Timeout)
SCHEMA = "Error"

WORDS = tuple(sorted(word for word, kind in BY_CODE.items() if kind not in NEVER_ANSWERED))


def schema() -> dict[str, Any]:
    """Return the schema of every error."""
    return {
        "description": "What went wrong. Programs decide by the word, people read the message.",
        "type": "object",
        "properties": {
            "error": {
                "description": "\n".join(
                    f"- `{word}`: {_meaning(BY_CODE[word])}" for word in WORDS
                ),
                "enum": list(WORDS),
            },
            "message": {
                "description": "A sentence that names what was wrong, and what is allowed.",
                "type": "string",
                "examples": ["There is no parameter 'x' here; there are count, after."],
            },
        },
        "required": ["error", "message"],
    }


def kinds_of(route: Route[Any]) -> set[type[Error]]:
    """Return every error that a route may answer."""
    found: set[type[Error]] = {*ALWAYS, *route.errors}
    if route.verb:
        found |= {*OF_USERS}
    if route.body is not None:
        found |= {*OF_BODIES}
    if StoreDown in found:  # a store that is away, because no majority of the nodes is in reach
        found |= {NoQuorum}
    return found


def by_status(kinds: Iterable[type[Error]]) -> dict[int, tuple[str, ...]]:
    """Return the words of errors by the status that they are answered with."""
    found: dict[int, list[str]] = defaultdict(list)
    for kind in kinds:
        found[kind.http_status].append(kind.code)
    return {status: tuple(sorted(words)) for status, words in sorted(found.items())}


def response_name(words: tuple[str, ...]) -> str:
    """Return the name under which a response of these words is kept."""
    return "_".join(words)


def schema_name(words: tuple[str, ...]) -> str:
    """
    Return the name under which the schema of an error of these words is kept.

    By the name generated clients have one class for it, and not one for each route.
    """
    return f"{SCHEMA}_{response_name(words)}"


def schema_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of an error that is one of the words."""
    return {
        "allOf": [
            {"$ref": REF.format(name=SCHEMA)},
            {"type": "object", "properties": {"error": {"enum": list(words)}}},
        ]
    }


def response(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the response of one status, whose error is one of the words."""
    text = "\n".join(f"- `{word}`: {_meaning(BY_CODE[word])}" for word in words)
    found: dict[str, Any] = {
        "description": text.removeprefix("- ") if len(words) == 1 else text,
        "content": {
            "application/json": {
                "schema": {"$ref": REF.format(name=schema_name(words))},
                "example": {"error": words[0], "message": _meaning(BY_CODE[words[0]])},
            }
        },
    }
    if BY_CODE[words[0]].http_status == NoAuth.http_status:
        found["headers"] = {"WWW-Authenticate": {"schema": {"type": "string", "const": "Bearer"}}}
    return found


def _meaning(kind: type[Error]) -> str:
    return prose(kind.__doc__)[1].replace("\n\n", " ")
