"""
Celery on Redis with late acknowledgement, so that a task survives its worker.

Otherwise as it comes (a process a core).
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks.peers.runs import URL, ran

app = Celery("bench", broker=os.environ[URL])
app.conf.update(
    task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True
)


@app.task(name="run")
def run(number: int, due_s: float, hold_s: float, payload: str) -> None:
    ran(number, due_s, hold_s)


def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    run.apply_async(arguments, countdown=delay_s or None)


def work() -> None:
    app.worker_main(["worker", "--loglevel", "ERROR"])
