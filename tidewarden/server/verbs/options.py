"""
Parses the options of a verb by a table: word, field, how its value is read.

It checks syntax only; the queue checks the values. Options come in any order, in upper or lower
case, each at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tidewarden.errors import BadArg

Read = Callable[[str, bytes], Any]

DIGITS_MAX = 16


def number(word: str, value: bytes) -> int:
    """Read a decimal integer of 0 or more, at most sixteen digits."""
    if not value.isdigit() or len(value) > DIGITS_MAX:
        raise BadArg(f"{word} must be an integer of 0 or more: found {shown(value)}.")
    return int(value)


def text(word: str, value: bytes) -> str:
    """Read UTF-8 text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadArg(f"{word} must be UTF-8 text: found {shown(value)}.") from None


def data(word: str, value: bytes) -> bytes:
    """Read bytes as they came."""
    return value


def lowered(word: str, value: bytes) -> str:
    """Read one of a few words, in lower case."""
    return text(word, value).lower()


def unsupported(word: str, value: bytes) -> NoReturn:
    """Refuse a word of the protocol that this version does not know yet."""
    raise BadArg(f"{word} is not supported by this version.")


def shown(value: bytes) -> str:
    """Return a caller's word in a form that fits an error message."""
    return repr(value[:40].decode("utf-8", "backslashreplace")) + ("…" if len(value) > 40 else "")


@dataclass(frozen=True, slots=True)
class Option:
    """
    Describes one option: the field it fills, how its value is read, and the field it excludes.

    A reader of None means that it has no value.
    """

    field: str
    read: Read | None
    rival: str = ""


MAX_STALE = Option("max_stale_ms", number)
"""The options of reads: the answer may be so old, and then come from the node's own copy."""


class Options:
    """
    Parses the options of one verb.

    Args:
        verb: its name, for messages.
        table: word → :class:`Option`.
        until: the word that ends the options (``FROM``); empty: they run to the end.
        open_ended: stop at the first word that is no option, instead of refusing it.
    """

    __slots__ = ("_open_ended", "_table", "_until", "_verb", "_words")

    def __init__(
        self, verb: str, table: Mapping[str, Option], *, until: str = "", open_ended: bool = False
    ) -> None:
        self._verb = verb
        self._words = " ".join(
            word for word, option in table.items() if option.read is not unsupported
        )
        self._until = until.encode()
        self._open_ended = open_ended
        self._table: dict[bytes, tuple[str, str, Read | None, str]] = {}
        for word, option in table.items():
            entry = (word, option.field, option.read, option.rival)
            self._table[word.encode()] = self._table[word.lower().encode()] = entry

    def parse(self, arguments: Sequence[bytes], start: int) -> dict[str, Any]:
        """Return the fields that ``arguments[start:]`` give. Raises BadArg, naming the word."""
        return self.parse_until(arguments, start)[0]

    def parse_until(self, arguments: Sequence[bytes], start: int) -> tuple[dict[str, Any], int]:
        """Return the fields, and the index of what follows the options."""
        fields: dict[str, Any] = {}
        table = self._table
        position = start
        size = len(arguments)
        while position < size:
            argument = arguments[position]
            entry = table.get(argument) or table.get(argument.upper())
            if entry is None:
                if self._until and argument.upper() == self._until:
                    return fields, position + 1
                if self._open_ended:
                    break
                self._refuse(argument)
            word, field, read, rival = entry
            if field in fields:
                raise BadArg(
                    f"{word} is given twice."
                    if not rival
                    else f"{word} is given beside its rival or twice."
                )
            if rival and rival in fields:
                raise BadArg(f"{word} excludes {self._word_of(rival)}: give one of them.")
            position += 1
            if read is None:
                fields[field] = True
                continue
            if position == size:
                raise BadArg(f"{word} needs a value.")
            fields[field] = read(word, arguments[position])
            position += 1
        if self._until:
            raise BadArg(f"{self._verb} needs {self._until.decode()} after its options.")
        return fields, position

    def _refuse(self, argument: bytes) -> NoReturn:
        known = f"It knows {self._words}." if self._words else "It has no options."
        raise BadArg(f"{self._verb} has no option {shown(argument)}. {known}")

    def _word_of(self, field: str) -> str:
        return next(entry[0] for entry in self._table.values() if entry[1] == field)
