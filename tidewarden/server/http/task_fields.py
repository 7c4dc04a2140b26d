"""Declares the fields of tasks in bodies and answers, with what each may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidewarden.queue.task import (
    COUNT_MAX,
    ID_MAX,
    LANE_MAX,
    LEASE_MAX_MS,
    LEASE_NUMBER_MAX,
    PRIORITY_MAX,
    TIME_MAX_MS,
    Changes,
    Taken,
    TaskSpec,
    traceparent,
)

from .payloads import bytes_of, readable, text_or_base64

Ms: TypeAlias = Annotated[
    int, Meta(ge=0, le=TIME_MAX_MS // 2, description="Milliseconds from now.", examples=[60_000])
]
UnixMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=0, le=TIME_MAX_MS, description="Unix time in milliseconds.", examples=[1_795_258_800_000]
    ),
]
WaitMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=TIME_MAX_MS // 2,
        description="How long the answer is waited for, in milliseconds; at most limits.wait_ms.",
        examples=[20_000],
    ),
]
LeaseMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=LEASE_MAX_MS,
        description="How long the lease runs, in milliseconds; 0: as long as the task's, else the"
        " queue's.",
        examples=[30_000],
    ),
]
LeaseNumber: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=LEASE_NUMBER_MAX,
        description="The number of the lease, as take answered it.",
        examples=[68_719_476_737],
    ),
]
TaskId: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_MAX,
        description="An id of 1 to 200 bytes without white space or control characters.",
        examples=["order-42"],
    ),
]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX, description="How many at most.")]
MaxStaleMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=TIME_MAX_MS // 2,
        description="The answer may be so old, and then come from the node's own copy.",
    ),
]
StaleMs: TypeAlias = Annotated[
    int,
    Meta(
        description="No majority of the nodes is in reach, and the node's own copy answers, which"
        " lacked nothing so long ago; -1: when is not known.",
        examples=[4200],
    ),
]
Payload: TypeAlias = Annotated[str, Meta(description="The payload as text.")]
PayloadBase64: TypeAlias = Annotated[bytes, Meta(description="The payload as base64.")]
PayloadJson: TypeAlias = Annotated[
    msgspec.Raw, Meta(description="Any JSON value; the payload is its compact text.")
]
IfExists: TypeAlias = Annotated[
    Literal["keep", "fail", "replace"],
    Meta(description="What becomes of a task that has the id already."),
]


Traceparent = Annotated[
    str,
    Meta(
        pattern="^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?$",
        description="W3C trace context of the put, which the takers of the task get.",
        examples=["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
    ),
]


class TaskOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Describes a task to put, without its payload."""

    id: TaskId | UnsetType = UNSET
    delay_ms: Ms | UnsetType = UNSET
    at_ms: UnixMs | UnsetType = UNSET
    deadline_ms: UnixMs | UnsetType = UNSET
    within_ms: Ms | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 50
    lease_ms: LeaseMs = 0
    attempts: Annotated[int, Meta(ge=0, le=65_535)] = 0
    backoff_ms: Annotated[int, Meta(ge=0, le=LEASE_MAX_MS)] = 0
    ttl_ms: Ms = 0
    lane: Annotated[str, Meta(min_length=1, max_length=LANE_MAX)] | UnsetType = UNSET
    if_exists: IfExists = "keep"
    wait_ms: WaitMs = 0
    traceparent: Traceparent = ""

    def spec(self, payload: bytes) -> TaskSpec:
        """Return the task with this payload."""
        return TaskSpec(
            payload,
            _or(self.id, ""),
            _or(self.delay_ms, None),
            _or(self.at_ms, None),
            _or(self.deadline_ms, None),
            _or(self.within_ms, None),
            self.priority,
            self.lease_ms,
            self.attempts,
            self.backoff_ms,
            self.if_exists,
            self.ttl_ms,
            _or(self.lane, None),
            self.traceparent,
        )


class PutTask(TaskOptions, forbid_unknown_fields=True, kw_only=True):
    """Describes a task to put, with its payload in one of three forms; none: it is empty."""

    payload: Payload | UnsetType = UNSET
    payload_base64: PayloadBase64 | UnsetType = UNSET
    payload_json: PayloadJson | UnsetType = UNSET

    def task(self) -> TaskSpec:
        """Return the task. Raises: BadArg: it has two payloads."""
        data = bytes_of("payload", self.payload, self.payload_base64, self.payload_json)
        return self.spec(data or b"")


class ChangeTask(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says what changes of a task; what is absent stays."""

    payload: Payload | UnsetType = UNSET
    payload_base64: PayloadBase64 | UnsetType = UNSET
    payload_json: PayloadJson | UnsetType = UNSET
    delay_ms: Ms | UnsetType = UNSET
    at_ms: UnixMs | UnsetType = UNSET
    deadline_ms: UnixMs | UnsetType = UNSET
    within_ms: Ms | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] | UnsetType = UNSET

    def changes(self, lease: int) -> Changes:
        """Return the changes as the queue takes them. Raises: BadArg: there are two payloads."""
        return Changes(
            bytes_of("payload", self.payload, self.payload_base64, self.payload_json),
            _or(self.delay_ms, None),
            _or(self.at_ms, None),
            _or(self.deadline_ms, None),
            _or(self.within_ms, None),
            _or(self.priority, None),
            lease,
        )


class TakenTask(msgspec.Struct, kw_only=True):
    """Shows a task under a lease."""

    queue: str
    id: str
    lease: LeaseNumber
    payload: Payload | UnsetType = UNSET
    payload_base64: PayloadBase64 | UnsetType = UNSET
    attempt: int
    deadline_ms: UnixMs
    lease_end_ms: UnixMs
    traceparent: Traceparent | UnsetType = UNSET


def taken(task: Taken) -> TakenTask:
    """Return a task that was taken as an answer has it."""
    text, base64 = text_or_base64(task.payload)
    return TakenTask(
        queue=task.queue,
        id=task.id,
        lease=task.lease,
        payload=text,
        payload_base64=base64,
        attempt=task.attempt,
        deadline_ms=task.deadline_ms,
        lease_end_ms=task.lease_end_ms,
        traceparent=traceparent(task.trace) if task.trace else UNSET,
    )


class PastTry(msgspec.Struct, kw_only=True):
    """Says how a lease on the task ended badly."""

    at_ms: UnixMs
    how: str
    attempt: int
    reason: str


class SeenTask(msgspec.Struct, kw_only=True):
    """Shows a task as it lies, without taking it."""

    queue: str
    id: str
    state: Literal["delayed", "ready", "leased", "buried", "waiting", "lost"]
    payload: Payload | UnsetType = UNSET
    payload_base64: PayloadBase64 | UnsetType = UNSET
    priority: int
    due_ms: int
    deadline_ms: int
    attempts: int
    losses: int
    lease: int
    reason: str
    lease_ms: int
    attempts_max: int
    backoff_ms: int
    expires_ms: int
    lane: str
    node: str
    session: str | UnsetType = UNSET
    lease_end_ms: int | UnsetType = UNSET
    buried_ms: int | UnsetType = UNSET
    next_ms: int | UnsetType = UNSET
    traceparent: Traceparent | UnsetType = UNSET
    history: list[PastTry]
    stale_ms: StaleMs | UnsetType = UNSET


def seen(found: dict[str, Any], *, payload: bool = True) -> SeenTask:
    """Return a task of ``QueueAdmin.peek`` as an answer has it, with its ``payload`` or without."""
    text, base64 = text_or_base64(found["payload"]) if payload else (UNSET, UNSET)
    rest: dict[str, Any] = {
        name: readable(value) if isinstance(value, str) else value
        for name, value in found.items()
        if name not in ("payload", "history")
    }
    history = [
        PastTry(
            at_ms=one["at_ms"],
            how=one["how"],
            attempt=one["attempt"],
            reason=readable(one["reason"]),
        )
        for one in found["history"]
    ]
    return SeenTask(payload=text, payload_base64=base64, history=history, **rest)


def _or(value: Any, absent: Any) -> Any:
    return absent if value is UNSET else value
