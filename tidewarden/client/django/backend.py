"""Enqueues the tasks of Django's Tasks framework, and tells what became of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import secrets
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from tidewarden.client.blocking import Client
from tidewarden.client.replies import TaskInfo
from tidewarden.errors import BadArg, NotFound

from .framework import (
    BaseTaskBackend,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from .message import Message, moment, unix_ms

OPTIONS = {
    "prefix": "django.",
    "attempts": 1,
    "backoff_ms": None,
    "lease_ms": None,
    "on_commit": True,
    "database": "default",
}
"""
What ``OPTIONS`` may say, with the defaults.

``prefix``: what our queue's name has before Django's. ``attempts``, ``backoff_ms``, ``lease_ms``:
as of a put. ``on_commit``: a task that is enqueued within a transaction of ``database`` is put when
that is committed, and never if it is rolled back.
"""
STATES = {"buried": TaskResultStatus.FAILED, "leased": TaskResultStatus.RUNNING}
FAILURE = re.compile(r"([A-Za-z_][\w.]*\.[A-Za-z_]\w*): ")
"""How the worker begins the reason of a failure: with the exception's path."""


@functools.cache
def client_of(pid: int) -> Client:
    """Return the client of this process, given by its id: none survives a fork."""
    return Client(name=f"django:{pid}")


def our_priority(priority: int) -> int:
    """Return our priority (0 to 99, lower first) for Django's (-100 to 100, higher first)."""
    return round((100 - priority) * 99 / 200)


class TidewardenBackend(BaseTaskBackend):
    """
    Puts each enqueued task into the queue ``django.NAME`` of a cluster.

    ``TASKS = {"default": {"BACKEND": "tidewarden.client.django.TidewardenBackend"}}``. The cluster
    is the one that ``Client()`` finds: ``TIDEWARDEN_URL``, else that of the working directory.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    """For as long as the queue remembers what was done, its ``dedup_ms``; what failed stays."""
    supports_priority = True
    """By our hundred priorities: two neighbours of Django's two hundred and one may be one."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read the settings. Raises: ImproperlyConfigured: there is no such option."""
        super().__init__(alias, params)
        if unknown := sorted(set(self.options) - set(OPTIONS)):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: unknown option {unknown[0]!r}; allowed: {', '.join(OPTIONS)}"
            )
        self.settings: dict[str, Any] = OPTIONS | self.options

    @property
    def client(self) -> Client:
        """Return the client of the cluster, one for each process."""
        return client_of(os.getpid())

    def queue_of(self, queue_name: str) -> str:
        """Return the name of our queue for one of Django's."""
        return f"{self.settings['prefix']}{queue_name}"

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """
        Put a task, at once or at the commit of the transaction around it, and return its result.

        Raises: the framework's error for a task that it does not allow; TypeError: an argument that
        JSON cannot say; the errors of a put, Unreachable and Full among them. Those of a put at a
        commit are raised by the end of the transaction, which is committed then.
        """
        self.validate_task(task)
        now_ms = unix_ms(timezone.now())
        queue = self.queue_of(task.queue_name)
        message = Message(
            path=task.module_path,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            queue_name=task.queue_name,
            priority=task.priority,
            run_after_ms=unix_ms(task.run_after) if task.run_after else 0,
            enqueued_ms=now_ms,
        )
        result_id = f"{queue}.{now_ms:x}{secrets.token_hex(6)}"
        result = message.result(task, result_id, TaskResultStatus.READY)
        # What JSON cannot say is told here, not at the commit.
        payload = dataclasses.replace(message, args=result.args, kwargs=result.kwargs).write()
        put = functools.partial(self._put, queue, payload, result, message.run_after_ms)
        database = self.settings["database"]
        if self.settings["on_commit"] and connections[database].in_atomic_block:
            transaction.on_commit(put, using=database)
        else:
            put()
        return result

    def _put(self, queue: str, payload: bytes, result: Any, run_after_ms: int) -> None:
        options: dict[str, Any] = {
            "priority": our_priority(result.task.priority),
            "at_ms": run_after_ms or None,
            **{name: self.settings[name] for name in ("attempts", "backoff_ms", "lease_ms")},
        }
        self.client.queue(queue).put(payload, id=result.id, **options)
        task_enqueued.send(sender=type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """
        Return what became of a task.

        Raises: TaskResultDoesNotExist: there is none of that id, it was deleted, it was done longer
        ago than its queue remembers, or its transaction has not been committed.
        """
        name = result_id.rpartition(".")[0]
        queue = self.client.queue(name)
        try:
            if not name.startswith(self.settings["prefix"]):
                raise NotFound(f"{result_id} is no id of this backend")
            try:
                return self._there(queue.peek(result_id))
            except NotFound:
                ending = queue.wait(result_id, timeout_ms=0)
            return self._done(result_id, json.loads(ending.result))
        except (BadArg, NotFound, ImportError, LookupError, TypeError, ValueError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def _there(self, info: TaskInfo) -> Any:
        """Return the result of a task that lies in its queue."""
        message = Message.read(json.loads(info.payload))
        reasons = [one["reason"] for one in info.fields.get("history", ()) if one["how"] == "fail"]
        return message.result(
            message.task(),
            info.id,
            STATES.get(info.state, TaskResultStatus.READY),
            errors=[error_of(reason) for reason in reasons],
            finished_at=moment(info.fields["buried_ms"]) if info.state == "buried" else None,
            worker_ids=["unknown"] * info.attempts,
        )

    @staticmethod
    def _done(result_id: str, told: dict[str, Any]) -> Any:
        """Return the result of a task that was done, of what the worker's ack said."""
        message = Message.read(told["message"])
        started_at = moment(told["started_ms"])
        result = message.result(
            message.task(),
            result_id,
            TaskResultStatus.SUCCESSFUL,
            started_at=started_at,
            last_attempted_at=started_at,
            finished_at=moment(told["finished_ms"]),
            worker_ids=told["worker_ids"],
        )
        object.__setattr__(result, "_return_value", told["return_value"])
        return result


def error_of(reason: str) -> Any:
    """Return a failure as the framework has it; of its traceback the queue keeps the last line."""
    found = FAILURE.match(reason)
    path = found[1] if found else "builtins.RuntimeError"
    return TaskError(exception_class_path=path, traceback=reason)
