"""Writes a call of a Django task as the payload of one of ours, and reads it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from django.utils import timezone
from django.utils.module_loading import import_string

from .framework import Task, TaskResult


@dataclass(frozen=True, slots=True)
class Message:
    """
    Says which task is to be called, with what, and how it was enqueued.

    ``path``: of the task, as ``shop.tasks.welcome``. ``priority``: as Django has it. Times are unix
    milliseconds; ``run_after_ms`` 0: at once.
    """

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue_name: str
    priority: int
    run_after_ms: int
    enqueued_ms: int

    def __post_init__(self) -> None:
        """Check what has come from a queue. Raises: TypeError."""
        texts = (self.path, self.backend, self.queue_name)
        numbers = (self.priority, self.run_after_ms, self.enqueued_ms)
        good = isinstance(self.args, list) and isinstance(self.kwargs, dict)
        if not (good and all(type(one) is str for one in texts)):
            raise TypeError("is no call of a Django task")
        if not all(type(one) is int for one in numbers):
            raise TypeError("is no call of a Django task")

    @classmethod
    def read(cls, fields: Any) -> Self:
        """Read a payload's JSON. Raises: TypeError: it is none of ours."""
        if not isinstance(fields, Mapping):
            raise TypeError("is no call of a Django task")
        return cls(**fields)

    def write(self) -> bytes:
        """Write the payload."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, separators=(",", ":")).encode()

    def task(self) -> Any:
        """
        Return the task as it was enqueued.

        Raises: ImportError: there is none of that name; TypeError: it is something else.
        """
        found = import_string(self.path)
        if not isinstance(found, Task):
            raise TypeError(f"{self.path} is no Django task")
        return found.using(
            priority=self.priority,
            queue_name=self.queue_name,
            backend=self.backend,
            run_after=moment(self.run_after_ms) if self.run_after_ms else None,
        )

    def result(self, task: Any, result_id: str, status: Any, **more: Any) -> Any:
        """Return the framework's result of this call; ``more`` are fields of it that are known."""
        fields = {
            "enqueued_at": moment(self.enqueued_ms),
            "started_at": None,
            "finished_at": None,
            "last_attempted_at": None,
            "args": self.args,
            "kwargs": self.kwargs,
            "errors": [],
            "worker_ids": [],
        }
        return TaskResult(
            task=task, id=result_id, status=status, backend=self.backend, **(fields | more)
        )


def moment(at_ms: int) -> datetime:
    """Return a time as Django's settings want it: aware with ``USE_TZ``, else local and naive."""
    aware = datetime.fromtimestamp(at_ms / 1000, UTC)
    return aware if timezone.is_aware(timezone.now()) else timezone.make_naive(aware)


def unix_ms(at: datetime) -> int:
    """Return a time in unix milliseconds."""
    aware = at if timezone.is_aware(at) else timezone.make_aware(at)
    return int(aware.timestamp() * 1000)
