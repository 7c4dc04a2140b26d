"""
The rights of a user, as in ``[[users]] rights``.

They are words, most of them with a pattern of names, such as ``put:mails.*``.

A pattern's ``*`` stands for any run of characters, none included; a word alone means every name.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .sources import nearest

EVERYTHING = "all"
"""
The right that is all others, those that later versions add included. Who has no ``rights`` written
has it.
"""
QUEUE_WORDS = ("put", "take", "stats", "admin")  # of a queue or topic
NAME_WORDS = ("lock", "schedule")  # of a lock, of a schedule
# no names: of all accounts
TOKEN_WORDS = ("token:read", "token:write", "token:export", "token:admin")
WORDS = (EVERYTHING, *QUEUE_WORDS, *NAME_WORDS, *TOKEN_WORDS)
RIGHTS_ALLOWED = "rights like 'put:mails.*', 'take', 'token:read'"

NAME_CHARS_MAX = 200
KEPT_MAX = 4096  # decisions remembered for one user
_QUEUE = re.compile(r"[A-Za-z0-9_.:/*-]+")
_NAME = re.compile(r"[^\s\x00-\x1f]+")


def fault_of(right: str) -> str:
    """What is wrong with a right as it is written: what is allowed, in words. Empty: nothing."""
    word, pattern = parse(right)
    if word not in WORDS:
        return (
            f"allowed is one of {', '.join(WORDS)}, the queues' with a pattern like put:mails.*;"
            f" {nearest(word, WORDS)}"
        )
    if pattern is None:
        return ""
    if word not in (*QUEUE_WORDS, *NAME_WORDS):
        return f"allowed is {word} alone: it has no names"
    if not 1 <= len(pattern) <= NAME_CHARS_MAX:
        return f"allowed after {word}: is a pattern of 1 to {NAME_CHARS_MAX} characters"
    if word in NAME_WORDS:
        return (
            ""
            if _NAME.fullmatch(pattern)
            else f"allowed after {word}: is a name without blanks, with * for any part of it"
        )
    if not _QUEUE.fullmatch(pattern):
        return (
            f"allowed after {word}: is a queue's name, of A-Z a-z 0-9 _ . : / -, with * for any"
            " part of it"
        )
    if pattern.startswith("_") and word != "admin":
        return (
            f"allowed after {word}: are users' queues; those whose names begin with _ are the"
            " system's"
        )
    return ""


def parse(right: str) -> tuple[str, str | None]:
    """The word, and the pattern if there is one."""
    for word in TOKEN_WORDS:
        if right == word or right.startswith(f"{word}:"):
            return word, right[len(word) + 1 :] if right != word else None
    word, colon, pattern = right.partition(":")
    return word, pattern if colon else None


def matches(pattern: str, name: str) -> bool:
    """
    Tell whether ``pattern`` covers ``name``.

    The cost is bounded by the name's length, whatever the pattern.
    """
    first, star, rest = pattern.partition("*")
    if not star:
        return name == pattern
    *middle, last = rest.split("*")
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Rights:
    """
    The rights of one user.

    Args:
        rights: as they are written, each without fault (:func:`fault_of`).

    ``whole``: nothing is forbidden.
    """

    __slots__ = ("_kept", "_patterns", "whole")

    def __init__(self, rights: Iterable[str]) -> None:
        self._patterns: dict[str, list[str]] = {}
        for word, pattern in map(parse, rights):
            self._patterns.setdefault(word, []).append("*" if pattern is None else pattern)
        self.whole = EVERYTHING in self._patterns
        self._kept: dict[tuple[str, str], bool] = {}

    def allow(self, word: str, name: str) -> bool:
        """Tell whether the user has the right ``word`` to the name ``name``."""
        if self.whole:
            return True
        key = (word, name)
        found = self._kept.get(key)
        if found is None:
            found = any(matches(pattern, name) for pattern in self._patterns.get(word, ()))
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            if len(name) <= NAME_CHARS_MAX:
                self._kept[key] = found
        return found

    def allow_every(self, word: str) -> bool:
        """Tell whether the user has the right ``word`` to everything of its kind."""
        return self.whole or "*" in self._patterns.get(word, ())

    def see(self, queue: str) -> bool:
        """
        Tell whether the user may see that ``queue`` exists, and its figures.

        Any right on the queue is enough.
        """
        words = QUEUE_WORDS if queue[:1] != "_" else ("stats", "admin")
        return self.whole or any(self.allow(word, queue) for word in words)


ALL = Rights((EVERYTHING,))
NONE = Rights(())
