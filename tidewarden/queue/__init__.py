"""Keeps tasks: what a task is, where it lies, and who may have it."""

from .queues import Queues
from .sessions.session import Session
from .task import Changes, Taken, TaskSpec

__all__ = ["Changes", "Queues", "Session", "Taken", "TaskSpec"]
