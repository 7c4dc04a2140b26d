"""Encodes a task to put and the options of a put as words of the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from tidewarden.errors import BadArg

from .connection import Arg

IfExists = Literal["keep", "fail", "replace"]
State = Literal["delayed", "ready", "leased", "buried"]
Place = Literal["payload", "id", "reason"]


class TickOptions(TypedDict, total=False):
    """The options of a schedule's tasks, as :class:`PutOptions` has them; times are of the tick."""

    delay_ms: int
    within_ms: int
    priority: int
    lease_ms: int
    attempts: int
    backoff_ms: int
    ttl_ms: int
    lane: str


class PutOptions(TickOptions, total=False):
    """
    The options that ``put`` and ``put_many`` take by name. Times are integer milliseconds.

    ``delay_ms`` or ``at_ms`` (unix): not before; ``within_ms`` or ``deadline_ms`` (unix): wanted
    done by; ``priority``: 0 to 99, lower first (50); ``lease_ms``: how long its takers hold it;
    ``attempts``: buried after so many (0: no limit); ``backoff_ms``: first pause after a failure,
    doubled with each; ``ttl_ms``: buried when nobody took it in time; ``lane``: its sub-queue;
    ``if_exists``: what becomes of a task that is there under the id (``keep`` it, ``fail``,
    ``replace`` it).
    """

    at_ms: int
    deadline_ms: int
    if_exists: IfExists


_WORDS = {
    "delay_ms": "DELAY",
    "at_ms": "AT",
    "deadline_ms": "DEADLINE",
    "within_ms": "WITHIN",
    "priority": "PRIORITY",
    "lease_ms": "LEASE",
    "attempts": "ATTEMPTS",
    "backoff_ms": "BACKOFF",
    "ttl_ms": "TTL",
    "lane": "LANE",
    "if_exists": "IFEXISTS",
}
TRACE = "TRACE"
"""The word before the traceparent of a put, which older nodes do not know."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """
    A task for ``put_many``: its payload, an id of your own, options that differ from the call's.
    """

    payload: bytes | str
    id: str = ""
    options: PutOptions | None = None


def put_words(options: PutOptions | TickOptions) -> tuple[Arg, ...]:
    """
    Encode the options for the wire; an option that is ``None`` is left out.

    Raises: BadArg: there is no such option.
    """
    words: list[Arg] = []
    for name, value in options.items():
        word = _WORDS.get(name)
        if word is None:
            raise BadArg(f"{name} is no option of a put; allowed: {', '.join(_WORDS)}")
        if value is not None:
            words += (word, checked(name, value))
    return tuple(words)


def checked(name: str, value: Any) -> Arg:
    """
    Check that an integer or a text may be sent, and return it.

    Raises: BadArg: it is neither, a ``float`` or ``bool`` for example.
    """
    if type(value) is int or isinstance(value, (str, bytes)):
        return value
    raise BadArg(f"{name} is {value!r}; allowed is an integer, or a text where the option is one")


def words(**options: Arg | None) -> tuple[Arg, ...]:
    """Write options as the wire has them: ``delay=5, reason=None`` → ``("DELAY", 5)``."""
    return tuple(
        item
        for name, value in options.items()
        if value is not None
        for item in (name.upper(), checked(name, value))
    )


def payload_of(value: object) -> bytes | str:
    """Check that a payload is bytes or a text, and return it. Raises: TypeError: it is neither."""
    if isinstance(value, (bytes, str)):
        return value
    raise TypeError(
        f"the payload is {type(value).__name__}; allowed is bytes or str: put_json(value) puts"
        " anything else as JSON"
    )


def encoded(value: Any) -> bytes:
    """
    Encode a payload: bytes as they are, text as UTF-8, everything else as JSON.

    Raises: TypeError: JSON cannot say it.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return as_json(value)


def as_json(value: Any) -> bytes:
    """Encode ``value`` as compact JSON. Raises: TypeError: JSON cannot say it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
