"""
A program in a pod of its own: it puts tasks and works on them, by the SDK, through the Service.

    python pod_load.py URL

It says how many are done, each ten; it ends on SIGUSR1, once all that was put is done, and prints
what became of it as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time

from tidewarden.client import AsyncClient, AsyncTask, Worker

QUEUE = "rolling"
DONE_S = 60.0


async def main(url: str) -> None:
    ended, done, put = asyncio.Event(), list[str](), set[str]()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, ended.set)
    longest_s = 0.0
    worker = Worker([url], concurrency=4)

    @worker.task(QUEUE)
    async def handle(task: AsyncTask) -> None:
        done.append(task.id)
        if len(done) % 10 == 1:
            print(json.dumps({"done": len(done)}), flush=True)

    working = asyncio.ensure_future(worker.serve())
    async with AsyncClient(url) as client:
        queue = client.queue(QUEUE)
        for number in itertools.count():
            if ended.is_set():
                break
            began = time.monotonic()
            put.add(await queue.put(b"x", id=f"{os.getpid()}-{number}", within_ms=120_000))
            longest_s = max(longest_s, time.monotonic() - began)
            await asyncio.sleep(0.01)
    until_s = time.monotonic() + DONE_S
    while not put <= set(done) and time.monotonic() < until_s and not working.done():
        await asyncio.sleep(0.05)
    told = {
        "put": len(put),
        "undone": sorted(put - set(done)),
        "twice": len(done) - len(set(done)),
        "longest_s": round(longest_s, 2),
    }
    print(json.dumps(told), flush=True)
    if working.done():
        working.result()
    working.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
