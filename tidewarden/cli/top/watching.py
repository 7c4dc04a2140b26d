"""Shows who sends most: one table, or a screen that goes on."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tidewarden.cli.connection import Broken, NodeLine, NotAuthenticated, addresses, connected, dial
from tidewarden.cli.options import NOTHING, stop
from tidewarden.cli.output import print_json
from tidewarden.clock import SystemClock

from .command import OVERS, SIDES, SORTS
from .keys import Keys, terminal_keys
from .view import head, lines_for, render, table

LEAVE = ("q", "\x03", "\x04")
WIDE = 200
ROWS = 20
"""Of one table."""
SILENCE_S = 10.0
"""A node that answers no sooner is left for another; it waits itself for other nodes."""
LOOK_S = 1.0
"""How often it is looked whether a signal came."""
AWAY = Text("No node answers. They are asked again and again; q leaves.", "bold red")


def show(
    look: Look, url: str, data_dir: Path, every_s: float, *, once: bool, as_json: bool
) -> None:
    """Show it once, or on a terminal until somebody leaves."""
    console, fit = Console(), look.rows or ROWS
    with connected(url, data_dir) as line:
        if as_json:
            print_json(look.ask(line, fit))
        elif once or not console.is_terminal:
            print_once(look.ask(line, fit), console)
        else:
            watch(look, Asking(line, addresses(url, data_dir)), console, every_s)


class Look:
    """Says what is looked at, which keys change."""

    def __init__(self, by: str, sort: str, over: str, node: str, rows: int) -> None:
        self._by = by
        self._sort = sort
        self._over = over
        self._node = node
        self.rows = rows

    def press(self, key: str) -> None:
        """Look at something else."""
        self._sort = SORTS.get(key, self._sort)
        self._by = SIDES.get(key, self._by)
        self._over = OVERS.get(key, self._over)

    def ask(self, line: NodeLine, fit: int) -> dict[str, Any]:
        """Ask a node for ``fit`` rows, or for as many as the user wants."""
        words = ("BY", self._by, "SORT", self._sort, "OVER", self._over, "NODE", self._node)
        found: dict[str, Any] = line.call("R.TRAFFIC", *words, "TOP", min(fit, self.rows or fit))
        return found


def print_once(report: dict[str, Any], console: Console) -> None:
    """Print one table; where no terminal cuts lines, as wide as it needs to be."""
    console = console if console.is_terminal else Console(width=WIDE)
    console.print(*head(report), sep="\n")
    if not report["rows"]:
        raise stop("nothing was sent", NOTHING)
    console.print(table(report))


class Asking:
    """Asks one node, and when that one goes the first other that answers."""

    def __init__(self, line: NodeLine, addresses: Sequence[str]) -> None:
        self._line: NodeLine | None = line
        self._addresses = addresses

    def ask(self, look: Look, fit: int) -> dict[str, Any] | None:
        """Ask the nodes one after the other; None: none answers just now."""
        for address in ("", *self._addresses):
            try:
                if self._line is None:
                    self._line = dial(address, SILENCE_S) if address else None
                if self._line is not None:
                    return look.ask(self._line, fit)
            except (Broken, NotAuthenticated):
                self.close()
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None


def watch(look: Look, asking: Asking, console: Console, every_s: float) -> None:
    """Draw until somebody leaves; then the terminal is as it was."""
    leaving: list[int] = []

    def leave(number: int, _frame: object) -> None:
        leaving.append(number)
        if len(leaving) == 1:
            raise KeyboardInterrupt  # It is lost where it meets a finalizer: hence the list.

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    clock = SystemClock()
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            terminal_keys() as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            goes_on = True
            while goes_on and not leaving:
                found = asking.ask(look, lines_for(console.height))
                live.update(AWAY if found is None else render(found), refresh=True)
                goes_on = wait(look, keys, clock.monotonic() + every_s, clock, leaving)
    finally:
        asking.close()
    if leaving == [signal.SIGTERM]:
        sys.exit(128 + signal.SIGTERM)


def wait(look: Look, keys: Keys, until: float, clock: SystemClock, leaving: Sequence[int]) -> bool:
    """
    Wait for the next look, which a key brings at once; whether there is to be one.

    ``leaving``: signals that came.
    """
    while (left_s := until - clock.monotonic()) > 0:
        key = keys.wait(min(left_s, LOOK_S))
        if key in LEAVE or leaving:
            return False
        if key:
            look.press(key.lower())
            return True
    return True
