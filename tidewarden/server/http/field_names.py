"""What the verbs' errors call an option, by the name that it has in JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tidewarden.errors import BY_CODE, Error
from tidewarden.server.verbs import lock, queue, queue_admin, session
from tidewarden.server.verbs.options import Options

_TABLES: tuple[Options, ...] = (
    queue.PUT,
    queue.TAKE,
    queue.RELEASE,
    queue_admin.PAGE,
    queue_admin.PAUSE,
    queue_admin.MOVE,
    queue_admin.DELETE,
    lock.ACQUIRE,
    session.SESSION,
)
NAMES = {word: field for table in reversed(_TABLES) for word, field in table.fields().items()} | {
    "ID": "id",
    "TO": "to",
}
_SAID = {
    "LEASE has to be its": "lease has to be its",
    "its LEASE number": "its lease number",
    "put with WAIT": "put with wait_ms",
    "the time to wait (ms)": "wait_ms",
    "the lease (ms)": "lease_ms",
}
_WORD = re.compile(rf"\b({'|'.join(NAMES)})\b")
_SENTENCE = re.compile("|".join(map(re.escape, _SAID)))


def renamed(error: Error) -> Error:
    """The same error, about fields instead of a verb's options."""
    said = _SENTENCE.sub(lambda found: _SAID[found[0]], str(error))
    said = _WORD.sub(lambda found: NAMES[found[1]], said)
    return error if said == str(error) else BY_CODE[error.code](said)


@contextmanager
def in_fields() -> Iterator[None]:
    """Errors that are raised within speak of fields."""
    try:
        yield
    except Error as error:
        raise renamed(error) from None
