"""
Put, take and acknowledge many small tasks, a hundred at a time.

    python examples/batches.py [HOW_MANY]
"""

import asyncio
import sys
import time

from tidewarden.client import AsyncClient


async def main(total: int) -> None:
    async with AsyncClient() as client:
        queue = client.queue("batches")
        begun = time.perf_counter()
        for start in range(0, total, 100):
            await queue.put_many(f"{number}" for number in range(start, min(start + 100, total)))
        done = 0
        while done < total:
            tasks = await queue.take_many(100, wait_ms=1_000)
            if not tasks:
                break
            done += sum(await queue.ack_many(tasks))
        print(
            f"{done} of {total} tasks put, taken and acknowledged in"
            f" {time.perf_counter() - begun:.2f} s"
        )


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000))
