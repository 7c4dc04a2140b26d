"""
A worker for the tasks of producer.py.

    tidewarden worker examples.worker_app:worker      # or: python -m examples.worker_app

Kill it while it works (kill -9) and start it again, or another one beside it: what it held is with
the next worker at once.
"""

import asyncio
import sys
import time

from tidewarden.client import AsyncTask, Task, Worker

worker = Worker(concurrency=10)


class MailServerAway(Exception):
    """Worth another try, but not soon."""


@worker.task("mails", backoff={MailServerAway: 30_000}, bury_on=(KeyError,))
async def send(task: AsyncTask) -> None:
    """
    A coroutine: many of them share the worker's one thread. A mail without an address is put aside:
    no retry will help.
    """
    address = task.json()["to"]
    await asyncio.sleep(0.1)
    print(f"sent to {address}, attempt {task.attempt}", flush=True)


@worker.task("reports", lease_ms=10_000)
def report(task: Task) -> dict[str, str]:
    """
    A plain function: it has a thread for itself. Its lease is renewed while it runs, however long
    that is.

    What it returns is the task's result, for those who wait for its end.
    """
    for _ in range(3):
        if task.lost:  # somebody else has it by now
            raise RuntimeError("lost")
        time.sleep(0.1)
    # Whatever the task changes can refuse a writer whose number is smaller than one it has seen.
    return {"report": task.text, "written under": str(task.fence)}


if __name__ == "__main__":
    sys.exit(worker.run())
