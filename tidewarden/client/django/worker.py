"""Makes the worker that runs the tasks of a backend."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import socket
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone

from tidewarden.client.blocking import Task as Held
from tidewarden.client.worker import GRACE_S, Worker
from tidewarden.errors import NotFound

from .backend import TidewardenBackend, error_of
from .framework import TaskContext, TaskResultStatus, task_backends, task_finished, task_started
from .message import Message, moment, unix_ms

log = logging.getLogger("tidewarden.worker")

KEPT_BYTES = 65_536
"""Longer arguments are not told again once a task is done."""


def django_worker(
    alias: str = "default", *, concurrency: int = 10, grace_s: float = GRACE_S, name: str = ""
) -> Worker:
    """
    Return a worker for the queues of a backend, to be run by ``tidewarden worker``.

    ``django.setup()`` comes first. Args: ``alias``: of the backend in ``TASKS``; the others: as of
    :class:`Worker`. Raises: ImproperlyConfigured: it is another backend, or names no queues.
    """
    backend = task_backends[alias]
    if not isinstance(backend, TidewardenBackend):
        raise ImproperlyConfigured(f"TASKS[{alias!r}] is no TidewardenBackend")
    if not backend.queues:
        raise ImproperlyConfigured(f"TASKS[{alias!r}] has to name its QUEUES for a worker")
    worker = Worker(concurrency=concurrency, grace_s=grace_s, name=name)
    who = name or f"{socket.gethostname()[:80]}:{os.getpid()}"
    for queue_name in sorted(backend.queues):
        handler = functools.partial(call, alias, who)
        worker.task(backend.queue_of(queue_name), bury_on=(Unfit,))(handler)
    return worker


class Unfit(Exception):
    """A task names nothing that can be called: no retry will help."""


def call(alias: str, who: str, held: Held) -> Any:
    """Call a Django task, and return what the acknowledgement is to say of it."""
    try:
        message = Message.read(held.json())
        task = message.task()
    except (ImportError, TypeError, ValueError) as error:
        raise Unfit(str(error)) from error
    started_ms = unix_ms(timezone.now())
    # Django counts attempts by them; who made the earlier ones is not kept.
    worker_ids = ["unknown"] * (held.attempt - 1) + [who]
    started_at = moment(started_ms)
    known = {
        "started_at": started_at,
        "last_attempted_at": started_at,
        "worker_ids": worker_ids,
    }
    sender = type(task_backends[alias])
    result = message.result(task, held.id, TaskResultStatus.RUNNING, **known)
    close_old_connections()
    try:
        task_started.send(sender=sender, task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        value = task.call(*context, *message.args, **message.kwargs)
        finished_ms = unix_ms(timezone.now())
        told = acknowledgement(message, value, started_ms, finished_ms, worker_ids)
    except Exception as error:
        fail(held, sender, result, error)
        return None
    finally:
        close_old_connections()
    ended = message.result(
        task, held.id, TaskResultStatus.SUCCESSFUL, finished_at=moment(finished_ms), **known
    )
    object.__setattr__(ended, "_return_value", value)
    task_finished.send(sender=sender, task_result=ended)
    return told


def acknowledgement(
    message: Message, value: Any, started_ms: int, finished_ms: int, worker_ids: list[str]
) -> bytes:
    """
    Write what a task's result is to say. Raises: TypeError: JSON cannot say the returned value.
    """
    if len(message.write()) > KEPT_BYTES:
        message = dataclasses.replace(message, args=[], kwargs={})
    told = {
        "message": json.loads(message.write()),
        "started_ms": started_ms,
        "finished_ms": finished_ms,
        "worker_ids": worker_ids,
        "return_value": value,
    }
    return json.dumps(told, separators=(",", ":")).encode()


def fail(held: Held, sender: Any, result: Any, error: Exception) -> None:
    """
    Fail an attempt by the path and the text of its exception; tell Django if it was the last one.

    Raises: NotHeld: another worker has the task by now.
    """
    kind = type(error)
    reason = f"{kind.__module__}.{kind.__qualname__}: {error}"
    held.fail(reason=reason)
    with contextlib.suppress(NotFound):  # somebody deleted it
        if held.client.queue(held.queue).peek(held.id).state == "buried":
            ended = dataclasses.replace(
                result,
                status=TaskResultStatus.FAILED,
                finished_at=timezone.now(),
                errors=[error_of(reason)],
            )
            task_finished.send(sender=sender, task_result=ended)
            return
    log.warning(
        "task %s of %s failed, attempt %d", held.id, held.queue, held.attempt, exc_info=error
    )
