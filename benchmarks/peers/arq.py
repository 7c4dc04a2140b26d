"""arq: one worker, 50 jobs at a time, results not kept."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.worker import Worker

from benchmarks.peers.runs import URL, note

settings = RedisSettings.from_dsn(os.environ[URL])
pool: ArqRedis


async def run(ctx: dict[str, Any], number: int, due_s: float, hold_s: float, payload: str) -> None:
    note(number, due_s)
    if hold_s:
        await asyncio.sleep(hold_s)


async def connect() -> None:
    global pool
    pool = await create_pool(settings)


async def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    await pool.enqueue_job("run", *arguments, _defer_by=delay_s or None)


def work() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker([run], redis_settings=settings, max_jobs=50, keep_result=0).run()
