"""RQ: its usual worker, a fork a job, with the scheduler in it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from redis import Redis
from rq import Queue, Worker

from benchmarks.peers.runs import URL, ran

connection = Redis.from_url(os.environ[URL])
queue = Queue("bench", connection=connection)


def run(number: int, due_s: float, hold_s: float, payload: str) -> None:
    ran(number, due_s, hold_s)


def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    if delay_s:
        queue.enqueue_in(timedelta(seconds=delay_s), run, *arguments, result_ttl=0)
    else:
        queue.enqueue(run, *arguments, result_ttl=0)


def work() -> None:
    Worker([queue], connection=connection).work(with_scheduler=True, logging_level="ERROR")
