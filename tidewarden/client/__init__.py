"""
The Python SDK of Tidewarden: ``Client`` and ``AsyncClient``, their queues and tasks, and the ``Worker``.

See docs/client.md. Everything raises :mod:`tidewarden.errors`.
"""

from .blocking import Client, Queue, Task
from .client import AsyncClient
from .options import NewTask, PutOptions
from .queue import AsyncQueue, BatchError
from .replies import Ending, Page, TaskInfo, Token
from .task import AsyncTask
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "AsyncTask",
    "BatchError",
    "Client",
    "Ending",
    "NewTask",
    "Page",
    "PutOptions",
    "Queue",
    "Task",
    "TaskInfo",
    "Token",
    "Worker",
]
