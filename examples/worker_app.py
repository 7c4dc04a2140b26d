"""
Run a worker for the tasks of producer.py.

    tidewarden worker examples.worker_app:worker      # or: python -m examples.worker_app

Kill it while it works (kill -9), and start it again or another one beside it: the next worker gets
the tasks that it held.
"""

import asyncio
import sys
import time

from tidewarden.client import AsyncTask, Task, Worker

worker = Worker(concurrency=10)


class MailServerAway(Exception):
    """The mail server is down: try again, but not soon."""


@worker.task("mails", backoff={MailServerAway: 30_000}, bury_on=(KeyError,))
async def send(task: AsyncTask) -> None:
    """
    Send one mail as a coroutine; many coroutines share the worker's event loop.

    A mail without an address is buried at once, because no retry will help.
    """
    address = task.json()["to"]
    await asyncio.sleep(0.1)
    print(f"sent to {address}, attempt {task.attempt}", flush=True)


@worker.task("reports", lease_ms=10_000)
def report(task: Task) -> dict[str, str]:
    """
    Make one report in a thread, while the worker renews its lease.

    The return value is the task's result, for callers that wait for its end.
    """
    for _ in range(3):
        if task.lost:  # another worker has it by now
            raise RuntimeError("lost")
        time.sleep(0.1)
    # The fence lets whatever the task writes to refuse a writer with a smaller number.
    return {"report": task.text, "written under": str(task.fence)}


if __name__ == "__main__":
    sys.exit(worker.run())
