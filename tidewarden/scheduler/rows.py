"""A schedule's row, between what was asked for, what lies in the store, and what is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidewarden.errors import BadArg
from tidewarden.queue.task import TaskSpec, check_name

from .trigger import Spec

NAME_MAX = 128  # a task's id, at most 200 bytes, is the name with its tick
STATES = ("active", "stuck", "paused")
UNREADABLE = "its row is of a newer format, or damaged"


class ScheduledTask(msgspec.Struct, frozen=True, kw_only=True):
    """
    Is the task that each tick puts, as fire.lua reads it; ``within_ms`` -1: no deadline of its own.
    """

    priority: int = 50
    delay_ms: int = 0
    within_ms: int = -1
    lease_ms: int = 0
    attempts: int = 0
    backoff_ms: int = 0
    ttl_ms: int = 0
    lane: str = ""


def check_schedule_name(name: str) -> str:
    """Return the name, if a schedule may have it. Raises: BadArg."""
    check_name(name, "schedule", NAME_MAX)
    return name


def task_of(task: TaskSpec, payload_max: int) -> ScheduledTask:
    """Return the row's part of a task. Raises: BadArg: an option that a schedule decides itself."""
    task.check(payload_max)
    refused = {"ID": task.id, "AT": task.at_ms, "DEADLINE": task.deadline_ms}
    for option, value in refused.items():
        if value not in (None, ""):
            raise BadArg(
                f"{option} is not allowed in a schedule, whose ticks decide it; DELAY and WITHIN"
                " count from the tick"
            )
    if task.if_exists != "keep":
        raise BadArg("IFEXISTS is not allowed in a schedule: each tick has an id of its own")
    return ScheduledTask(
        priority=task.priority,
        delay_ms=task.delay_ms or 0,
        within_ms=-1 if task.within_ms is None else task.within_ms,
        lease_ms=task.lease_ms,
        attempts=task.attempts,
        backoff_ms=task.backoff_ms,
        ttl_ms=task.ttl_ms,
        lane=task.lane or "",
    )


def described(spec: Spec) -> dict[str, str | int]:
    """Return a spec as its row keeps it, without the anchor, which lies beside it."""
    match spec.kind:
        case "cron":
            return {"kind": "cron", "expr": spec.expr, "zone": spec.zone, "catchup": spec.catchup}
        case "every":
            return {"kind": "every", "every_ms": spec.every_ms, "catchup": spec.catchup}
        case "at":
            return {"kind": "at", "at_ms": spec.at_ms, "catchup": spec.catchup}


def spec_of(raw: bytes, anchor_ms: int) -> Spec:
    """Return the spec of a row. Raises: BadArg, msgspec.MsgspecError: this node cannot read it."""
    if not raw:
        raise BadArg(UNREADABLE)
    return spec_from(msgspec.msgpack.decode(raw, type=dict[str, Any]), anchor_ms)


def spec_from(fields: Mapping[str, Any], anchor_ms: int) -> Spec:
    """Return the spec that these fields of a row say. Raises: BadArg: this node cannot read it."""
    try:
        match fields["kind"]:
            case "cron":
                return Spec.cron(fields["expr"], fields["zone"], fields["catchup"])
            case "every":
                return Spec.every(fields["every_ms"], fields["catchup"]).anchored(anchor_ms)
            case "at":
                return Spec.at(fields["at_ms"], fields["catchup"])
            case kind:
                raise BadArg(f"this version knows no schedule of kind {kind!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise BadArg(f"the schedule's row does not read: {error!r}") from None


def shown(queue: str, row: Sequence[Any]) -> dict[str, Any]:
    """Describe a schedule as S.LIST shows it, from list.lua's row."""
    known: dict[str, Any]
    name, tick_ms, state, anchor_ms, spec_bytes, task_bytes, head, payload_bytes, run = row
    last = {"last": last_run(run)} if run else {}
    if not spec_bytes:
        known = {"name": name.decode(), "queue": queue, "next_ms": tick_ms, "state": "unreadable"}
        return known | last
    fields = msgspec.msgpack.decode(spec_bytes, type=dict[str, Any])
    known = {"name": name.decode(), "queue": queue, **fields}
    if fields.get("kind") == "every":
        known["anchor_ms"] = anchor_ms
    known["next_ms"] = tick_ms
    known["state"] = STATES[state]
    known.update(msgspec.msgpack.decode(task_bytes, type=dict[str, Any]))
    if known["within_ms"] < 0:
        del known["within_ms"]
    known["payload"] = head
    known["payload_bytes"] = payload_bytes
    return known | last


def last_run(run: Sequence[Any]) -> dict[str, Any]:
    """Describe the latest run of a schedule, from what list.lua says of it."""
    due_ms, put_ms, how, task_id, state, ended_ms, reason, attempts = run
    told: dict[str, Any] = {
        "id": task_id.decode("utf-8", "surrogateescape"),
        "how": how.decode(),
        "due_ms": due_ms,
        "put_ms": put_ms,
        "state": state.decode(),
        "attempts": attempts,
        "reason": reason.decode("utf-8", "replace"),
    }
    return told if ended_ms < 0 else told | {"ended_ms": ended_ms}
