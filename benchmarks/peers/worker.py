"""
Our own row through the SDK: its ``Worker``, 50 tasks at a time, and its asyncio client as producer.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from benchmarks.peers.runs import URL, note
from tidewarden.client import AsyncClient, AsyncTask, Worker

PACKAGE = "tidewarden"
QUEUE = "bench.worker"

worker = Worker(os.environ[URL], concurrency=50)
client: AsyncClient


@worker.task(QUEUE)
async def run(task: AsyncTask) -> None:
    number, due_s, hold_s, _ = task.json()
    note(number, due_s)
    if hold_s:
        await asyncio.sleep(hold_s)


async def connect() -> None:
    global client
    client = AsyncClient(os.environ[URL])


async def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    await client.queue(QUEUE).put(json.dumps(arguments), delay_ms=int(delay_s * 1000))


def work() -> None:
    worker.run()
