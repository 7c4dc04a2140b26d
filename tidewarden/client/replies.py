"""Turns the answers of nodes into typed Python values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .options import State


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """
    A task as it lies in its queue, looked at and not taken.

    ``state``: delayed, ready, leased or buried. Times are unix ms of the store. ``lease``: the
    latest lease's number, 0 when there was none. ``attempts`` and ``losses``: so far. ``reason``:
    of the latest failure, release or burying. ``fields``: all that the node says, by its names.
    """

    queue: str
    id: str
    state: State
    payload: bytes = field(repr=False)
    priority: int
    due_ms: int
    deadline_ms: int
    attempts: int
    losses: int
    lease: int
    reason: str
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Page:
    """
    Some of a queue's tasks in one state.

    ``cursor`` says where to continue; it is empty when there are no more. A search ``looked`` at so
    many tasks; ``unread`` of them were too long to be read as JSON.
    """

    tasks: list[TaskInfo]
    cursor: str
    looked: int = 0
    unread: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """
    The end of a task.

    ``word``: done, buried, deleted, unknown (there is no such task) or timeout (it has not ended
    yet).

    ``result``: of the ack when it is done, the reason when it is buried.
    """

    word: str
    result: bytes


@dataclass(frozen=True, slots=True)
class Token:
    """
    An access token and its life.

    ``state``: fresh, expiring, late, failing or dead, see the protocol.
    """

    access_token: str = field(repr=False)
    token_type: str
    expires_at_ms: int
    generation: int
    state: str
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What its provider said beside it and the node keeps: ``instance_url``."""
    keep_ms: int = 0
    """How long it may be used without asking again, from the answer on; 0 where nobody asked."""


def plain(value: Any) -> Any:
    """Turn byte strings into text wherever they are UTF-8; a payload stays as it is."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, Mapping):
        return {
            (name := plain(key)): item if name == "payload" else plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def mapped(value: Any) -> dict[str, Any]:
    """Read a map of the wire: a map in RESP3, names and values in turn in RESP2."""
    if isinstance(value, list):
        value = dict(zip(value[::2], value[1::2], strict=True))
    found: dict[str, Any] = plain(value)
    return found


def token(row: Sequence[Any]) -> Token:
    """Read a token of T.GET; members that older or newer nodes leave out or add do no harm."""
    kept: dict[str, Any] = json.loads(row[5]) if len(row) > 5 else {}
    access_token, kind, expires_at_ms, generation, state = plain(list(row[:5]))
    keep_ms = row[6] if len(row) > 6 and isinstance(row[6], int) else 0
    return Token(access_token, kind, expires_at_ms, generation, state, kept, keep_ms)


def task_info(value: Any) -> TaskInfo:
    """Read a task of Q.PEEK."""
    fields = mapped(value)
    return TaskInfo(
        fields["queue"],
        fields["id"],
        fields["state"],
        fields["payload"],
        fields["priority"],
        fields["due_ms"],
        fields["deadline_ms"],
        fields["attempts"],
        fields["losses"],
        fields["lease"],
        fields["reason"],
        fields,
    )
