"""
taskiq on Redis streams, 50 tasks at a time.

Its broker acknowledges, and its scheduler runs beside the worker.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from taskiq import TaskiqScheduler
from taskiq.api import run_receiver_task, run_scheduler_task
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers.runs import URL, note

# from the beginning, not from the worker's start
broker = RedisStreamBroker(os.environ[URL], consumer_id="0")
source = ListRedisScheduleSource(os.environ[URL])


@broker.task(task_name="run")
async def run(number: int, due_s: float, hold_s: float, payload: str) -> None:
    note(number, due_s)
    if hold_s:
        await asyncio.sleep(hold_s)


async def connect() -> None:
    await broker.startup()
    await source.startup()


async def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    if delay_s:
        await run.schedule_by_time(
            source, datetime.now(UTC) + timedelta(seconds=delay_s), *arguments
        )
    else:
        await run.kiq(*arguments)


async def _work() -> None:
    scheduler = TaskiqScheduler(broker, [source])
    await asyncio.gather(
        run_receiver_task(broker, max_async_tasks=50, run_startup=True),
        # else it looks once a minute
        run_scheduler_task(scheduler, run_startup=True, interval=timedelta(seconds=1)),
    )


def work() -> None:
    asyncio.run(_work())
