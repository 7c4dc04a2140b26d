"""
Which rights a request needs: one table for the verbs of RESP and the routes of HTTP.

A demand is (words, name): the user must have the right to that name under one of the words; the
name None stands for all there are. Answers that list things (``Q.LIST``, ``Q.STATS``, ``L.LIST``,
``S.LIST``, ``/metrics``) demand nothing and show each user what it may see. A verb without a line
here, which is none of a connection's own, needs ``admin`` over everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from tidewarden.config.permissions import QUEUE_WORDS, Rights
from tidewarden.scheduler.trigger import parse
from tidewarden.server.verbs.command import Request
from tidewarden.server.verbs.queue import TAKE
from tidewarden.server.verbs.schedule import TRIGGER_WORDS_MAX

Demand = tuple[tuple[str, ...], str | None]
Demands = Callable[[Request], Iterable[Demand]]

STEER = ("admin",)
LOOK_INTO = ("take", "admin")  # whoever takes a task reads it anyway
READ, WRITE, EXPORT, ADMIN = ("token:read",), ("token:write",), ("token:export",), ("token:admin",)


def name_of(argument: bytes) -> str:
    """
    A name as the rights know it; one that is no UTF-8 matches as little as the handler will take
    it.
    """
    return argument.decode("utf-8", "backslashreplace")


def on(words: tuple[str, ...], *positions: int) -> Demands:
    """The arguments at ``positions`` are names."""

    def demands(request: Request) -> Iterable[Demand]:
        return [(words, name_of(request[position])) for position in positions]

    return demands


def every(*words: str) -> Demands:
    """One of the words for everything."""
    return lambda request: [(words, None)]


def nothing(request: Request) -> Iterable[Demand]:
    """No right: the answer shows each user its own part, or is for all."""
    return ()


def _take(request: Request) -> Iterable[Demand]:
    _, start = TAKE.parse_until(request, 1)
    return [(("take",), name_of(name)) for name in request[start:]]


def _leased(request: Request) -> Iterable[Demand]:
    """
    Q.UPDATE and Q.DELETE: under a lease number, which 0 is not, the consumer's affair, else the
    queue's steering.
    """
    leases = [
        after
        for word, after in zip(request[3::2], request[4::2], strict=False)
        if word.upper() == b"LEASE"
    ]
    held = any(lease.isdigit() and lease.strip(b"0") for lease in leases)
    return [(LOOK_INTO if held else STEER, name_of(request[1]))]


def _config(request: Request) -> Iterable[Demand]:
    return [(QUEUE_WORDS if len(request) == 2 else STEER, name_of(request[1]))]


def _move(request: Request) -> Iterable[Demand]:
    targets = [after for word, after in pairwise(request[2:]) if word.upper() == b"TO"]
    return [(STEER, name_of(name)) for name in (request[1], *targets)]


def _check(request: Request) -> Iterable[Demand]:
    one = len(request) > 1 and request[1] != b"*"
    return [(STEER, name_of(request[1]) if one else None)]


def _stats(request: Request) -> Iterable[Demand]:
    return [(QUEUE_WORDS, name_of(request[1]))] if len(request) > 1 else ()


def _schedule(request: Request) -> Iterable[Demand]:
    """
    S.PUT: the schedule, and the queue that it puts to, which stands behind a trigger of several
    words.
    """
    _, used = parse(
        [word.decode("utf-8", "backslashreplace") for word in request[2 : 2 + TRIGGER_WORDS_MAX]]
    )
    yield ("schedule",), name_of(request[1])
    if len(request) > 2 + used:
        yield ("put",), name_of(request[2 + used])


def _client(request: Request) -> Iterable[Demand]:
    return [(STEER, None)] if len(request) > 1 and request[1].upper() == b"LIST" else ()


DEMANDS: dict[str, Demands] = {
    "Q.PUT": on(("put",), 1),
    "Q.WAIT": on(("put", "admin"), 1),
    "Q.TAKE": _take,
    **dict.fromkeys(("Q.ACK", "Q.RELEASE", "Q.FAIL", "Q.TOUCH", "Q.BURY"), on(("take",), 1)),
    "Q.PEEK": on(LOOK_INTO, 1),
    **dict.fromkeys(("Q.UPDATE", "Q.DELETE"), _leased),
    **dict.fromkeys(("Q.KICK", "Q.PAUSE", "Q.RESUME", "Q.PURGE", "Q.RELEASEALL"), on(STEER, 1)),
    **dict.fromkeys(("Q.LINK", "Q.UNLINK"), on(STEER, 1, 2)),
    "Q.MOVE": _move,
    "Q.CONFIG": _config,
    "Q.CHECK": _check,
    "Q.STATS": _stats,
    "Q.LIST": nothing,
    **dict.fromkeys(("T.GET", "T.MGET"), every(*READ)),
    **dict.fromkeys(("T.LIST", "T.PEEK", "T.STATS", "T.WHY"), every(*READ, *WRITE, *ADMIN)),
    "T.PROVIDER": every(*ADMIN),
    **dict.fromkeys(("T.PUT", "T.REFRESH", "T.DELETE", "T.IMPORT"), every(*WRITE)),
    **dict.fromkeys(("T.EXPORT", "T.ANSWERS"), every(*EXPORT)),
    "V.STATUS": every(*READ, *WRITE, *STEER),
    "V.ROTATE": every(*STEER),
    **dict.fromkeys(("L.ACQUIRE", "L.RENEW", "L.RELEASE", "L.PEEK"), on(("lock",), 1)),
    "L.LIST": nothing,
    "S.PUT": _schedule,
    **dict.fromkeys(("S.DELETE", "S.PAUSE", "S.RESUME"), on(("schedule",), 1)),
    "S.LIST": nothing,
    "R.STATUS": nothing,
    **dict.fromkeys(("R.TRANSFER", "R.JOIN", "R.LEAVE", "R.BACKUP"), every(*STEER)),
    "CLIENT": _client,
}
ROUTES: dict[tuple[str, str], str] = {
    ("GET", "/metrics"): "Q.LIST",
    ("GET", "/v1/status"): "R.STATUS",
    ("GET", "/v1/tokens"): "T.LIST",
    ("GET", "/v1/accounts/{provider}/{account}"): "T.PEEK",
    ("GET", "/v1/accounts/{provider}/{account}/why"): "T.WHY",
    ("GET", "/v1/answers/{provider}/{account}"): "T.ANSWERS",
    ("GET", "/v1/providers"): "T.STATS",
    ("GET", "/v1/providers/{provider}/why"): "T.WHY",
    ("POST", "/v1/providers/{provider}/release"): "T.PROVIDER",
    ("POST", "/v1/providers/{provider}/probe"): "T.PROVIDER",
    ("POST", "/v1/providers/{provider}/quarantine"): "T.PROVIDER",
    ("GET", "/v1/events"): "T.LIST",
    ("GET", "/v1/tokens/{provider}/{account}"): "T.GET",
    ("POST", "/v1/tokens:read"): "T.MGET",
    ("PUT", "/v1/tokens/{provider}/{account}"): "T.PUT",
    ("DELETE", "/v1/tokens/{provider}/{account}"): "T.DELETE",
    ("POST", "/v1/tokens/{provider}/{account}/refresh"): "T.REFRESH",
    ("GET", "/v1/schedules"): "S.LIST",
    ("GET", "/v1/schedules/{name}"): "S.PAUSE",
    ("PUT", "/v1/schedules/{name}"): "S.PAUSE",  # and ``put`` for the queue, which the body names
    ("DELETE", "/v1/schedules/{name}"): "S.DELETE",
    ("POST", "/v1/schedules/{name}/pause"): "S.PAUSE",
    ("POST", "/v1/schedules/{name}/resume"): "S.RESUME",
}
"""The verb whose rights a route needs, of the name in its path or of none."""
OWN = frozenset(
    "PING ECHO HELLO AUTH QUIT RESET SELECT INFO TIME COMMAND MULTI EXEC DISCARD SESSION".split()  # noqa: SIM905  # a list of verbs
)
"""A connection's own verbs: they need no right."""


def demands_of(verb: str) -> Demands | None:
    """What ``verb`` demands; None: nothing, whatever its arguments."""
    if verb in OWN:
        return None
    return DEMANDS.get(verb, every(*STEER))


def lacking(rights: Rights, demands: Iterable[Demand]) -> str:
    """The first right that is missing, as it would be written; empty: none."""
    for words, name in demands:
        if name is None:
            if not any(rights.allow_every(word) for word in words):
                return " or ".join(words)
        elif not any(rights.allow(word, name) for word in words):
            return " or ".join(f"{word}:{name[:200]}" for word in words)
    return ""


def lacking_for(rights: Rights, verb: str, request: Any = ()) -> str:
    """Likewise, of a verb with its request."""
    demands = None if rights.whole else demands_of(verb)
    return lacking(rights, demands(request)) if demands else ""
