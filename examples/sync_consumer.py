"""
Take tasks in a plain loop, until none comes for a second.

    python examples/sync_consumer.py [QUEUE]
"""

import sys

from tidewarden.client import Client

with Client() as client:
    queue = client.queue(sys.argv[1] if len(sys.argv) > 1 else "mails")
    while (task := queue.take(wait_ms=1_000)) is not None:
        with task:  # renews the lease; acknowledges at the end, fails the task on an exception
            print(f"{task.id}, attempt {task.attempt}: {task.text}", flush=True)
    print("nothing more in", queue.name)
