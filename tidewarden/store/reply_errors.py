"""Turns error replies of the store into the errors of the product."""

from __future__ import annotations

import re

from tidewarden.errors import Error, Full, NoQuorum, StoreDown, from_wire

# The store's own words for "not now", which a caller should read as such.
AWAY = ("BUSY", "UNBLOCKED", "MISCONF", "NOAUTH", "WRONGPASS", "NOPERM")
# Likewise, but the same call may be taken in a moment, or by another server now.
NOT_RUN = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN")
NOT_YET = ("LOADING", "MASTERDOWN")
"""The errors after which the same server may take the call in a moment."""
# how a server before 7.0 wraps what a command of a script met with
IN_SCRIPT = "ERR Error running script"
_WRAPPED = re.compile(r": -([A-Z]{3,} .*)")
_PLACE = re.compile(r" ?script: \S*,? ?on @user_script:\d+\.?$")
# What a script of ours is told when the user may run scripts, but not a command, a key or a channel
# of theirs: since 7.0, before.
NO_PERMISSION = ("ACL failure in script", "The user executing the script can't")


class StoreRefused(StoreDown):
    """Says that a connected store refuses the call now; the message is in its own words."""


class ReadOnlyServer(StoreRefused):
    """Says that the server takes no write, because it is a replica now; nothing has happened."""


class TooFewCopies(StoreRefused):
    """
    Says that the store takes no write, because too few others would have it.

    Nothing has happened. Inside it is a refusal like others; callers are told what it means: no
    quorum.
    """

    code = NoQuorum.code
    http_status = NoQuorum.http_status


class NotSent(StoreDown):
    """Says that a call found no connection for too long; nothing has happened."""


class NoMajority(NotSent):
    """
    Says the same, because no majority of the nodes was in reach.

    Inside it is a store that is away; callers are told what it means: no quorum.
    """

    code = NoQuorum.code
    http_status = NoQuorum.http_status


class NotRun(StoreRefused):
    """
    Says that the server refused the call before its first line.

    ``word`` says why; with MOVED and ASK, ``slot`` and ``place`` (host:port) say where to.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"the store refuses: {message}")
        self.word, *rest = message.split()
        self.slot = -1
        self.place = ""
        if self.word in ("MOVED", "ASK") and len(rest) >= 2 and rest[0].isdecimal():
            self.slot, self.place = int(rest[0]), rest[1]


def bare(message: str) -> str:
    """
    Return an error without what a server adds when a script got it.

    It adds it in front until 7.0, and since then behind.
    """
    found = _WRAPPED.search(message) if message.startswith(IN_SCRIPT) else None
    return found[1] if found else _PLACE.sub("", message)


def unanswered(error: BaseException) -> bool:
    """
    Return whether the outcome of a call is unknown.

    Then it was sent, and its connection lost before the answer.
    """
    return isinstance(error, StoreDown) and not isinstance(error, StoreRefused | NotSent)


def refused_for_now(error: BaseException) -> bool:
    """
    Return whether the server did nothing, because it takes no writes, or is not followed, now.
    """
    if isinstance(error, NotRun):
        return error.word in NOT_YET
    return isinstance(error, ReadOnlyServer | TooFewCopies)


def known_already(error: BaseException) -> bool:
    """
    Return whether a FUNCTION LOAD was refused because another node had loaded the same library.
    """
    return isinstance(error, Error) and "already exists" in str(error)


def error_of(message: str) -> Error:
    """Return the error that an error reply of the store means to our callers."""
    said = bare(message)
    word = said.partition(" ")[0]
    if word == "OOM":
        return Full(
            "the store's memory is full; take and acknowledge tasks, or raise its maxmemory"
        )
    if word == "NOREPLICAS":
        return TooFewCopies(
            f"the store refuses: {said.removesuffix('.')}; nothing was done. Writes go on once"
            " another store follows it"
        )
    if word == "READONLY":
        return ReadOnlyServer(f"the store refuses: {said}")
    if word in NOT_RUN and said == message:  # not what a script met with in its midst
        return NotRun(said)
    if word in AWAY or word in NOT_RUN:
        return StoreRefused(f"the store refuses: {said}")
    if any(words in message for words in NO_PERMISSION):
        return StoreRefused(f"the store refuses: NOPERM {said.removeprefix('ERR ')}")
    return from_wire(message)
