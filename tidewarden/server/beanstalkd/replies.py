"""Words the replies of the protocol, and the word for each error of ours."""

from __future__ import annotations

from collections.abc import Iterable

from tidewarden.errors import (
    BadArg,
    Denied,
    Draining,
    Error,
    Full,
    NoAuth,
    NotFound,
    NotHeld,
    TooBig,
    WrongPass,
)

from .parser import BAD_FORMAT, JOB_TOO_BIG

OUT_OF_MEMORY = b"OUT_OF_MEMORY\r\n"
INTERNAL_ERROR = b"INTERNAL_ERROR\r\n"
DRAINING = b"DRAINING\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"
DEADLINE_SOON = b"DEADLINE_SOON\r\n"

_WORDS: tuple[tuple[type[Error], bytes], ...] = (
    (Full, OUT_OF_MEMORY),
    (Draining, DRAINING),
    (TooBig, JOB_TOO_BIG),
    (BadArg, BAD_FORMAT),
    (NotFound, NOT_FOUND),
    (NotHeld, NOT_FOUND),
    # ours: beanstalkd knows no users
    (NoAuth, b"NOAUTH\r\n"),
    (WrongPass, b"WRONGPASS\r\n"),
    (Denied, b"DENIED\r\n"),
)


def failure(error: Error) -> bytes:
    """
    Word the reply for an error; an error that may be tried again is an ``INTERNAL_ERROR``, too.
    """
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return word
    return INTERNAL_ERROR


def job(word: str, number: int, body: bytes) -> bytes:
    """Word the reply that carries a job and its body."""
    return b"%s %d %d\r\n%s\r\n" % (word.encode(), number, len(body), body)


def data(text: str) -> bytes:
    """Word the reply that carries a YAML document."""
    body = text.encode("utf-8", "replace")
    return b"OK %d\r\n%s\r\n" % (len(body), body)


def listed(names: Iterable[str]) -> bytes:
    """Word the reply that carries a YAML list of names."""
    return data("---\n" + "".join(f"- {name}\n" for name in names))
