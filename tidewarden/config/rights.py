"""
The rights of a user, as in ``[[users]] rights``.

They are words, most of them with a pattern of names, such as ``put:mails.*``.

A pattern's ``*`` stands for any run of characters, none included; a word alone means every name.

The words of tokens name accounts: ``token:read:shop/a*``. What stands before the first ``/`` is a
pattern of providers, what follows one of their accounts; without a ``/`` all of them are meant, and
what is of the provider as a whole.

Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from .sources import nearest

EVERYTHING = "all"
"""
The right that is all others, those that later versions add included. Who has no ``rights`` written
has it.
"""
QUEUE_WORDS = ("put", "take", "stats", "admin")  # of a queue or topic
NAME_WORDS = ("lock", "schedule")  # of a lock, of a schedule
TOKEN_WORDS = ("token:read", "token:write", "token:export", "token:admin")  # of accounts
ACCOUNT_LOOK = ("token:read", "token:write", "token:admin")
"""Each of them lets a user see an account without its tokens."""
WORDS = (EVERYTHING, *QUEUE_WORDS, *NAME_WORDS, *TOKEN_WORDS)
RIGHTS_ALLOWED = "rights like 'put:mails.*', 'take', 'token:read:shop/*'"

NAME_CHARS_MAX = 200
KEPT_MAX = 4096  # decisions remembered for one user
_QUEUE = re.compile(r"[A-Za-z0-9_.:/*-]+")
_NAME = re.compile(r"[^\s\x00-\x1f]+")
_PROVIDER = re.compile(r"[A-Za-z0-9_*-]+")


def fault_of(right: str) -> str:
    """
    Say what is wrong with a right as it is written: what is allowed, in words.

    Empty: nothing.
    """
    word, pattern = parse(right)
    if word not in WORDS:
        return (
            f"allowed is one of {', '.join(WORDS)}, the queues' with a pattern like put:mails.*;"
            f" {nearest(word, WORDS)}"
        )
    if pattern is None:
        return ""
    if word == EVERYTHING:
        return f"allowed is {word} alone: it has no names"
    if not 1 <= len(pattern) <= NAME_CHARS_MAX:
        return f"allowed after {word}: is a pattern of 1 to {NAME_CHARS_MAX} characters"
    if word in TOKEN_WORDS:
        return _fault_of_accounts(word, pattern)
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


def _fault_of_accounts(word: str, pattern: str) -> str:
    provider, account = _account_pattern(pattern)
    if not _PROVIDER.fullmatch(provider):
        return (
            f"allowed after {word}: is a provider's name, of A-Z a-z 0-9 _ -, or provider/account,"
            " with * for any part of either"
        )
    if not _NAME.fullmatch(account):
        return f"allowed after {word}:{provider}/ is an account's name, with * for any part of it"
    if not unicodedata.is_normalized("NFC", account):
        return (
            f"allowed after {word}:{provider}/ are letters together with their accents (Unicode's"
            " normal form C), as accounts are named"
        )
    return ""


def _account_pattern(pattern: str) -> tuple[str, str]:
    """Return the pattern of providers, and that of their accounts."""
    provider, slash, account = pattern.partition("/")
    return provider, account if slash else "*"


def parse(right: str) -> tuple[str, str | None]:
    """Split a right into its word, and the pattern if there is one."""
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


class Patterns:
    """
    Looks names up among patterns by how they begin.

    A name is compared only with patterns that begin as it does: it takes as long as there are
    different lengths of beginnings, not as there are patterns.
    """

    __slots__ = ("_beginnings", "_lengths", "_names")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._names: set[str] = set()  # those without a star
        self._beginnings: dict[str, list[str]] = {}
        for pattern in patterns:
            first, star, _ = pattern.partition("*")
            if star:
                self._beginnings.setdefault(first, []).append(pattern)
            else:
                self._names.add(pattern)
        self._lengths = sorted({len(first) for first in self._beginnings})

    def cover(self, name: str) -> bool:
        """Tell whether one of them covers ``name``."""
        if name in self._names:
            return True
        beginnings = self._beginnings
        for length in self._lengths:
            found = beginnings.get(name[:length])
            if found is not None and any(matches(pattern, name) for pattern in found):
                return True
        return False


class Rights:
    """
    Knows the rights of one user.

    Args:
        rights: as they are written, each without fault (:func:`fault_of`).

    ``whole``: nothing is forbidden.
    """

    __slots__ = ("_accounts", "_covered", "_kept", "_kept_before", "_patterns", "_seen", "whole")

    def __init__(self, rights: Iterable[str]) -> None:
        self._patterns: dict[str, list[str]] = {}
        self._accounts: dict[str, list[tuple[str, str]]] = {}
        for word, pattern in map(parse, rights):
            self._patterns.setdefault(word, []).append("*" if pattern is None else pattern)
        for word in TOKEN_WORDS:
            self._accounts[word] = [_account_pattern(one) for one in self._patterns.get(word, ())]
        self.whole = EVERYTHING in self._patterns
        self._covered = {word: Patterns(found) for word, found in self._patterns.items()}
        self._seen = Patterns(one for word in QUEUE_WORDS for one in self._patterns.get(word, ()))
        # what was decided lately, and before that: half of it is forgotten at a time
        self._kept: dict[tuple[str, str], bool] = {}
        self._kept_before: dict[tuple[str, str], bool] = {}

    def allow(self, word: str, name: str) -> bool:
        """
        Tell whether the user has the right ``word`` to the name ``name``.

        For the words of tokens it is ``provider/account``, or a provider alone: then all of its
        accounts must be the user's.
        """
        if self.whole:
            return True
        key = (word, name)
        found = self._kept.get(key)
        if found is None:
            found = self._kept_before.get(key)
            if found is None:
                found = self._decide(word, name)
            if len(self._kept) >= KEPT_MAX // 2:
                self._kept, self._kept_before = {}, self._kept
            if len(name) <= 2 * NAME_CHARS_MAX:
                self._kept[key] = found
        return found

    def _decide(self, word: str, name: str) -> bool:
        if word in self._accounts:
            return self._allow_account(word, name)
        return word in self._covered and self._covered[word].cover(name)

    def _allow_account(self, word: str, name: str) -> bool:
        provider, slash, account = name.partition("/")
        return any(
            matches(providers, provider)
            and (matches(accounts, account) if slash else not accounts.strip("*"))
            for providers, accounts in self._accounts[word]
        )

    def allow_every(self, word: str) -> bool:
        """Tell whether the user has the right ``word`` to everything of its kind."""
        if self.whole or "*" in self._patterns.get(word, ()):
            return True
        return any(
            not (providers + accounts).strip("*")
            for providers, accounts in self._accounts.get(word, ())
        )

    def allow_some(self, word: str) -> bool:
        """Tell whether the user has the right ``word`` to any name at all."""
        return self.whole or word in self._patterns

    def allow_part(self, word: str, provider: str) -> bool:
        """Tell whether the user may have the right ``word`` to accounts of ``provider``."""
        return self.whole or any(
            matches(providers, provider) for providers, _ in self._accounts.get(word, ())
        )

    def see(self, queue: str) -> bool:
        """
        Tell whether the user may see that ``queue`` exists, and its figures.

        Any right on the queue is enough.
        """
        if self.whole:
            return True
        if queue[:1] == "_":
            return self.allow("stats", queue) or self.allow("admin", queue)
        return self._seen.cover(queue)

    def accounts(self, *words: str) -> AccountRights:
        """Return the accounts to which the user has one of the rights ``words``."""
        return AccountRights(self, words)


class AccountRights:
    """
    Tells the accounts to which a user has one of some rights.

    ``every``: all accounts of all providers.
    """

    __slots__ = ("_rights", "_words", "every")

    def __init__(self, rights: Rights, words: tuple[str, ...]) -> None:
        self._rights = rights
        self._words = words
        self.every = rights.whole or any(rights.allow_every(word) for word in words)

    def allow(self, name: str) -> bool:
        """Tell whether ``provider/account`` is one; a provider: whether all of its accounts are."""
        return self.every or any(self._rights.allow(word, name) for word in self._words)

    def allow_part(self, provider: str) -> bool:
        """Tell whether any account of ``provider`` may be one."""
        return self.every or any(self._rights.allow_part(word, provider) for word in self._words)


ALL = Rights((EVERYTHING,))
NONE = Rights(())
EVERY_ACCOUNT = ALL.accounts()
