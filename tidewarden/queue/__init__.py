"""What a task is, where it lies, and who may have it."""

from tidewarden.queue.queues import Queues
from tidewarden.queue.session import Session
from tidewarden.queue.task import Changes, NewTask, Taken

__all__ = ["Changes", "NewTask", "Queues", "Session", "Taken"]
