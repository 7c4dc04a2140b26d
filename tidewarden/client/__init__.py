"""
The Python SDK of Tidewarden: clients, their queues and tasks, and the ``Worker``.

The clients are ``Client`` and ``AsyncClient``.

See docs/client.md. Everything raises :mod:`tidewarden.errors`.
"""

from .blocking import Client, Lock, Queue, Task
from .client import AsyncClient
from .lock import AsyncLock
from .options import NewTask, PutOptions
from .queue import AsyncQueue, BatchError
from .redlock import AsyncRedlock, Redlock
from .replies import Ending, Page, TaskInfo, Token
from .task import AsyncTask
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncLock",
    "AsyncQueue",
    "AsyncRedlock",
    "AsyncTask",
    "BatchError",
    "Client",
    "Ending",
    "Lock",
    "NewTask",
    "Page",
    "PutOptions",
    "Queue",
    "Redlock",
    "Task",
    "TaskInfo",
    "Token",
    "Worker",
]
