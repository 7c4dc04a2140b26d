"""
What a search asks of a task: a glob for its id, payload or reason, and a value in its JSON.

Pure. What it costs grows with the task alone, whatever its author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidewarden.config.rights import matches
from tidewarden.errors import BadArg, Field

PLACES = ("payload", "id", "reason")
GLOB_BYTES_MAX = 1000
WHERE_BYTES_MAX = 1000
JSON_BYTES_MAX = 65_536
"""A longer payload is not read as JSON: to make Python's values of it holds the loop too long."""
_STEP = re.compile(r'\.([^.\[\]"=\s]+)|\[([0-9]{1,6})\]|\[("(?:[^"\\]|\\.)*")\]')
_PATH_ALLOWED = '; allowed is $, then .name, ["any name"] or [number] at will, then =value'
_NO_JSON = object()


@dataclass(frozen=True, slots=True)
class Condition:
    """
    Says which tasks a search finds: those that fit its glob and have the value at its path.

    ``glob``: ``*`` stands for any run of characters, none included; None: any task fits. ``place``:
    what it is compared with. ``path``: names and numbers; None: there is none.
    """

    glob: str | None = None
    place: str = "payload"
    path: Sequence[str | int] | None = None
    value: str = ""
    parsed: Any = _NO_JSON
    """The value as JSON, where it is any."""

    def fits_id(self, task_id: bytes) -> bool:
        """Tell whether a task of this id may fit."""
        return self.glob is None or self.place != "id" or matches(self.glob, _narrow(task_id))

    def fits(self, payload: bytes, reason: bytes) -> bool | None:
        """
        Tell whether a task fits whose id does.

        None: that is not known, because its payload is longer than is read as JSON.
        """
        if self.glob is not None and self.place != "id":
            text = payload if self.place == "payload" else reason
            if not matches(self.glob, _narrow(text)):
                return False
        if self.path is None:
            return True
        if len(payload) > JSON_BYTES_MAX:
            return None
        try:
            found = msgspec.json.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        return self._is_value(_at(found, self.path))

    def _is_value(self, found: Any) -> bool:
        if isinstance(found, str):
            return found in (self.value, self.parsed)
        if isinstance(found, dict | list) or found is _NO_JSON:
            return False
        # Python takes true for 1.
        return isinstance(found, bool) == isinstance(self.parsed, bool) and found == self.parsed


def condition_of(glob: str | None, place: str, where: str | None) -> Condition:
    """
    Read a condition as it is sent. Raises: BadArg: which part is not allowed, and what is.

    ``glob``, ``place``: MATCH and IN; ``where``: WHERE, ``$.path=value``.
    """
    if place not in PLACES:
        raise BadArg(
            Field("match_in", "IN"), f" is {place[:60]!r}; allowed are {', '.join(PLACES)}"
        )
    narrow = None
    if glob is not None:
        raw = glob.encode("utf-8", "surrogatepass")
        if not 1 <= len(raw) <= GLOB_BYTES_MAX:
            allowed = f"allowed are 1 to {GLOB_BYTES_MAX}"
            raise BadArg(Field("match"), f" has {len(raw)} bytes; {allowed}")
        narrow = _narrow(raw)
    if where is None:
        return Condition(narrow, place)
    path, value = _path_of(where)
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        parsed = _NO_JSON
    return Condition(narrow, place, path, value, parsed)


def _path_of(where: str) -> tuple[list[str | int], str]:
    if len(where.encode("utf-8", "surrogatepass")) > WHERE_BYTES_MAX:
        allowed = f"allowed are {WHERE_BYTES_MAX}"
        raise BadArg(Field("where"), f" has {len(where)} characters; {allowed} bytes")
    path: list[str | int] = []
    at = 1
    while found := _STEP.match(where, at):
        name, number, quoted = found.groups()
        if quoted is not None:
            try:
                name = msgspec.json.decode(quoted, type=str)
            except (msgspec.DecodeError, ValueError):
                break
        path.append(name if number is None else int(number))
        at = found.end()
    if where[:1] != "$" or where[at : at + 1] != "=":
        raise BadArg(Field("where"), f" is {where[:60]!r}", _PATH_ALLOWED)
    return path, where[at + 1 :]


def _at(found: Any, path: Sequence[str | int]) -> Any:
    """Return what stands at the path; nothing that JSON has: there is no such place."""
    for step in path:
        if isinstance(found, dict) and isinstance(step, str):
            found = found.get(step, _NO_JSON)
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return _NO_JSON
    return found


def _narrow(raw: bytes) -> str:
    """Return text of one character a byte: so bytes are compared that are no text, too."""
    return raw.decode("latin-1")
