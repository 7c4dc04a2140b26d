"""Calls the function for a queue's tasks and decides what becomes of its exceptions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidewarden.errors import BadArg

from .blocking import Task
from .task import AsyncTask

Backoff = Mapping[type[BaseException], int] | Callable[[Exception, int], int | None]
"""
The pause after a failure, in ms: by the exception's class, the nearest one in its ancestry; or
asked with the exception and the attempt's number. ``None``, or no entry: the task's own backoff, or
the worker's where the put named none.
"""
Function = Callable[[Task], Any] | Callable[[AsyncTask], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """
    A function for the tasks of ``queue``, with its options.

    ``lease_ms``: how long a task is ours between two renewals, so how soon another worker has it
    when this host dies; ``None``: the put's or the queue's. ``bury_on``: exceptions after which a
    task is put aside instead of tried again.
    """

    queue: str
    function: Function
    lease_ms: int | None = None
    backoff: Backoff | None = None
    bury_on: tuple[type[BaseException], ...] = ()

    @property
    def is_async(self) -> bool:
        """Return whether the function runs in the event loop, not in a thread."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004  # an object with ``async def __call__``
        )

    def verdict(self, error: Exception, attempt: int) -> tuple[Literal["bury", "fail"], int | None]:
        """
        Decide what becomes of a task whose function raised ``error``.

        Returns ``bury``, or ``fail`` with the pause in ms.

        Raises: BadArg: a backoff that is no number of milliseconds.
        """
        if isinstance(error, self.bury_on):
            return "bury", None
        if self.backoff is None:
            return "fail", None
        if callable(self.backoff):
            pause_ms = self.backoff(error, attempt)
        else:
            pause_ms = next(
                (self.backoff[kind] for kind in type(error).__mro__ if kind in self.backoff), None
            )
        if pause_ms is not None and (not isinstance(pause_ms, int) or pause_ms < 0):
            raise BadArg(
                f"the backoff of {self.queue} for {type(error).__name__} is {pause_ms!r}; allowed"
                " is an integer of ms, or None"
            )
        return "fail", pause_ms
