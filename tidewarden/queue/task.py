"""
Describes tasks on their way in and out, and checks their values.

They are decided here once, for every door.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from tidewarden.errors import BadArg, Field, TooBig

TIME_MAX_MS = 2**42 - 1  # every time on the wire, unix milliseconds
LEASE_MAX_MS = 30 * 86_400_000
LEASE_NUMBER_MAX = 2**53 - 1  # the scripts' numbers are doubles
PRIORITY_MAX = 99
COUNT_MAX = 1000
NAME_MAX = 200
ID_MAX = 200
REASON_MAX = 240
LANE_MAX = 200
UNBOUND_VERSION = 8  # of the uuids that leases of no connection and no session stand under
STATES = ("delayed", "ready", "leased", "buried", "waiting")

Mode: TypeAlias = Literal["keep", "fail", "replace"]
UNREACHABLE = (".", "..")
"""The names that no path of HTTP reaches, however they are written there."""
NAME_PATTERN = "[A-Za-z0-9_.:/-]+"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NAME = re.compile(NAME_PATTERN)
_ALPHABET = "0123456789abcdefghijklmnopqrstuv"  # base 32 in an order that sorts as the numbers do


def check_name(name: str, what: str = "queue", most: int = NAME_MAX) -> str:
    """
    Return the name, if a queue may have it.

    Raises: BadArg: empty, longer than 200 bytes (``most``), with a character outside
    ``A-Za-z0-9_.:/-``, or of :data:`UNREACHABLE`.
    """
    check_reachable(name, f"{what} name")
    if not name or len(name) > most or _NAME.fullmatch(name) is None:
        raise BadArg(
            f"the {what} name {name[:60]!r} is not 1 to {most} characters of A-Z a-z 0-9 _ . : / -"
        )
    return name


def check_reachable(name: str, what: str) -> None:
    """Raise BadArg, which calls it ``what``, if the name is of :data:`UNREACHABLE`."""
    if name in UNREACHABLE:
        raise BadArg(
            f"the {what} {name!r} cannot be: HTTP clients take . and .. out of a path before they"
            " send it; allowed: any other name, also one with dots in it"
        )


def check_id(task_id: str, what: str = "id") -> str:
    """
    Return the id, if a task may have it; messages call it ``what``.

    Raises: BadArg: empty, longer than 200 bytes, no UTF-8 text, with white space or a control
    character, or of :data:`UNREACHABLE`.
    """
    check_reachable(task_id, what)
    if (
        not task_id
        or len(task_id.encode("utf-8", "replace")) > ID_MAX
        or any(c <= " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in task_id)
    ):
        raise BadArg(
            f"the {what} {task_id[:60]!r} is not 1 to {ID_MAX} bytes without white space or control"
            " characters"
        )
    return task_id


def check_state(state: str) -> str:
    """Return the state, if a task can be in it. Raises: BadArg."""
    if state not in STATES:
        raise BadArg(Field("state"), f" is {state[:60]!r}; allowed are {', '.join(STATES)}")
    return state


def check_range(value: int, field: str, low: int, high: int, word: str = "") -> int:
    """
    Return the value, if it lies between ``low`` and ``high``.

    Raises: BadArg: it does not; names the field (by ``word``, see :class:`Field`), the value and
    what is allowed.
    """
    if not low <= value <= high:
        raise BadArg(Field(field, word), f" is {value}; allowed is {low} to {high}")
    return value


def check_payload(data: bytes, what: str, bytes_max: int) -> bytes:
    """
    Return the bytes, if they are not too many.

    Raises: TooBig.
    """
    if len(data) > bytes_max:
        raise TooBig(f"{what} has {len(data)} bytes; allowed are {bytes_max}")
    return data


def check_lane(lane: str) -> str:
    """
    Return the lane, if a task may have it.

    Raises: BadArg: empty, longer than 200 bytes, or no UTF-8 text.
    """
    if not 1 <= len(lane.encode("utf-8", "replace")) <= LANE_MAX or any(
        "\ud800" <= c <= "\udfff" for c in lane
    ):
        allowed = f"allowed are 1 to {LANE_MAX} bytes of UTF-8 text"
        raise BadArg(Field("lane"), f" is {lane[:60]!r}; {allowed}")
    return lane


def trace_digits(traceparent: str) -> str:
    """
    Return the trace id, span id and flags of a traceparent, joined (W3C Trace Context, 3.2).

    Raises: BadArg: it is none of version 00, or one of its ids is zero.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        raise BadArg(
            Field("traceparent", "TRACE"),
            f" is {traceparent[:60]!r}; allowed is a W3C traceparent: 00, 32 digits, 16 digits"
            " and 2 digits, hexadecimal in lower case, with - between them",
        )
    return found[1] + found[2] + found[3]


def traceparent(trace: bytes) -> str:
    """Write the traceparent of the 25 bytes that a task's record has of it."""
    digits = trace.hex()
    return f"00-{digits[:32]}-{digits[32:48]}-{digits[48:]}"


@dataclass(slots=True)
class TaskSpec:
    """
    Describes a task to put.

    At most one of ``delay_ms`` and ``at_ms``, and of ``deadline_ms`` and ``within_ms``.

    Times are the store's: ``delay_ms`` and ``within_ms`` count from the put; 0 means "the queue's"
    for ``lease_ms`` and "no limit", "no backoff", "for ever" for ``attempts``, ``backoff_ms`` and
    ``ttl_ms`` (how long after the put it may still be taken; then it is buried). Without an id we
    make one, which sorts by time. ``lane``: the tasks of one lane run as few at a time and as
    slowly as the queue's ``lane_limit`` and ``lane_rate`` say, lanes in turn; None: no lane.
    ``trace``: the W3C traceparent of the put, which its takers get; empty: none.
    """

    payload: bytes = b""
    id: str = ""
    delay_ms: int | None = None
    at_ms: int | None = None
    deadline_ms: int | None = None
    within_ms: int | None = None
    priority: int = 50
    lease_ms: int = 0
    attempts: int = 0
    backoff_ms: int = 0
    if_exists: Mode = "keep"
    ttl_ms: int = 0
    lane: str | None = None
    trace: str = ""

    def check(self, payload_max: int) -> None:
        """
        Check every field.

        Raises: BadArg, TooBig: the first field that is not allowed, with the allowed values.
        """
        check_payload(self.payload, "the payload", payload_max)
        if self.id:
            check_id(self.id)
        if self.delay_ms is not None:
            if self.at_ms is not None:
                raise BadArg(Field("delay_ms"), " and ", Field("at_ms"), " exclude each other")
            check_range(self.delay_ms, "delay_ms", 0, TIME_MAX_MS // 2)
        if self.at_ms is not None:
            check_range(self.at_ms, "at_ms", 0, TIME_MAX_MS)
        if self.deadline_ms is not None:
            if self.within_ms is not None:
                raise BadArg(
                    Field("deadline_ms"), " and ", Field("within_ms"), " exclude each other"
                )
            check_range(self.deadline_ms, "deadline_ms", 0, TIME_MAX_MS)
        if self.within_ms is not None:
            check_range(self.within_ms, "within_ms", 0, TIME_MAX_MS // 2)
        check_range(self.priority, "priority", 0, PRIORITY_MAX)
        check_range(self.lease_ms, "lease_ms", 0, LEASE_MAX_MS)
        check_range(self.attempts, "attempts", 0, 65_535)
        check_range(self.backoff_ms, "backoff_ms", 0, LEASE_MAX_MS)
        check_range(self.ttl_ms, "ttl_ms", 0, TIME_MAX_MS // 2)
        if 0 < self.ttl_ms <= (self.delay_ms or 0):
            raise BadArg(
                Field("ttl_ms"),
                f" is {self.ttl_ms} and ",
                Field("delay_ms"),
                f" {self.delay_ms}; both count from the put, so nobody could take it",
            )
        if self.lane is not None:
            check_lane(self.lane)
        if self.trace:
            trace_digits(self.trace)
        if self.if_exists not in ("keep", "fail", "replace"):
            allowed = f" is {self.if_exists!r}; allowed are keep, fail, replace"
            raise BadArg(Field("if_exists", "IFEXISTS"), allowed)

    def options(self, own: bool, waits: bool = False) -> str:
        """
        Write the options that put.lua reads.

        They are "" for a task of defaults under an id of ours. ``waits``: for room.
        """
        if (
            own
            and not waits
            and self.delay_ms is None
            and self.at_ms is None
            and self.deadline_ms is None
            and self.within_ms is None
            and self.priority == 50
            and not (self.lease_ms or self.attempts or self.backoff_ms or self.ttl_ms)
            and not (self.lane or self.trace)
        ):
            return ""
        due, limit = _given(self.delay_ms, self.at_ms), _given(self.deadline_ms, self.within_ms)
        return (
            f"{due[0]} {due[1]} {limit[0]} {limit[1]} {self.priority} {self.lease_ms}"
            f" {self.attempts} {self.backoff_ms} "
            f"{int(own)}"
            f" {self.if_exists}{f' {self.ttl_ms}' if self.ttl_ms else ''}"
            f"{' ' * (waits and not self.ttl_ms)}{'w' * waits}"
            f"{'#' + trace_digits(self.trace) if self.trace else ''}"
            f"{f'@{self.lane}' if self.lane else ''}"
        )


def _given(first: int | None, second: int | None) -> tuple[int, int]:
    """Return which of two rivals is given, 1 or 2, and its value; 0 and 0: neither is."""
    if first is not None:
        return 1, first
    return (0, 0) if second is None else (2, second)


class Taken(msgspec.Struct):
    """
    Holds a task under a lease.

    ``lease`` is the fencing number: it only grows, hand it to what the task changes. ``due_ms``:
    since when it could have been taken; 0: that is not known, for it was tried before.
    """

    queue: str
    id: str
    lease: int
    payload: bytes
    attempt: int
    deadline_ms: int
    lease_end_ms: int
    due_ms: int = 0
    trace: bytes = b""
    """The trace context of the task's put, see :func:`traceparent`; empty: none."""


@dataclass(slots=True)
class Changes:
    """
    Holds what ``Q.UPDATE`` changes; ``None`` leaves a field as it is.

    ``lease`` is needed for a leased task.
    """

    payload: bytes | None = None
    delay_ms: int | None = None
    at_ms: int | None = None
    deadline_ms: int | None = None
    within_ms: int | None = None
    priority: int | None = None
    lease: int = 0

    def arguments(self, task_id: str, payload_max: int) -> list[str | bytes | int]:
        """
        Write the arguments that update.lua reads.

        Raises: BadArg, TooBig: the first field that is not allowed.
        """
        TaskSpec(
            payload=self.payload or b"",
            id=task_id,
            delay_ms=self.delay_ms,
            at_ms=self.at_ms,
            deadline_ms=self.deadline_ms,
            within_ms=self.within_ms,
            priority=50 if self.priority is None else self.priority,
        ).check(payload_max)
        due, limit = _given(self.delay_ms, self.at_ms), _given(self.deadline_ms, self.within_ms)
        return [
            task_id,
            int(self.payload is not None),
            self.payload or b"",
            *due,
            *limit,
            -1 if self.priority is None else self.priority,
            self.lease,
        ]


FIELDS = (
    "id",
    "state",
    "payload",
    "priority",
    "due_ms",
    "deadline_ms",
    "attempts",
    "losses",
    "lease",
    "at_ms",
    "holder",
    "reason",
    "lease_ms",
    "attempts_max",
    "backoff_ms",
    "expires_ms",
    "lane",
    "trace",
    "history",
)


def described(queue: str, row: list[Any]) -> dict[str, Any]:
    """
    Describe a task as ``Q.PEEK`` shows it, from peek.lua's row.

    ``at_ms``: lease end, time of burying, or the index's score.
    """
    shown: dict[str, Any] = {"queue": queue}
    for name, value in zip(FIELDS, row, strict=True):
        if name in ("id", "state", "holder", "reason", "lane"):
            shown[name] = value.decode("utf-8", "surrogateescape")
        elif name == "history":
            shown[name] = [
                {
                    "at_ms": ms,
                    "how": how.decode(),
                    "attempt": attempt,
                    "reason": reason.decode("utf-8", "replace"),
                }
                for ms, how, attempt, reason in value
            ]
        elif name == "trace":
            if value:
                shown["traceparent"] = traceparent(value)
        else:
            shown[name] = value
    holder = shown.pop("holder")
    shown["node"] = holder.rpartition(".")[0]
    if holder.startswith("~") and (uuid := UUID(holder[1:])).version != UNBOUND_VERSION:
        shown["session"] = str(uuid)
    at_ms = shown.pop("at_ms")
    if shown["state"] == "leased":
        shown["lease_end_ms"] = at_ms
    elif shown["state"] == "buried":
        shown["buried_ms"] = at_ms
    elif shown["state"] == "delayed":
        shown["next_ms"] = at_ms
    return shown


def lease_of(row: list[Any]) -> dict[str, Any]:
    """
    Describe a lease, from peek.lua's row.

    ``holder``: the process that took the task, as ``node.boot``, empty where it is held under a
    ``session``, which is empty otherwise.
    """
    named = dict(zip(FIELDS, row, strict=True))
    holder = named["holder"].decode("utf-8", "surrogateescape")
    of_session = holder.startswith("~")
    return {
        "id": named["id"].decode("utf-8", "surrogateescape"),
        "lease": named["lease"],
        "lease_end_ms": named["at_ms"],
        "holder": "" if of_session else holder,
        "session": str(UUID(holder[1:])) if of_session else "",
    }


class IdMaker:
    """
    Makes ids of 20 characters that no other process makes.

    They sort by time and then by sequence.
    """

    def __init__(self) -> None:
        self._tag = _base32(secrets.randbits(35), 7)
        self._last_ms = 0
        self._sequence = 0
        self._head = ""

    def make(self, now_ms: int) -> str:
        """Make a new id; ``now_ms`` (unix) may step back, the ids do not."""
        if now_ms > self._last_ms:
            self._last_ms, self._sequence = now_ms, 0
            self._head = _base32(now_ms, 9)
        else:
            self._sequence += 1
            if self._sequence >= 2**20:
                self._last_ms, self._sequence = self._last_ms + 1, 0
                self._head = _base32(self._last_ms, 9)
        return self._head + _QUADS[self._sequence >> 10] + _QUADS[self._sequence & 1023] + self._tag


def _base32(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


_QUADS = [_base32(number, 2) for number in range(1024)]
