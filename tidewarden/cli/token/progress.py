"""
Shows the progress and speed of a long transfer of accounts.

It is a bar on a terminal, elsewhere a line now and then.
"""

from __future__ import annotations

from types import TracebackType

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tidewarden.clock import SystemClock

SAY_S = 30.0


class ProgressLine:
    """
    Shows progress on standard error, so that the output stays clean.

    Other messages go to ``console``. Used as ``with``.
    """

    def __init__(self, what: str, total_bytes: int = 0) -> None:
        """
        Say what is done, as ``what``; ``total_bytes``: of the file it is done to, 0: not known.
        """
        self.console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        )
        self._bar = self._progress.add_task(what, total=total_bytes or None)
        self._clock = SystemClock()
        self._began = self._said = self._clock.monotonic()
        self._done_bytes, self._total_bytes = 0, total_bytes

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def note(self, text: str, count: int, size_bytes: int = 0) -> None:
        """Note how many are done in all, with ``text``, and how many more bytes of the file."""
        now = self._clock.monotonic()
        self._done_bytes += size_bytes
        text = f"{text}, {count / max(now - self._began, 0.001):,.0f}/s"
        self._progress.update(self._bar, advance=size_bytes, description=text)
        if self._progress.disable and now - self._said >= SAY_S:
            self._said = now
            share = (
                f" ({self._done_bytes * 100 // self._total_bytes} %)" if self._total_bytes else ""
            )
            typer.echo(f"{text}{share}", err=True)
