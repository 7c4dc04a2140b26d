"""SAQ: one worker, 50 jobs at a time."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.runs import URL, note

queue = Queue.from_url(os.environ[URL])


async def run(
    ctx: dict[str, Any], *, number: int, due_s: float, hold_s: float, payload: str
) -> None:
    note(number, due_s)
    if hold_s:
        await asyncio.sleep(hold_s)


async def connect() -> None:
    await queue.connect()


async def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    number, due_s, hold_s, payload = arguments
    scheduled = {"scheduled": time.time() + delay_s} if delay_s else {}
    await queue.enqueue(
        "run",
        number=number,
        due_s=due_s,
        hold_s=hold_s,
        payload=payload,
        ttl=-1,
        timeout=120,
        **scheduled,
    )


def work() -> None:
    asyncio.run(Worker(queue, [run], concurrency=50).start())
